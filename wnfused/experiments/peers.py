"""Other ways to train deep residual networks without normalizing activations, on the same WRN with plain layers.

fixup      Zhang, Dauphin & Ma (2019): the last layer of each branch and the head are 0, the other layers of branches
           are scaled down by L^(−1/(2m − 2)) (L branches of m layers), scalar biases and multipliers are learned.
skip_init  De & Smith (2020), and ReZero, Bachlechner et al. (2020): each branch is multiplied by a learned scalar,
           0 at first.
scaled_ws  Brock, De & Smith (2021): weights are standardized row by row in every forward pass; the expected variance of
           the stream is divided out before each branch, and each branch is scaled by 0.2.
"""

import math
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wnfused.models import WRN
from wnfused.models.residual import Block
from wnfused.train import Config
from wnfused.train.model import Shape, architecture

ALPHA = 0.2  # of scaled weight standardization: the scale of a branch
RELU_GAIN = math.sqrt(2 / (1 - 1 / math.pi))  # γ·ReLU(z) has variance 1 for z ~ N(0, 1)


def network(peer: str, config: Config, shape: Shape, classes: int) -> nn.Module:
    """The WRN of ``config`` with plain layers, changed and initialized by ``peer``."""
    torch.manual_seed(config.seed)
    model = architecture(config.model, "none", shape, classes)
    assert isinstance(model, WRN)
    PEERS[peer](model, torch.Generator().manual_seed(config.seed))
    return model


def _branch(block: Block) -> tuple[nn.Conv2d, nn.Conv2d]:
    """The two convolutions of a plain basic block."""
    first, last = [part for part in block.branch.modules() if isinstance(part, nn.Conv2d)]
    return first, last


def _blocks(model: WRN) -> Iterator[tuple[nn.Sequential, int, Block]]:
    for stage in model.stages:
        assert isinstance(stage, nn.Sequential)
        for i, block in enumerate(stage):
            assert isinstance(block, Block)
            yield stage, i, block


def _he(model: nn.Module, generator: torch.Generator) -> None:
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu", generator=generator)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


def _scalar(value: float) -> nn.Parameter:
    return nn.Parameter(torch.tensor(value))


class Shifted(nn.Module):
    """A layer with a learned scalar added to its input."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.shift = _scalar(0.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x + self.shift)


class FixupBlock(nn.Module):
    """Scalar biases before each convolution and ReLU, and a multiplier and a bias at the end of the branch."""

    def __init__(self, block: Block) -> None:
        super().__init__()
        self.first, self.last = _branch(block)
        self.shortcut = block.shortcut
        self.before_first, self.before_relu, self.before_last = _scalar(0.0), _scalar(0.0), _scalar(0.0)
        self.scale, self.end = _scalar(1.0), _scalar(0.0)

    def forward(self, x: Tensor) -> Tensor:
        shifted = x + self.before_first
        h = F.relu(self.first(shifted) + self.before_relu)
        h = self.last(h + self.before_last) * self.scale + self.end
        return h + (x if isinstance(self.shortcut, nn.Identity) else self.shortcut(shifted))


def fixup_(model: WRN, generator: torch.Generator) -> None:
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            layer.bias = None  # scalar biases take its place
    _he(model, generator)
    blocks = list(_blocks(model))
    layers = 2  # of a branch
    for stage, i, block in blocks:
        first, last = _branch(block)
        with torch.no_grad():
            first.weight *= len(blocks) ** (-1 / (2 * layers - 2))
        nn.init.zeros_(last.weight)
        stage[i] = FixupBlock(block)
    nn.init.zeros_(model.head.weight)
    nn.init.zeros_(model.head.bias)
    model.stem = Shifted(model.stem)
    model.head = Shifted(model.head)  # type: ignore[assignment]


class SkipInitBlock(nn.Module):
    def __init__(self, block: Block) -> None:
        super().__init__()
        self.branch, self.shortcut = block.branch, block.shortcut
        self.scale = _scalar(0.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.shortcut(x) + self.scale * self.branch(x)


def skip_init_(model: WRN, generator: torch.Generator) -> None:
    _he(model, generator)
    for stage, i, block in list(_blocks(model)):
        stage[i] = SkipInitBlock(block)


class StandardizedConv(nn.Module):
    """A convolution with weights g·(W − μ)/√(N·var) row by row (N: fan-in) and a learned gain g, 1 at first."""

    def __init__(self, layer: nn.Conv2d, generator: torch.Generator) -> None:
        super().__init__()
        self.layer = layer
        self.gain = nn.Parameter(torch.ones(layer.out_channels, 1, 1, 1))
        nn.init.kaiming_normal_(layer.weight, nonlinearity="linear", generator=generator)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)

    def weight(self) -> Tensor:
        raw = self.layer.weight
        variance, mean = torch.var_mean(raw, dim=(1, 2, 3), keepdim=True, unbiased=False)
        return self.gain * (raw - mean) * (variance * raw[0].numel()).clamp_min(1e-4).rsqrt()

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight(), self.layer.bias, self.layer.stride, self.layer.padding)


class StandardizedBlock(nn.Module):
    """``x + α·f(x/β)``, or ``shortcut(x/β) + α·f(x/β)`` where the shape changes; β² is the expected variance of x."""

    def __init__(self, block: Block, beta: float, generator: torch.Generator) -> None:
        super().__init__()
        self.first, self.last = (StandardizedConv(layer, generator) for layer in _branch(block))
        self.beta = beta
        self.shortcut = StandardizedConv(block.shortcut, generator) if isinstance(block.shortcut, nn.Conv2d) else None

    def forward(self, x: Tensor) -> Tensor:
        scaled = x / self.beta
        h = self.last(F.relu(self.first(scaled)) * RELU_GAIN)
        return (x if self.shortcut is None else self.shortcut(scaled)) + ALPHA * h


def scaled_ws_(model: WRN, generator: torch.Generator) -> None:
    assert isinstance(model.stem, nn.Conv2d)
    model.stem = StandardizedConv(model.stem, generator)
    variance = 1.0
    for stage, i, block in list(_blocks(model)):
        stage[i] = StandardizedBlock(block, math.sqrt(variance), generator)
        changed = not isinstance(block.shortcut, nn.Identity)  # the shortcut starts from variance 1 again
        variance = (1.0 if changed else variance) + ALPHA**2


PEERS: dict[str, Callable[[WRN, torch.Generator], None]] = {
    "fixup": fixup_,
    "skip_init": skip_init_,
    "scaled_ws": scaled_ws_,
}
