"""Small models in the shapes of public ones that use torch's weight norm, and the shapes of their inputs."""

import itertools
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

from wnfused.benchmarks.streaming import Generator


class Causal(nn.Conv1d):
    """A convolution that pads on the left only, as streaming codecs write it."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.pad(x, ((self.kernel_size[0] - 1) * self.dilation[0], 0)))


class Residual(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


class Gated(nn.Module):
    """A layer of WaveNet: a dilated convolution, tanh times sigmoid, a 1×1 convolution, the sum with its input."""

    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.dilated = weight_norm(Causal(channels, 2 * channels, 2, dilation=dilation))
        self.mix = weight_norm(nn.Conv1d(channels, channels, 1))

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.dilated(x).chunk(2, dim=1)
        return x + self.mix(torch.tanh(value) * torch.sigmoid(gate))


class Head(nn.Module):
    """The projection head of DINO: an MLP, normalized features, and prototypes whose gain is one and not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 32))
        self.last = weight_norm(nn.Linear(32, 256, bias=False))
        gain = self.last.parametrizations.weight.original0
        gain.data.fill_(1)
        gain.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.normalize(self.mlp(x), dim=-1))


def generator() -> nn.Module:
    model = Generator(64)
    for layer in list(model.modules()):
        if isinstance(layer, nn.Conv1d | nn.ConvTranspose1d):
            weight_norm(layer)
    return model


def codec() -> nn.Module:
    def unit(dilation: int) -> nn.Module:
        return Residual(
            nn.ELU(), weight_norm(Causal(32, 16, 3, dilation=dilation)), nn.ELU(), weight_norm(Causal(16, 32, 1))
        )

    encoder = (weight_norm(Causal(1, 32, 7)), unit(1), unit(3), nn.ELU(), weight_norm(nn.Conv1d(32, 32, 4, stride=2)))
    decoder = (weight_norm(nn.ConvTranspose1d(32, 32, 4, stride=2)), unit(1), nn.ELU(), weight_norm(Causal(32, 1, 7)))
    return nn.Sequential(*encoder, *decoder)


def tcn() -> nn.Module:
    def block(dilation: int) -> nn.Module:
        layers = [weight_norm(Causal(32, 32, 3, dilation=dilation)) for _ in range(2)]
        return Residual(layers[0], nn.ReLU(), layers[1], nn.ReLU())

    return nn.Sequential(weight_norm(nn.Conv1d(8, 32, 1)), *(block(2**i) for i in range(4)))


def sdf() -> nn.Module:
    """A signed distance function: an MLP with softplus."""
    sizes = [3, 128, 128, 128, 128, 1]
    layers = [weight_norm(nn.Linear(a, b)) for a, b in itertools.pairwise(sizes)]
    activations = [nn.Softplus(beta=100) for _ in layers[:-1]]
    return nn.Sequential(*(m for pair in zip(layers, activations, strict=False) for m in pair), layers[-1])


def wavenet() -> nn.Module:
    layers = [Gated(32, 2**i) for i in range(6)]
    return nn.Sequential(weight_norm(nn.Conv1d(1, 32, 1)), *layers, nn.ReLU(), weight_norm(nn.Conv1d(32, 16, 1)))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "HiFi-GAN generator": (generator, (1, 80, 8)),
    "causal codec": (codec, (1, 1, 256)),
    "WaveNet": (wavenet, (1, 1, 128)),
    "TCN": (tcn, (4, 8, 64)),
    "SDF MLP": (sdf, (256, 3)),
    "DINO head": (Head, (16, 64)),
}
