"""Shared by the tests of autograd: the samples they go through, a small network and its twin in torch's operations."""

from collections.abc import Callable

import pytest
import torch.nn.functional as F
from torch import Tensor, nn

from tests.support.reference import normalized
from tests.support.samples import BY_NAME, SAMPLES
from wnfused import WNConv1d, WNConvTranspose1d, WNLinear

each_sample = pytest.mark.parametrize("sample", SAMPLES, ids=lambda e: e.name)
SOME = [
    "weight_norm-0",
    "weight_norm-all",
    "linear",
    "linear-relu",
    "conv1d-relu-last",
    "conv2d",
    "transposed2d-relu-eps",
]
some_samples = pytest.mark.parametrize("sample", [BY_NAME[name] for name in SOME], ids=lambda e: e.name)
layered_samples = pytest.mark.parametrize("sample", [e for e in SAMPLES if e.x_shape is not None], ids=lambda e: e.name)


def scalar(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A loss whose gradient differs from output to output and whose second derivative is not zero."""
    return lambda *tensors: function(*tensors).sin().sum()


def assert_same(own: object, wanted: object) -> None:
    """Equal trees of tensors, up to rounding relative to each tensor's own scale."""
    if isinstance(own, Tensor):
        assert isinstance(wanted, Tensor)
        difference = (own - wanted).abs().max()
        assert own.shape == wanted.shape
        assert difference <= 1e-10 * wanted.abs().max().clamp_min(1e-3), f"{difference=}"
    else:
        assert isinstance(own, (tuple, list)) and isinstance(wanted, (tuple, list))
        for a, b in zip(own, wanted, strict=True):
            assert_same(a, b)


class Torch(nn.Module):
    """What ``model()`` computes, from the same parameters by torch's own operations."""

    def __init__(self, own: nn.Sequential) -> None:
        super().__init__()
        self.own = own

    def forward(self, x: Tensor) -> Tensor:
        first, second, _, last = self.own
        y = F.conv1d(x, normalized(first.weight_v, first.weight_g, 0), first.bias, padding=1).relu()
        y = F.conv_transpose1d(y, normalized(second.weight_v, second.weight_g, 0), second.bias, stride=2)
        return F.linear(y.flatten(1), normalized(last.weight_v, last.weight_g, 0), last.bias)


def model() -> nn.Sequential:
    layers = [
        WNConv1d(2, 3, 3, padding=1, activation="relu"),
        WNConvTranspose1d(3, 2, 2, stride=2),
        nn.Flatten(),
        WNLinear(16, 3),
    ]
    return nn.Sequential(*layers).double()
