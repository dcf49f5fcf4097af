"""wn_linear on every backend, compared with float64: values, gradients, layouts, extreme and empty inputs."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import wnfused
from tests.support.chosen_backends import BACKENDS
from tests.support.reference import assert_close, assert_gradients_close, doubles, errors, gradients, normalized
from wnfused.functional import wn_linear
from wnfused.ops.reference import gain_shape

DIMS = [0, 1, None]


def make(m: int, k: int, n: int, dim: int | None, dtype: torch.dtype, bias: bool = True) -> list[Tensor | None]:
    x, v, g = torch.randn(m, k), torch.randn(n, k), torch.rand(gain_shape((n, k), dim)) + 0.5
    tensors = [x, v, g, torch.randn(n) if bias else None]
    return [None if t is None else t.to(dtype).requires_grad_() for t in tensors]


def expected(x: Tensor, v: Tensor, g: Tensor, b: Tensor | None, dim: int | None, eps: float, relu: bool) -> Tensor:
    y = F.linear(x, normalized(v, g, dim, eps), b)
    return y.relu() if relu else y


def check_against_float64(inputs: list[Tensor | None], dim: int | None, eps: float = 0.0, relu: bool = False) -> None:
    x, v, g, b = inputs
    assert x is not None
    y = wn_linear(x, v, g, b, dim=dim, eps=eps, activation="relu" if relu else None)
    wide = doubles(*inputs)
    y_wide = expected(*wide, dim, eps, relu)
    assert y.dtype == x.dtype
    assert_close(y, y_wide, what="y")
    dy = torch.randn_like(y)
    if relu:  # near zero the two may have different signs; both are correct
        dy = dy * (y_wide.abs() > 0.05 * y_wide.abs().max()).to(dy.dtype)
    own, wanted = gradients(y, inputs, dy), gradients(y_wide, wide, dy.double())
    assert_gradients_close(own, wanted, wide[1], wide[2], dim)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("shape", [(1, 37, 23), (3, 64, 33), (8, 16, 130), (9, 50, 17), (40, 129, 65)], ids=str)
def test_values_and_gradients(backend: str, shape: tuple[int, int, int], dim: int | None, dtype: torch.dtype) -> None:
    check_against_float64(make(*shape, dim, dtype), dim)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("eps", [0.0, 1e-3])
@pytest.mark.parametrize("m", [2, 20])
def test_options(backend: str, m: int, eps: float, bias: bool, relu: bool) -> None:
    check_against_float64(make(m, 31, 18, 0, torch.float32, bias), 0, eps, relu)


@given(
    m=st.integers(1, 20),
    k=st.integers(1, 70),
    n=st.integers(1, 70),
    dim=st.sampled_from(DIMS),
    relu=st.booleans(),
    bias=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    name=st.sampled_from(BACKENDS),
)
def test_any_shape(
    m: int, k: int, n: int, dim: int | None, relu: bool, bias: bool, dtype: torch.dtype, name: str
) -> None:
    with wnfused.backend(name):
        check_against_float64(make(m, k, n, dim, dtype, bias), dim, relu=relu)


@pytest.mark.parametrize("m", [3, 40])
def test_large_weight_is_processed_in_blocks(m: int) -> None:
    with wnfused.backend("native"):
        check_against_float64(make(m, 1021, 2311, 0, torch.float32), 0)


@pytest.mark.parametrize("leading", [(), (0,), (2, 3), (2, 0, 3)], ids=str)
def test_leading_dimensions(backend: str, leading: tuple[int, ...]) -> None:
    _, v, g, b = make(1, 11, 7, 0, torch.float64)
    x = torch.randn(*leading, 11, dtype=torch.float64, requires_grad=True)
    y = wn_linear(x, v, g, b)
    wanted = F.linear(x, normalized(v, g, 0), b)
    assert_close(y, wanted)
    dy = torch.randn_like(y)
    inputs = [x, v, g, b]
    for own, want in zip(gradients(y, inputs, dy), gradients(wanted, inputs, dy), strict=True):
        assert_close(own, want)


@pytest.mark.parametrize(("k", "n"), [(0, 3), (3, 0), (0, 0)])
def test_empty_weight(backend: str, k: int, n: int) -> None:
    x, v, g = (torch.randn(*s, requires_grad=True) for s in ((2, k), (n, k), (n, 1)))
    b = torch.randn(n, requires_grad=True)
    y = wn_linear(x, v, g, b)
    assert torch.equal(y, b.expand(2, n))
    for own, like in zip(gradients(y, [x, v, g, b], torch.ones_like(y)), [x, v, g, b], strict=True):
        assert own.shape == like.shape
        assert not own.isnan().any()


@pytest.mark.parametrize("m", [2, 30])
@pytest.mark.parametrize("dim", DIMS)
def test_layouts(backend: str, m: int, dim: int | None) -> None:
    """With a transposed weight, strided input or expanded gradient, values are correct and gradients keep strides."""
    x, v, g, b = make(m, 24, 18, dim, torch.float32)
    assert x is not None and v is not None and g is not None
    strided_x = torch.randn(m, 48)[:, ::2].requires_grad_()
    turned_v = v.detach().t().contiguous().t().requires_grad_()
    y = wn_linear(strided_x, turned_v, g, b, dim=dim)
    wide = doubles(strided_x, turned_v, g, b)
    y_wide = expected(*wide, dim, 0.0, False)
    assert_close(y, y_wide)
    results = gradients(y, [strided_x, turned_v, g, b], torch.ones(()).expand_as(y))
    for own, want in zip(results, gradients(y_wide, wide, torch.ones_like(y_wide)), strict=True):
        assert_close(own, want)
    assert results[1].stride() == turned_v.stride()


def _row(t: Tensor, dim: int | None) -> Tensor:
    return t if dim is None else t.select(dim, 3)


@pytest.mark.parametrize("m", [1, 4, 20])
@pytest.mark.parametrize("dim", DIMS)
def test_zero_rows_give_zero_weight_and_gradients(backend: str, m: int, dim: int | None) -> None:
    x, v, g, b = make(m, 12, 10, dim, torch.float32)
    assert x is not None and v is not None and g is not None
    with torch.no_grad():
        _row(v, dim).zero_()
    y = wn_linear(x, v, g, b, dim=dim)
    dx, dv, dg, db = gradients(y, [x, v, g, b], torch.randn_like(y))
    for t in (y, dx, dv, dg, db):
        assert t.isfinite().all()
    assert not _row(dv, dim).any()
    assert not _row(dg, dim).any()
    if dim != 1:
        assert b is not None
        rows = y[:, 3] - b[3] if dim == 0 else y - b
        assert rows.abs().max() == 0


@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1e-9, 1e9, 1e20, 1e30])
@pytest.mark.parametrize("m", [1, 5, 20])
@pytest.mark.parametrize("dim", DIMS)
def test_extreme_norms(backend: str, scale: float, m: int, dim: int | None) -> None:
    x, v, g, b = make(m, 40, 30, dim, torch.float32)
    assert v is not None
    with torch.no_grad():
        if dim == 0:
            v[::2] *= scale
        else:
            v *= scale
    inputs = [x, v, g, b]
    y = wn_linear(*inputs, dim=dim)
    wide = doubles(*inputs)
    y_wide = expected(*wide, dim, 0.0, False)
    assert_close(y, y_wide)
    dy = torch.randn_like(y)
    own, wanted = gradients(y, inputs, dy), gradients(y_wide, wide, dy.double())
    for name, a, w in zip(["dx", "dg", "db"], [own[0], *own[2:]], [wanted[0], *wanted[2:]], strict=True):
        assert_close(a, w, what=name)
    rows = (
        [slice(0, None, 2), slice(1, None, 2)] if dim == 0 else [slice(None)]
    )  # their dv differ by orders of magnitude
    for part in rows:
        assert_close(own[1][part], wanted[1][part], what="dv")


@pytest.mark.parametrize(("scale", "size"), [(2e6, 1e32), (1e-7, 1e-33), (1e30, 1e30), (1e-30, 1e-25)])
@pytest.mark.parametrize("m", [1, 5, 20])
def test_extreme_norms_with_extreme_inputs(backend: str, scale: float, size: float, m: int) -> None:
    """x·v would overflow or underflow, while x times the normalized weight does neither."""
    x, v, g, b = make(m, 16, 12, 0, torch.float32)
    assert x is not None and v is not None and b is not None
    with torch.no_grad():
        v[::2] *= scale
        x *= size
        b.zero_()
    y_wide = expected(*doubles(x, v, g, b), 0, 0.0, False)
    assert_close(wn_linear(x, v, g, b), y_wide)


@pytest.mark.parametrize(("scale", "size"), [(2e6, 1e32), (1e30, 1e30), (1e9, 1e-20)])
@pytest.mark.parametrize("m", [1, 5, 20])
def test_extreme_norms_with_extreme_gradients(backend: str, scale: float, size: float, m: int) -> None:
    """<dw, v> would overflow, <dw, v/n> does not. (dv itself is g/n times dw: small norms are left out.)"""
    inputs = make(m, 16, 12, 0, torch.float32)
    with torch.no_grad():
        inputs[1][::2] *= scale
    y = wn_linear(*inputs)
    wide = doubles(*inputs)
    dy = torch.randn_like(y) * size
    own, wanted = gradients(y, inputs, dy), gradients(expected(*wide, 0, 0.0, False), wide, dy.double())
    for i, name in ((0, "dx"), (2, "dg")):
        assert_close(own[i], wanted[i], what=name)
    for rows in (slice(0, None, 2), slice(1, None, 2)):
        assert_close(own[1][rows], wanted[1][rows], what="dv")


def test_zero_gain(backend: str) -> None:
    inputs = make(20, 15, 9, 0, torch.float32)
    with torch.no_grad():
        inputs[2].zero_()
    check_against_float64(inputs, 0)


def test_nan_and_infinity_stay_visible(backend: str) -> None:
    for m in (2, 20):
        x, v, g, b = make(m, 6, 5, 0, torch.float32)
        with torch.no_grad():
            v[2, 1] = torch.nan
        y = wn_linear(x, v, g, b)
        assert y[:, 2].isnan().all()
        assert y[:, [0, 1, 3, 4]].isfinite().all()


@pytest.mark.parametrize("m", [2, 20])
def test_only_requested_gradients_are_computed(backend: str, m: int) -> None:
    """The backward operator returns the other gradients undefined."""
    x, v, g, b = (None if t is None else t.detach() for t in make(m, 9, 8, 0, torch.float32))
    y, norms = torch.ops.wnfused.linear(x, v, g, b, 0, 0.0, False)
    for requested in range(16):
        mask = [bool(requested & bit) for bit in (1, 2, 4, 8)]
        results = torch.ops.wnfused.linear_backward(torch.ones_like(y), x, v, g, norms, None, 0, 0.0, True, mask)
        assert [t is not None for t in results] == mask


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [(4, 64, 48), (32, 96, 64)], ids=str)
def test_no_less_accurate_than_torch(backend: str, shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    """Errors against float64, averaged over draws, are no larger than torch's in the same dtype."""
    totals = torch.zeros(2, 2, dtype=torch.float64)
    for seed in range(8):
        torch.manual_seed(seed)
        x, v, g, b = make(*shape, 0, dtype)
        y_own = wn_linear(x, v, g, b)
        y_torch = F.linear(x, torch._weight_norm(v, g, 0), b)
        wide = doubles(x, v, g, b)
        y_wide = expected(*wide, 0, 0.0, False)
        dy = torch.randn_like(y_own)
        wanted = [y_wide, *gradients(y_wide, wide, dy.double())]
        for i, y in enumerate((y_own, y_torch)):
            for own, want in zip([y, *gradients(y, [x, v, g, b], dy)], wanted, strict=True):
                totals[i] += torch.tensor(errors(own, want), dtype=torch.float64)
    assert (totals[0] <= totals[1] * 1.1).all(), f"(largest, rms) own {totals[0]}, torch {totals[1]}"
