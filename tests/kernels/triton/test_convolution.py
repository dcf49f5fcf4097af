"""The Triton convolution kernels: every walk, tile, dtype and layout against the plain formulas in float64."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.reference import assert_close
from tests.support.triton_cases import DEVICE, DTYPE_IDS, DTYPES, assert_all_close, gains, tensors, tiles, wide
from wnfused.kernels.triton import run_conv, run_rows
from wnfused.kernels.triton.rules import Plan
from wnfused.ops import reference as formulas

each_dtype = pytest.mark.parametrize(("dtype", "weights"), DTYPES, ids=DTYPE_IDS)
ALL = [True] * 4
Shape = tuple[int, ...]

# name: x, v, stride, padding, dilation, transposed, output_padding, groups
CASES: dict[str, tuple[Shape, Shape, Any]] = {
    "1d": ((2, 6, 9), (8, 6, 4), ([1], [2], [1], False, [0], 1)),
    "1d strided groups": ((2, 6, 11), (8, 3, 4), ([3], [1], [2], False, [0], 2)),
    "2d": ((2, 5, 7, 8), (7, 5, 3, 2), ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)),
    "2d strided dilated": ((2, 6, 9, 8), (5, 6, 3, 2), ([2, 3], [1, 1], [1, 2], False, [0, 0], 1)),
    "2d 1x1": ((2, 5, 4, 5), (7, 5, 1, 1), ([2, 2], [0, 0], [1, 1], False, [0, 0], 1)),
    "2d stride and dilation share a factor": ((1, 3, 11, 9), (4, 3, 3, 3), ([4, 2], [2, 1], [2, 2], False, [0, 0], 1)),
    "many channels": ((1, 70, 7), (40, 70, 2), ([1], [1], [1], False, [0], 1)),
    "transposed many channels": ((1, 70, 7), (70, 40, 2), ([2], [0], [1], True, [0], 1)),
    "3d": ((1, 4, 5, 6, 4), (6, 4, 2, 3, 2), ([1, 2, 1], [1, 0, 1], [1, 1, 2], False, [0, 0, 0], 1)),
    "depthwise": ((2, 40, 7, 8), (40, 1, 3, 3), ([2, 1], [1, 1], [1, 2], False, [0, 0], 40)),
    "depthwise 1d": ((2, 6, 30), (6, 1, 5), ([1], [2], [1], False, [0], 6)),
    "transposed 1d": ((2, 6, 9), (6, 4, 4), ([3], [1], [2], True, [1], 1)),
    "transposed groups": ((2, 6, 9), (6, 2, 4), ([2], [1], [1], True, [1], 3)),
    "transposed 2d": ((2, 5, 4, 5), (5, 6, 3, 2), ([2, 3], [1, 0], [1, 2], True, [1, 0], 1)),
    "transposed 3d": ((1, 3, 3, 2, 4), (3, 4, 2, 3, 2), ([1, 2, 2], [0, 1, 0], [1, 1, 1], True, [0, 1, 0], 1)),
    "transposed depthwise": ((2, 6, 5, 6), (6, 1, 3, 3), ([2, 2], [1, 1], [1, 1], True, [1, 1], 6)),
}
each_case = pytest.mark.parametrize("name", CASES)


def make(name: str, dim: int | None, dtype: torch.dtype, weights: torch.dtype) -> tuple[list[Tensor], Any]:
    x_shape, v_shape, geometry = CASES[name]
    channels = v_shape[1] * geometry[-1] if geometry[3] else v_shape[0]
    x, v, b = tensors((x_shape, dtype), (v_shape, weights), ((channels,), weights))
    return [x, v, gains(v, dim), b], geometry


def check(
    inputs: list[Tensor], geometry: Any, dim: int | None, relu: bool, plan: Plan | None = None, mask: list[bool] = ALL
) -> tuple[Tensor, tuple[Tensor | None, ...]]:
    x, v, g, b = inputs
    plan = plan or Plan("norms first", tiles(x.dtype)[0], 2)  # the rule would send some of these to cuDNN
    y, norms = run_conv.forward(x, v, g, b, geometry, dim, 0.0, relu, plan=plan)
    y_wide, _ = formulas.convolution(*wide(*inputs), *geometry, dim, 0.0, relu)
    assert_close(y.cpu(), y_wide, what="y")
    dy, saved = torch.randn_like(y), y if relu else None
    own = run_conv.backward(dy, x, v, g, norms, saved, geometry, dim, mask, (plan, plan))
    arguments = wide(dy, x, v, g, None, saved)
    wanted = formulas.convolution_backward(*arguments, *geometry, dim, 0.0, mask)
    assert_all_close(own, wanted, x.dtype)
    return y, own


@each_case
def test_every_geometry(name: str) -> None:
    inputs, geometry = make(name, 0, torch.float32, torch.float32)
    check(inputs, geometry, 0, relu=True)


@pytest.mark.parametrize("dim", [1, 2, None])
@pytest.mark.parametrize("name", ["1d strided groups", "2d", "transposed groups", "transposed 1d", "depthwise 1d"])
def test_every_dimension(name: str, dim: int | None) -> None:
    inputs, geometry = make(name, dim, torch.float32, torch.float32)
    check(inputs, geometry, dim, relu=True)


@each_dtype
@pytest.mark.parametrize("name", ["1d strided groups", "transposed 1d", "depthwise 1d"])
def test_every_dtype(name: str, dtype: torch.dtype, weights: torch.dtype) -> None:
    for dim in (0, 1, None):
        inputs, geometry = make(name, dim, dtype, weights)
        check(inputs, geometry, dim, relu=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["many channels", "transposed many channels"])
def test_every_tile(name: str, dtype: torch.dtype) -> None:
    inputs, geometry = make(name, 0, dtype, dtype)
    for tile in tiles(dtype):
        check(inputs, geometry, 0, False, Plan("norms first", tile))


@pytest.mark.parametrize("name", ["2d", "1d strided groups", "transposed 1d", "3d"])
def test_weight_gradient_in_shares(name: str) -> None:
    inputs, geometry = make(name, 0, torch.float32, torch.float32)
    plan = Plan("norms first", min(tiles(torch.float32), key=lambda tile: tile.k), 3)
    _, once = check(inputs, geometry, 0, True, plan)
    assert once[1] is not None


@pytest.mark.parametrize("name", ["2d strided dilated", "transposed 2d", "depthwise", "3d"])
def test_channels_last(name: str) -> None:
    """Read and written without a copy: the output and the gradients have the input's and the weight's order.

    The compiler goes by what torch's own convolution does, which on a CPU writes three dimensions contiguously.
    """
    inputs, geometry = make(name, 0, torch.float32, torch.float32)
    format = torch.channels_last if inputs[0].ndim == 4 else torch.channels_last_3d
    inputs[:2] = [t.contiguous(memory_format=format) for t in inputs[:2]]
    y, (dx, dv, _, _) = check(inputs, geometry, 0, relu=True)
    assert y.stride() == torch.convolution(inputs[0], inputs[1], None, *geometry).stride()
    assert y.is_contiguous(memory_format=format) or (y.ndim == 5 and DEVICE.type == "cpu")
    assert dx is not None and dx.stride() == inputs[0].stride()
    assert dv is not None and dv.stride() == inputs[1].stride()


def test_strided_and_expanded_tensors() -> None:
    (x, v, g, b), geometry = make("2d", 0, torch.float32, torch.float32)
    spread = torch.randn(2, 5, 7, 16, device=DEVICE)[..., ::2]
    turned = v.transpose(0, 1).contiguous().transpose(0, 1)
    check([spread, v, g, b], geometry, 0, relu=False)
    check([x, turned, g, b], geometry, 0, relu=False)
    y, norms = run_conv.forward(x, v, g, b, geometry, 0, 0.0, False)
    dy = torch.ones((), device=DEVICE).expand(y.shape)
    own = run_conv.backward(dy, x, v, g, norms, None, geometry, 0, ALL)
    wanted = formulas.convolution_backward(*wide(dy, x, v, g, norms, None), *geometry, 0, 0.0, ALL)
    assert_all_close(own, wanted, torch.float32)


@pytest.mark.parametrize("size", [1e-30, 1e30])
@pytest.mark.parametrize("name", ["2d", "transposed 1d", "depthwise 1d"])
def test_extreme_norms_and_zero_rows(name: str, size: float) -> None:
    inputs, geometry = make(name, 0, torch.float32, torch.float32)
    inputs[1] *= size
    inputs[1][::3] = 0.0
    _, (_, dv, dg, _) = check(inputs, geometry, 0, relu=False)
    assert dv is not None and dg is not None
    assert not dv[::3].any() and not dg[::3].any()


@pytest.mark.parametrize("mask", [[i == j for i in range(4)] for j in range(4)], ids=["dx", "dv", "dg", "db"])
def test_only_what_is_asked_for(mask: list[bool]) -> None:
    for name, dim in (("1d", 0), ("transposed 1d", 0), ("1d", 1), ("depthwise 1d", 0)):
        inputs, geometry = make(name, dim, torch.float32, torch.float32)
        check(inputs, geometry, dim, True, mask=mask)


def test_the_same_bits_twice() -> None:
    for name in ("1d strided groups", "transposed 1d", "depthwise 1d"):
        (x, v, g, b), geometry = make(name, 0, torch.float32, torch.float32)
        first = run_conv.forward(x, v, g, b, geometry, 0, 0.0, True)
        for a, again in zip(first, run_conv.forward(x, v, g, b, geometry, 0, 0.0, True), strict=True):
            assert torch.equal(a, again)
        arguments = (torch.randn_like(first[0]), x, v, g, first[1], first[0], geometry, 0, ALL)
        for a, again in zip(run_conv.backward(*arguments), run_conv.backward(*arguments), strict=True):
            assert a is not None and again is not None and torch.equal(a, again)


def test_addresses_of_64_bits_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (run_conv, run_rows):
        monkeypatch.setattr(module, "index64", lambda *tensors: True)
    for name in ("1d strided groups", "transposed 1d", "depthwise 1d", "transposed depthwise"):
        inputs, geometry = make(name, 0, torch.float32, torch.float32)
        check(inputs, geometry, 0, relu=True)


def test_vendor_path() -> None:
    plan = Plan("vendor", tiles(torch.float32)[0])
    for name in ("1d", "many channels", "transposed 1d", "depthwise 1d"):
        for dim in (0, 1, 2, None):
            inputs, geometry = make(name, dim, torch.float32, torch.float32)
            check(inputs, geometry, dim, True, plan)
    inputs, geometry = make("many channels", 0, torch.float64, torch.float64)
    check(inputs, geometry, 0, relu=True)


@pytest.mark.parametrize("relu", [False, True])
def test_images_one_pixel_wide(relu: bool) -> None:
    """A dimension of size 1 may have any step, and a turned gradient has another one than torch's own tensors."""
    x, v, b = tensors(((2, 3, 5, 1), torch.float32), ((4, 3, 1, 1), torch.float32), ((4,), torch.float32))
    geometry = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    y, norms = run_conv.forward(x, v, gains(v, 0), b, geometry, 0, 0.0, relu)
    dy = torch.randn(2, 4, 1, 5, device=DEVICE).transpose(2, 3)
    assert dy.stride(-1) == 5
    own = run_conv.backward(dy, x, v, gains(v, 0), norms, y if relu else None, geometry, 0, ALL)
    wanted = torch.where(y > 0, dy, 0.0) if relu else dy
    assert_close(own[3].cpu(), wanted.double().sum((0, 2, 3)).cpu(), what="db")


