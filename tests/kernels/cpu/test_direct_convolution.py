"""The direct convolutions of the native backend: every way to copy, split and distribute the work, against float64."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

import wnfused
from tests.support.convolution_cases import taking
from tests.support.reference import CONVS, assert_gradients_close, doubles, errors, gradients, normalized
from wnfused import functional

WN = {1: functional.wn_conv1d, 2: functional.wn_conv2d}


@pytest.fixture(autouse=True)
def _native() -> Iterator[None]:
    with wnfused.backend("native"):
        yield


# x, v, arguments
CASES = {
    "padded copies, rows of whole vectors": ((2, 5, 6, 32), (7, 5, 3, 3), {"padding": 1}),
    "shifted copies, vectors across rows": ((3, 5, 8, 8), (7, 5, 3, 3), {"padding": 1}),
    "rows of an odd length": ((2, 5, 7, 11), (6, 5, 3, 3), {"padding": 1}),
    "output narrower than the input": ((2, 5, 9, 13), (6, 5, 3, 5), {}),
    "output wider than the input": ((2, 4, 5, 9), (6, 4, 3, 3), {"padding": (3, 4)}),
    "padding beyond the kernel's reach": ((1, 3, 4, 4), (5, 3, 2, 2), {"padding": 5}),
    "dilated": ((2, 5, 12, 9), (6, 5, 3, 3), {"padding": (2, 4), "dilation": (2, 3)}),
    "taps that read only padding": ((1, 3, 2, 3), (4, 3, 3, 5), {"padding": (4, 8), "dilation": (2, 3)}),
    "one tap": ((2, 20, 5, 7), (9, 20, 1, 1), {}),
    "one tap, padded": ((2, 6, 5, 7), (9, 6, 1, 1), {"padding": 1}),
    "one row out of several": ((2, 6, 3, 40), (9, 6, 3, 3), {"padding": (0, 1)}),
    "one channel, one filter": ((2, 1, 9, 9), (1, 1, 3, 3), {"padding": 1}),
    "many chunks of channels": ((1, 90, 5, 5), (10, 90, 3, 3), {"padding": 1}),
    "several images in one chain": ((9, 6, 5, 5), (7, 6, 3, 3), {"padding": 1}),
    "several groups of images": ((5, 40, 60, 60), (3, 40, 1, 1), {}),
    "gathered panels": ((4, 70, 6, 6), (130, 70, 3, 3), {"padding": 1}),
    "strided": ((2, 5, 16, 18), (7, 5, 3, 3), {"padding": 1, "stride": 2}),
    "strided to whole vectors": ((2, 5, 6, 32), (7, 5, 3, 3), {"padding": 1, "stride": (1, 2)}),
    "strided, the last pixels not read": ((2, 5, 12, 17), (7, 5, 2, 3), {"stride": (2, 2)}),
    "strided and dilated": ((1, 4, 19, 20), (6, 4, 3, 3), {"padding": 3, "dilation": (2, 3), "stride": (4, 1)}),
    "strided, one tap": ((2, 6, 10, 13), (9, 6, 1, 1), {"stride": 2}),
    "strided signal": ((2, 6, 75), (5, 6, 4), {"padding": 1, "stride": 4}),
    "signal": ((2, 6, 37), (5, 6, 7), {"padding": 3}),
    "dilated signal": ((1, 6, 300), (5, 6, 3), {"padding": 9, "dilation": 9}),
    "signal longer than a chain": ((2, 3, 700), (4, 3, 5), {"padding": 2}),
}
each_case = pytest.mark.parametrize(("x", "v", "arguments"), CASES.values(), ids=CASES)
Shape = tuple[int, ...]


def make(x: Shape, v: Shape) -> list[Tensor]:
    gain = torch.rand(v[0], *[1] * (len(v) - 1)) + 0.5
    return [t.requires_grad_() for t in (torch.randn(x), torch.randn(v), gain, torch.randn(v[0]))]


def directly(inputs: list[Tensor], arguments: dict[str, Any]) -> AbstractContextManager[None]:
    """A context in which the direct kernels compute every product they can, whatever the rule would choose."""
    return taking("direct", list(inputs), False, {"dim": 0, **arguments})


def plain(inputs: list[Tensor | None], **arguments: Any) -> Tensor:
    x, v, g, b = inputs
    assert x is not None and v is not None and g is not None
    return CONVS[v.ndim - 2](x, normalized(v, g, 0), b, **arguments)


def torch_calls(inputs: list[Tensor], **arguments: Any) -> set[str]:
    """The matmuls and convolutions of torch that are called, forward and backward."""
    with torch.autograd.profiler.profile() as profile:
        y = WN[inputs[1].ndim - 2](*inputs, **arguments)
        torch.autograd.grad(y.sum(), inputs)
    own = {"aten::convolution", "aten::convolution_backward", "aten::mm"}
    return own & {event.name for event in profile.function_events}


@each_case
def test_the_cases_take_the_direct_path(x: Shape, v: Shape, arguments: dict[str, Any]) -> None:
    """With a stride, only the backward is direct."""
    inputs = make(x, v)
    with directly(inputs, arguments):
        assert torch_calls(inputs, **arguments) == ({"aten::convolution"} if "stride" in arguments else set())


@pytest.mark.parametrize("threads", [1, 2, 3])
@each_case
def test_values_and_gradients(x: Shape, v: Shape, arguments: dict[str, Any], threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        inputs = make(x, v)
        wide = doubles(*inputs)
        y_wide = plain(wide, **arguments)
        dy = (torch.randn_like(y_wide) + y_wide.detach()).float()
        with directly(inputs, arguments):
            y = WN[len(v) - 2](*inputs, **arguments)
            own = gradients(y, inputs, dy)
        wanted = gradients(y_wide, wide, dy.double())
    finally:
        torch.set_num_threads(before)
    largest, rms = errors(y, y_wide)
    assert largest < 1e-5 and rms < 1e-6
    assert_gradients_close(own, wanted, wide[1], wide[2], 0)


@given(
    batch=st.integers(1, 4),
    channels=st.integers(1, 20),
    filters=st.integers(1, 20),
    size=st.tuples(st.integers(1, 20), st.integers(1, 40)),
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    padding=st.tuples(st.integers(0, 4), st.integers(0, 4)),
    dilation=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.sampled_from([(1, 1), (1, 1), (2, 2), (1, 3), (4, 1)]),
)
def test_any_shape(
    batch: int, channels: int, filters: int, size: Any, kernel: Any, padding: Any, dilation: Any, stride: Any
) -> None:
    # empty outputs are tested in tests/nn/test_bad_input.py
    assume(all(n + 2 * p > d * (k - 1) for n, p, d, k in zip(size, padding, dilation, kernel, strict=True)))
    arguments = {"padding": padding, "dilation": dilation, "stride": stride}
    inputs = make((batch, channels, *size), (filters, channels, *kernel))
    wide = doubles(*inputs)
    y_wide = plain(wide, **arguments)
    dy = (torch.randn_like(y_wide) + y_wide.detach()).float()
    with directly(inputs, arguments):
        y = functional.wn_conv2d(*inputs, **arguments)
        own = gradients(y, inputs, dy)
    largest, rms = errors(y, y_wide)
    assert largest < 1e-5 and rms < 2e-6
    wanted = gradients(y_wide, wide, dy.double())
    assert_gradients_close(own, wanted, wide[1], wide[2], 0)


@pytest.mark.parametrize("wanted", ["x", "v", "g", "b", "xb", "vg", "vb"])
def test_single_gradients_equal_those_computed_together(wanted: str) -> None:
    inputs = make((2, 5, 8, 8), (7, 5, 3, 3))
    every = dict(
        zip("xvgb", gradients(functional.wn_conv2d(*inputs, padding=1), inputs, torch.ones(2, 7, 8, 8)), strict=True)
    )
    for name, t in zip("xvgb", inputs, strict=True):
        t.requires_grad_(name in wanted)
    y = functional.wn_conv2d(*inputs, padding=1)
    asked = [t for t in inputs if t.requires_grad]
    for name, own in zip(wanted, gradients(y, asked, torch.ones_like(y)), strict=True):
        torch.testing.assert_close(own, every[name], rtol=1e-5, atol=1e-5)


def test_fused_relu_equals_a_separate_relu() -> None:
    inputs = make((2, 5, 8, 8), (7, 5, 3, 3))
    fused, apart = (
        functional.wn_conv2d(*inputs, padding=1, activation="relu"),
        functional.wn_conv2d(*inputs, padding=1).relu(),
    )
    assert torch.equal(fused, apart)
    dy = torch.randn_like(fused)
    for a, b in zip(gradients(fused, inputs, dy), gradients(apart, inputs, dy), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("width", [8, 16, 11])
@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_nonfinite_values_reach_only_the_outputs_that_read_them(value: float, width: int) -> None:
    """Copies extend beyond the ends of rows, and tiles beyond the ends of images: neither may leak."""
    x, v, g, b = (t.detach() for t in make((2, 3, 8, width), (4, 3, 3, 3)))
    x[0, 1, 4, width - 1] = value
    with directly([x, v, g, b], {"padding": 1}):
        y = functional.wn_conv2d(x, v, g, b, padding=1)
    touched = F.conv2d((~x.isfinite()).float(), torch.ones_like(v), padding=1) > 0
    assert torch.equal(~y.isfinite(), touched)


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e12, 1e30])
def test_extreme_norms_take_the_careful_path(scale: float) -> None:
    inputs = make((2, 5, 8, 8), (7, 5, 3, 3))
    scaled = [inputs[0], (inputs[1].detach() * scale).requires_grad_(), *inputs[2:]]
    assert torch_calls(scaled, padding=1) == {"aten::convolution", "aten::convolution_backward"}
    own, wanted = functional.wn_conv2d(*scaled, padding=1), functional.wn_conv2d(*inputs, padding=1)
    torch.testing.assert_close(own, wanted, rtol=1e-4, atol=1e-5)


def test_rows_of_zeros() -> None:
    x, v, g, b = make((2, 5, 8, 8), (7, 5, 3, 3))
    v = v.detach().clone()
    v[3] = 0
    v.requires_grad_()
    y = functional.wn_conv2d(x, v, g, b, padding=1)
    assert torch.equal(y[:, 3], b[3].detach().expand(2, 8, 8))
    dx, dv, dg = torch.autograd.grad(y.sum(), (x, v, g))
    assert dx.isfinite().all() and not dv[3].any() and not dg[3].any() and dv[:3].any()
