"""weight_norm on every backend: every dim of weights of one to five dimensions, layouts, extremes, reproducibility."""

import math
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import wnfused
from tests.support.chosen_backends import BACKENDS
from tests.support.reference import assert_close, doubles, errors, gradients, normalized
from wnfused.functional import weight_norm
from wnfused.ops.reference import gain_shape

Shape = tuple[int, ...]

SHAPES = [(7,), (5, 9), (4, 3, 5), (3, 4, 2, 5), (3, 2, 4, 3, 2)]
EVERY = [(shape, dim) for shape in SHAPES for dim in (*range(len(shape)), None)]
# Larger than one thread or one segment: [outer, rows, inner] as the native kernels view v.
LARGE = [
    ((37, 1500), 0),  # rows
    ((1500, 37), 1),  # many columns per part
    ((19, 30, 101), 1),  # rows that are not contiguous
    ((9001,), None),  # segments, the last one short
    ((130, 9, 50), None),
    ((50000, 1), 1),  # one row, one element at a time
    ((1, 40000), 0),
]
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def make(shape: Shape, dim: int | None, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    v, g = torch.randn(shape), torch.rand(gain_shape(shape, dim)) + 0.5
    return v.to(dtype).requires_grad_(), g.to(dtype).requires_grad_()


def gradient_of(w_wide: Tensor) -> Tensor:
    """A random gradient correlated with w, so that dg = <dw, u> is not a sum of thousands of terms that cancel."""
    w = w_wide.detach()
    return torch.randn_like(w) + w / w.square().mean().sqrt()


def check_against_float64(v: Tensor, g: Tensor, dim: int | None, eps: float = 0.0) -> None:
    before = v.detach().clone(), g.detach().clone()
    w = weight_norm(v, g, dim, eps)
    wide = doubles(v, g)
    w_wide = normalized(*wide, dim, eps)
    assert w.dtype == v.dtype
    assert_close(w, w_wide, what="w")
    dw = gradient_of(w_wide).to(v.dtype)
    kept = dw.clone()
    (dv, dg), (dv_wide, dg_wide) = gradients(w, [v, g], dw), gradients(w_wide, wide, dw.double())
    # dv = (g / n) (dw - c u), and c = dg: the subtracted terms are about dw and c in size
    terms = (dv_wide.abs().max() + (dg_wide * wide[1] / norms(wide[0], dim)).abs().max()).item()
    assert_close(dv, dv_wide, what="dv", terms=terms)
    assert_close(dg, dg_wide, what="dg")
    assert torch.equal(v, before[0]) and torch.equal(g, before[1]) and torch.equal(dw, kept)


def norms(v: Tensor, dim: int | None) -> Tensor:
    dims = [d for d in range(v.ndim) if d != dim]
    return (
        (v.detach().square().sum(dims) if dims else v.detach().abs().square()).sqrt().reshape(gain_shape(v.shape, dim))
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("shape", "dim"), EVERY)
def test_values_and_gradients(backend: str, shape: Shape, dim: int | None, dtype: torch.dtype) -> None:
    check_against_float64(*make(shape, dim, dtype), dim)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("shape", "dim"), LARGE)
def test_large_weights(backend: str, shape: Shape, dim: int | None, dtype: torch.dtype) -> None:
    check_against_float64(*make(shape, dim, dtype), dim)


@pytest.mark.parametrize(("shape", "dim"), EVERY)
def test_equals_torch(backend: str, shape: Shape, dim: int | None) -> None:
    v, g = (t.detach() for t in make(shape, dim))
    own = weight_norm(v, g, dim)
    assert_close(own, torch._weight_norm(v, g, -1 if dim is None else dim))
    assert not errors(torch.zeros_like(own), own)[0] < 1  # zeros would not pass


@pytest.mark.parametrize("eps", [1e-12, 1e-3, 10.0])
def test_eps(backend: str, eps: float) -> None:
    for shape, dim in EVERY:
        check_against_float64(*make(shape, dim), dim, eps)


@given(
    shape=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    data=st.data(),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    name=st.sampled_from(BACKENDS),
)
def test_any_shape_and_order(shape: list[int], data: st.DataObject, dtype: torch.dtype, name: str) -> None:
    dim = data.draw(st.sampled_from([*range(len(shape)), None]))
    order = data.draw(st.permutations(range(len(shape))))
    v, g = make(tuple(shape), dim, dtype)
    v = v.detach().permute(*order).contiguous().permute(*torch.tensor(order).argsort().tolist()).requires_grad_()
    with wnfused.backend(name):
        check_against_float64(v, g, dim)


