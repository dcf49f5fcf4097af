"""Shared by the tests of compilation and tracing: the samples they go through, a network, its results and gradients."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.support.reference import assert_close
from tests.support.samples import BY_NAME
from wnfused import WNConv2d, WNConvTranspose2d, WNLinear

# Enough for every operator, dim, option and rank; compiling all the samples would take minutes.
SOME = [
    BY_NAME[name]
    for name in [
        "weight_norm-middle",
        "weight_norm-all",
        "linear-relu",
        "linear-all",
        "conv1d-relu-last",
        "conv2d-groups-relu",
        "conv2d-1",
        "conv3d",
        "transposed1d",
        "transposed2d-relu-eps",
    ]
]
some_samples = pytest.mark.parametrize("sample", SOME, ids=lambda s: s.name)


def network(activation: str | None = "relu") -> nn.Sequential:
    return nn.Sequential(
        WNConv2d(2, 4, 3, padding=1, activation=activation),
        WNConvTranspose2d(4, 3, 2, stride=2, groups=1),
        WNConv2d(3, 2, 2, stride=2, padding_mode="reflect", padding=1, bias=False, dim=None),
        nn.Flatten(),
        WNLinear(50, 5, activation=activation, eps=1e-3),
        WNLinear(5, 3, dim=1),
    )


def results(run: Callable[[Tensor], Tensor], x: Tensor, parameters: list[Tensor]) -> list[Tensor]:
    """The output, the input's gradient and the parameters'."""
    x = x.detach().requires_grad_()
    y = run(x)
    return [y, *torch.autograd.grad(y.float().sin().sum(), [x, *parameters])]


def assert_equal_results(own: list[Tensor], wanted: list[Tensor]) -> None:
    for a, w in zip(own, wanted, strict=True):
        assert a.dtype == w.dtype
        assert_close(a, w)