def test_vendor_and_kernels_side_by_side() -> None:
    """A tuner may find one faster for dx and the other for dW."""
    vendor, kernels = Plan("vendor", tiles(torch.float32)[0]), Plan("norms first", tiles(torch.float32)[0])
    (x, v, g, _), geometry = make("2d", 0, torch.float32, torch.float32)
    y, norms = formulas.convolution(x, v, g, None, *geometry, 0, 0.0, True)
    dy = torch.randn_like(y)
    wanted = run_conv.backward(dy, x, v, g, norms, y, geometry, 0, ALL, (kernels, kernels))
    for plans in ((vendor, kernels), (kernels, vendor)):
        own = run_conv.backward(dy, x, v, g, norms, y, geometry, 0, ALL, plans)
        assert_all_close(own, wide(*wanted), torch.float32)


@pytest.mark.parametrize("name", ["2d", "transposed 2d"])
def test_empty_batch(name: str) -> None:
    (x, v, g, b), geometry = make(name, 0, torch.float32, torch.float32)
    y, norms = run_conv.forward(x[:0], v, g, b, geometry, 0, 0.0, True)
    dx, dv, dg, db = run_conv.backward(y, x[:0], v, g, norms, y, geometry, 0, ALL)
    assert dx is not None and dx.shape == (0, *x.shape[1:])
    assert not any(t.any() for t in (dv, dg, db) if t is not None)