LAYOUTS = {
    "transposed": torch.randn(9, 6).t(),
    "permuted": torch.randn(4, 5, 6).permute(2, 0, 1),
    "rows outermost": torch.randn(6, 4, 5).transpose(1, 2),
    "channels last": torch.randn(5, 6, 3, 3).to(memory_format=torch.channels_last),
    "channels last 3d": torch.randn(5, 6, 2, 3, 2).to(memory_format=torch.channels_last_3d),
    "every other row": torch.randn(12, 9)[::2],
    "every other column": torch.randn(6, 18)[:, ::2],
    "sliced and permuted": torch.randn(5, 6, 7).permute(2, 0, 1)[:, ::2],
    "sliced and transposed": torch.randn(18, 6).t()[:, ::2],
    "expanded": torch.randn(6, 1).expand(6, 9),
    "expanded rows": torch.randn(9).expand(6, 9),
    "one element expanded": torch.randn(()).expand(6, 9),
    "offset": torch.randn(80)[3:57].view(6, 9),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(backend: str, layout: str) -> None:
    """Values are correct, and result and gradient have v's strides (without its gaps and repetitions)."""
    for dim in (0, 1, LAYOUTS[layout].ndim - 1, None):
        v = LAYOUTS[layout].detach().requires_grad_()
        _, g = make(tuple(v.shape), dim)
        check_against_float64(v, g, dim)
        w = weight_norm(v, g, dim)
        assert w.stride() == torch.empty_like(v).stride()
        assert gradients(w, [v, g], torch.randn_like(w))[0].stride() == torch.empty_like(v).stride()


@pytest.mark.parametrize("layout", ["expanded", "transposed", "strided"])
def test_layouts_of_the_gradient(backend: str, layout: str) -> None:
    dw = {
        "expanded": torch.ones(()).expand(6, 9),
        "transposed": torch.randn(9, 6).t(),
        "strided": torch.randn(6, 18)[:, ::2],
    }[layout]
    for dim in (0, 1, None):
        v, g = make((6, 9), dim)
        wide = doubles(v, g)
        own = gradients(weight_norm(v, g, dim), [v, g], dw)
        for a, b in zip(own, gradients(normalized(*wide, dim), wide, dw.double()), strict=True):
            assert_close(a, b)
        assert own[0].stride() == v.stride()


def test_strided_and_expanded_gain(backend: str) -> None:
    v, _ = make((6, 9), 0)
    for gain in (torch.rand(6, 4)[:, 1:2] + 0.5, torch.tensor(0.7).expand(6, 1)):
        check_against_float64(v, gain.detach().requires_grad_(), 0)


@pytest.mark.parametrize(
    "shape", [(0,), (0, 3), (3, 0), (0, 0), (2, 0, 3), (0, 2, 3), (2, 3, 0), (4, 0, 2, 3)], ids=str
)
def test_empty_weight(backend: str, shape: Shape) -> None:
    """torch's weight norm crashes on these."""
    for dim in (*range(len(shape)), None):
        v, g = make(shape, dim)
        w = weight_norm(v, g, dim)
        assert w.shape == shape
        dv, dg = gradients(w, [v, g], torch.ones_like(w))
        assert dv.shape == shape
        assert dg.shape == g.shape
        assert not dg.any()


def test_scalar(backend: str) -> None:
    """With one norm over one element, w is the gain times the sign of v, and the gradient of v is zero."""
    v, g = torch.tensor(-3.0, requires_grad=True), torch.tensor(2.0, requires_grad=True)
    w = weight_norm(v, g, None)
    assert w.item() == pytest.approx(-2)
    dv, dg = gradients(w, [v, g], torch.tensor(5.0))
    assert dv.item() == pytest.approx(0, abs=1e-6)
    assert dg.item() == pytest.approx(-5)


def rows_of(t: Tensor, dim: int | None, rows: slice) -> Tensor:
    return t if dim is None else t.movedim(dim, 0)[rows]


EVEN, ODD = slice(0, None, 2), slice(1, None, 2)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("shape", "dim"), [*EVERY, *LARGE[:5]])
def test_zero_rows(backend: str, shape: Shape, dim: int | None, dtype: torch.dtype) -> None:
    v, g = make(shape, dim, dtype)
    wide = doubles(v, g)
    with torch.no_grad():
        rows_of(v, dim, EVEN).zero_()
    w = weight_norm(v, g, dim)
    dw = torch.randn_like(w)
    dv, dg = gradients(w, [v, g], dw)
    for t in (w, dv, dg):
        assert not rows_of(t, dim, EVEN).any()  # NaN counts as True
    if dim is not None:
        w_wide = normalized(*wide, dim)
        assert_close(rows_of(w, dim, ODD), rows_of(w_wide, dim, ODD))
        assert rows_of(dv, dim, ODD).isfinite().all()
        assert rows_of(dg, dim, ODD).any()


def test_eps_gives_zero_rows_a_gradient(backend: str) -> None:
    v, g = torch.zeros(3, 4, requires_grad=True), torch.full((3, 1), 2.0, requires_grad=True)
    w = weight_norm(v, g, 0, 0.25)
    assert not w.any()
    dv, dg = gradients(w, [v, g], torch.ones_like(w))
    assert torch.equal(dv, torch.full_like(dv, 4.0))  # g / sqrt(eps)
    assert not dg.any()


