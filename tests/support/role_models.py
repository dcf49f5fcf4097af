"""Small models whose roles the tests of role inference know, and the words they say it in."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wnfused import WNConv2d, WNLinear
from wnfused.init.roles import infer_roles

X = torch.randn(2, 8)
IMAGE = torch.randn(1, 3, 16, 16)


class Model(nn.Module):
    """``forward(model, *inputs)`` over named parts."""

    def __init__(self, forward: Callable[..., Any], **parts: nn.Module) -> None:
        super().__init__()
        self._forward = forward
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._forward(self, *args, **kwargs)


def fc(inputs: int = 8, outputs: int = 8) -> nn.Module:
    return WNLinear(inputs, outputs)


def conv(inputs: int = 4, outputs: int = 4, size: int = 3, stride: int = 1) -> nn.Module:
    return WNConv2d(inputs, outputs, size, stride, size // 2)


def old_norm(layer: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return torch.nn.utils.weight_norm(layer)


def kinds(model: nn.Module, example: Any = X) -> dict[str, str]:
    return {name: role.kind for name, role in infer_roles(model, example).items()}


def branches(model: nn.Module, example: Any) -> dict[str, float]:
    """γ of the layers that end residual branches."""
    roles = infer_roles(model, example)
    return {name: role.gamma for name, role in roles.items() if role.kind == "residual_end"}


class PostActivation(nn.Module):
    """He et al.'s block: ReLU after the sum, in place."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1, self.conv2 = conv(inputs, outputs, 3, stride), conv(outputs, outputs)
        self.relu = nn.ReLU(inplace=True)
        self.down = conv(inputs, outputs, 1, stride) if inputs != outputs else None

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv2(self.relu(self.conv1(x)))
        out += x if self.down is None else self.down(x)
        return self.relu(out)


class PreActivation(nn.Module):
    """The identity, or a shortcut convolution that reads what the branch reads."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1, self.conv2 = conv(inputs, outputs, 3, stride), conv(outputs, outputs)
        self.down = conv(inputs, outputs, 1, stride) if inputs != outputs else None

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(x)
        shortcut = x if self.down is None else self.down(out)
        out = self.conv2(F.dropout(F.relu(self.conv1(out)), 0.3, self.training))
        return torch.add(shortcut, out)


def network(block: Any, stem_relu: bool) -> nn.Sequential:
    """Stages of 3 and 2 blocks."""
    stem = nn.Sequential(conv(3, 4), nn.ReLU()) if stem_relu else nn.Sequential(conv(3, 4))
    first = nn.Sequential(*(block(4, 4) for _ in range(3)))
    second = nn.Sequential(block(4, 8, 2), block(8, 8))
    head = nn.Sequential(nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), fc(8, 2))
    return nn.Sequential(stem, first, second, head)


class Unit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = fc(), fc()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.b(F.relu(self.a(x)))
