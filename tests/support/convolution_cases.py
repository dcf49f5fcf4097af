"""Shared by the tests of convolutions: inputs, the comparison with float64, cases for each side that is scaled."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.reference import (
    CONVS,
    TRANSPOSED,
    assert_close,
    assert_gradients_close,
    doubles,
    gradients,
    normalized,
)
from wnfused import functional
from wnfused.ops.backends import native
from wnfused.ops.backends.native import ROUTES
from wnfused.ops.reference import gain_shape

OWN = {
    (1, False): functional.wn_conv1d,
    (2, False): functional.wn_conv2d,
    (3, False): functional.wn_conv3d,
    (1, True): functional.wn_conv_transpose1d,
    (2, True): functional.wn_conv_transpose2d,
    (3, True): functional.wn_conv_transpose3d,
}
FORMATS = {1: torch.contiguous_format, 2: torch.channels_last, 3: torch.channels_last_3d}

Shape = tuple[int, ...]
Inputs = list[Tensor | None]


def make(
    x: Shape,
    v: Shape,
    dim: int | None,
    dtype: torch.dtype = torch.float32,
    *,
    bias: bool = True,
    transposed: bool = False,
    groups: int = 1,
) -> Inputs:
    channels = v[1] * groups if transposed else v[0]
    gain = torch.rand(gain_shape(v, dim)) + 0.5
    tensors = [torch.randn(x), torch.randn(v), gain, torch.randn(channels) if bias else None]
    return [None if t is None else t.to(dtype).requires_grad_() for t in tensors]


def as_channels_last(t: Tensor | None) -> Tensor:
    assert t is not None
    return t.detach().contiguous(memory_format=FORMATS[t.ndim - 2]).requires_grad_()


def run(inputs: Inputs, transposed: bool = False, relu: bool = False, **arguments: Any) -> Tensor:
    v = inputs[1]
    assert v is not None
    return OWN[v.ndim - 2, transposed](*inputs, activation="relu" if relu else None, **arguments)


def expected(
    inputs: Inputs,
    transposed: bool = False,
    relu: bool = False,
    dim: int | None = 0,
    eps: float = 0.0,
    **arguments: Any,
) -> Tensor:
    x, v, g, b = inputs
    assert v is not None and g is not None
    plain = TRANSPOSED if transposed else CONVS
    y = plain[v.ndim - 2](x, normalized(v, g, dim, eps), b, **arguments)
    return y.relu() if relu else y


def gradient_of(y_wide: Tensor) -> Tensor:
    """A random gradient correlated with y, so that dg = <dw, u> is not a sum of thousands of terms that cancel."""
    return torch.randn_like(y_wide) + y_wide.detach()


def check_against_float64(inputs: Inputs, transposed: bool = False, relu: bool = False, **arguments: Any) -> None:
    """Compare output and gradients with float64, and check that no input was modified."""
    before = [None if t is None else t.detach().clone() for t in inputs]
    y = run(inputs, transposed, relu, **arguments)
    wide = doubles(*inputs)
    y_wide = expected(wide, transposed, relu, **arguments)
    assert y.dtype == inputs[0].dtype
    assert_close(y, y_wide, what="y")
    dy = gradient_of(y_wide).to(y.dtype)
    if relu and y.numel():  # near zero the two may have different signs; both are correct
        dy = dy * (y_wide.abs() > 0.05 * y_wide.abs().max()).to(dy.dtype)
    kept = dy.clone()
    own, wanted = gradients(y, inputs, dy), gradients(y_wide, wide, dy.double())
    assert_gradients_close(own, wanted, wide[1], wide[2], arguments.get("dim", 0))
    assert torch.equal(dy, kept)
    for t, was in zip(inputs, before, strict=True):
        assert was is None or torch.equal(t, was)


# Where the native kernel can apply the gain: to the weight, the output or the input, or in its direct convolutions
# (tests/kernels/cpu/test_direct_convolution.py). Which of them it takes is the rule's choice, so ``taking`` forces it.
# side, x, v, transposed, arguments
SIDES = [
    ("output", (2, 80, 2, 2), (96, 80, 3, 3), False, {"padding": 1, "dim": 0}),
    ("output", (2, 80, 2, 2), (96, 80, 3, 3), False, {"padding": 1, "dim": None}),
    ("output", (2, 160, 2, 2), (96, 80, 3, 3), False, {"padding": 1, "groups": 2, "dim": 0}),
    ("output", (2, 120, 7), (96, 120, 7), False, {"padding": 3, "dim": 0}),
    ("output", (2, 64, 2, 2, 2), (48, 64, 3, 3, 3), False, {"padding": 1, "dim": 0}),
    ("input", (2, 80, 2, 2), (96, 80, 3, 3), False, {"padding": 1, "dim": 1}),
    ("input", (2, 8, 2, 2), (512, 8, 5, 5), False, {"padding": 6, "dim": None}),
    ("input", (2, 120, 7), (96, 120, 7), False, {"padding": 3, "dim": 1}),
    ("weight", (2, 80, 2, 2), (96, 80, 3, 3), False, {"padding": 1, "dim": 2}),
    ("weight", (2, 160, 2, 2), (96, 80, 3, 3), False, {"padding": 1, "groups": 2, "dim": 1}),
    ("weight", (2, 6, 9, 9), (4, 3, 3, 3), False, {"groups": 2, "dim": 0}),
    ("direct", (2, 6, 9, 9), (5, 6, 3, 3), False, {"dim": 0}),
    (
        "weight",
        (3, 17, 9, 5),
        (33, 17, 3, 2),
        False,
        {"stride": (2, 1), "padding": 1, "dilation": (1, 2), "dim": 0},
    ),
    ("weight", (2, 20, 37), (18, 20, 5), False, {"stride": 2, "padding": 2, "dim": 0}),
    ("output", (2, 80, 2, 2), (80, 96, 3, 3), True, {"padding": 1, "dim": 1}),
    ("output", (2, 80, 2, 2), (80, 96, 3, 3), True, {"padding": 1, "dim": None}),
    ("output", (2, 80, 2, 2), (80, 96, 3, 3), True, {"padding": 1, "groups": 2, "dim": None}),
    ("output", (2, 120, 7), (120, 96, 7), True, {"padding": 3, "dim": 1}),
    ("input", (2, 80, 2, 2), (80, 96, 3, 3), True, {"padding": 1, "dim": 0}),
    ("input", (2, 80, 2, 2), (80, 96, 3, 3), True, {"padding": 1, "groups": 2, "dim": 0}),
    ("input", (2, 256, 2, 2), (256, 32, 3, 3), True, {"stride": 30, "dim": None}),
    ("input", (2, 64, 2, 2, 2), (64, 48, 3, 3, 3), True, {"padding": 1, "dim": 0}),
    ("weight", (2, 80, 2, 2), (80, 96, 3, 3), True, {"padding": 1, "groups": 2, "dim": 1}),
    ("weight", (2, 80, 2, 2), (80, 96, 3, 3), True, {"padding": 1, "dim": 3}),
    ("weight", (2, 6, 9, 9), (6, 5, 3, 3), True, {"dim": 0}),
]
SIDE_IDS = [f"{s[0]}{' transposed' if s[3] else ''} {len(s[1]) - 2}d {list(s[4].values())}" for s in SIDES]
each_side = pytest.mark.parametrize(("side", "x", "v", "transposed", "arguments"), SIDES, ids=SIDE_IDS)
# One case per side, plain and transposed, for tests that do not need every variant.
ONE_OF_EACH = [SIDES[i] for i in (0, 5, 8, 11, 14, 18, 23)]
one_of_each_side = pytest.mark.parametrize(
    ("side", "x", "v", "transposed", "arguments"), ONE_OF_EACH, ids=[f"{s[0]}-{s[3]}" for s in ONE_OF_EACH]
)


def sided(x: Shape, v: Shape, transposed: bool, arguments: dict[str, Any], **options: Any) -> Inputs:
    return make(x, v, arguments["dim"], transposed=transposed, groups=arguments.get("groups", 1), **options)


@contextmanager
def taking(side: str, inputs: Inputs, transposed: bool, arguments: dict[str, Any]) -> Iterator[None]:
    """Force the native kernel to apply the gain on ``side``, forward and backward.

    Products that cannot, such as those of 16-bit tensors, keep the rule's choice. Other backends do not have one.
    """
    if native.load() is not None:
        yield
        return
    x, v, g, _ = inputs
    assert x is not None and v is not None and g is not None
    count = v.ndim - 2

    def each(name: str, default: int) -> tuple[int, ...]:
        value = arguments.get(name, default)
        return tuple(value) if isinstance(value, tuple) else (value,) * count

    geometry = (each("stride", 1), each("padding", 0), each("dilation", 1), transposed, (0,) * count)
    named = (x, v, g, *geometry, arguments.get("groups", 1), arguments["dim"])
    plan, route = torch.ops.wnfused_plan, ROUTES.index(side if side == "direct" else f"scaled {side}")
    try:
        for product in range(3 if side == "direct" else 2):  # y, dx, dw; dw has no gain
            if plan.terms(product, route, *named):
                plan.set_route(product, route, *named)
        yield
    finally:
        plan.forget_routes()