@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1e-9, 1e9, 1e20, 1e30])
@pytest.mark.parametrize(("shape", "dim"), [*EVERY, *LARGE[:5]])
def test_extreme_norms(backend: str, shape: Shape, dim: int | None, scale: float) -> None:
    """Tiny or huge rows among ordinary ones; each kind is compared separately."""
    v, g = make(shape, dim)
    with torch.no_grad():
        rows_of(v, dim, EVEN).mul_(scale)
    wide = doubles(v, g)
    w, w_wide = weight_norm(v, g, dim), normalized(*wide, dim)
    assert_close(w, w_wide, what="w")
    dw = gradient_of(w_wide).float()
    (dv, dg), (dv_wide, dg_wide) = gradients(w, [v, g], dw), gradients(w_wide, wide, dw.double())
    terms = dg_wide * wide[1] / norms(wide[0], dim)
    for rows in (EVEN, ODD):
        size = rows_of(terms, dim, rows).abs().max().item()
        assert_close(rows_of(dv, dim, rows), rows_of(dv_wide, dim, rows), what="dv", terms=size)
        assert_close(rows_of(dg, dim, rows), rows_of(dg_wide, dim, rows), what="dg")


@pytest.mark.parametrize("dim", [0, 1, None])
def test_small_gradients_in_half_precision(backend: str, dim: int | None) -> None:
    """Their products with u are below float16's smallest number, but the sum dg is not."""
    v, g = make((300, 400), dim, torch.float16)
    wide = doubles(v, g)
    dw = (gradient_of(normalized(*wide, dim)) * 1e-5).half()
    own = gradients(weight_norm(v, g, dim), [v, g], dw)
    wanted = gradients(normalized(*wide, dim), wide, dw.double())
    assert_close(own[1], wanted[1], what="dg")


@pytest.mark.parametrize("dim", [0, 1, 2, None])
def test_nan_and_infinity_stay_visible(backend: str, dim: int | None) -> None:
    for bad in (math.nan, math.inf):
        v, g = make((4, 5, 6), dim)
        with torch.no_grad():
            v[1, 1, 1] = bad
        w = weight_norm(v, g, dim)
        assert w[1, 1, 1].isnan()
        if dim is not None:
            assert rows_of(w, dim, slice(2, None)).isfinite().all()


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("shape", "dim"), [*LARGE, ((300, 5, 70), 1), ((200000,), None)])
def test_results_do_not_depend_on_the_number_of_threads(shape: Shape, dim: int | None, dtype: torch.dtype) -> None:
    """Bit for bit with the native kernels, whose partial sums are split by size and not by thread."""
    v, g = make(shape, dim, dtype)
    dw = torch.randn(shape).to(dtype)
    results = []
    with wnfused.backend("native"):
        for count in (1, 2, 3, 2):
            torch.set_num_threads(count)
            w = weight_norm(v, g, dim)
            results.append([w, *gradients(w, [v, g], dw)])
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize(("shape", "dim"), LARGE)
def test_results_are_reproducible_bit_for_bit(backend: str, shape: Shape, dim: int | None) -> None:
    v, g = make(shape, dim)
    dw = torch.randn(shape)
    results = []
    for _ in range(3):
        w = weight_norm(v, g, dim)
        results.append([w, *gradients(w, [v, g], dw)])
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("shape", "dim"), [((64, 90), 0), ((64, 90), 1), ((3000, 16), 1), ((96, 80, 3, 3), 2), ((96, 80, 9), None)]
)
def test_no_less_accurate_than_torch(backend: str, shape: Shape, dim: int | None, dtype: torch.dtype) -> None:
    """Errors of w, dv and dg against float64, averaged over draws, are no larger than torch's in the same dtype."""
    totals = torch.zeros(2, 3, 2, dtype=torch.float64)
    for seed in range(60):
        torch.manual_seed(seed)
        v, g = make(shape, dim, dtype)
        wide = doubles(v, g)
        w_wide = normalized(*wide, dim)
        dw = gradient_of(w_wide).to(dtype)
        wanted = [w_wide, *gradients(w_wide, wide, dw.double())]
        for i, w in enumerate((weight_norm(v, g, dim), torch._weight_norm(v, g, -1 if dim is None else dim))):
            for j, (own, want) in enumerate(zip([w, *gradients(w, [v, g], dw)], wanted, strict=True)):
                totals[i, j] += torch.tensor(errors(own, want), dtype=torch.float64)
    allowed = totals[1].nan_to_num(nan=math.inf) * 1.1  # torch overflows in float16
    assert (totals[0] <= allowed).all(), f"(largest, rms) of w, dv, dg: own {totals[0]}, torch {totals[1]}"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dim", [0, None])
def test_norms_of_16_bit_weights_are_not_rounded(backend: str, dtype: torch.dtype, dim: int | None) -> None:
    """With dim=None torch rounds the norm to the weight's dtype. Here no dim does, which is closer to the formula."""
    v, g = make((30, 41), dim, dtype)
    exact = normalized(*doubles(v, g), dim)
    own = errors(weight_norm(v, g, dim), exact)[1]
    assert own <= errors(torch._weight_norm(v, g, -1 if dim is None else dim), exact)[1] * 1.01
    assert own < torch.finfo(dtype).eps / 2
