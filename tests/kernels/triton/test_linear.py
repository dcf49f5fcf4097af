"""The Triton kernels of linear layers: every mode, tile and dtype against the plain formulas in float64."""

import pytest
import torch
from torch import Tensor

from tests.support.reference import assert_close
from tests.support.triton_cases import DEVICE, DTYPE_IDS, DTYPES, assert_all_close, gains, tensors, tiles, wide
from wnfused.kernels.triton import run_linear, run_linear_backward, run_rows
from wnfused.kernels.triton.rules import Plan
from wnfused.ops import reference as formulas

Shape = tuple[int, int, int]
each_dtype = pytest.mark.parametrize(("dtype", "weights"), DTYPES, ids=DTYPE_IDS)
ALL = [True] * 4


def make(shape: Shape, dim: int | None, dtype: torch.dtype, weights: torch.dtype) -> list[Tensor]:
    m, k, n = shape
    x, v, b = tensors(((m, k), dtype), ((n, k), weights), ((n,), weights))
    return [x, v, gains(v, dim), b]


def check_forward(inputs: list[Tensor], dim: int | None, relu: bool, plan: Plan | None, eps: float = 0.0) -> Tensor:
    x, v, g, b = inputs
    y, norms = run_linear.forward(x, v, g, b, dim, eps, relu, plan=plan)
    y_wide, norms_wide = formulas.linear(*wide(*inputs), dim, eps, relu)
    assert_close(y.cpu(), y_wide, what="y")
    assert_close(norms.cpu(), norms_wide, what="norms")
    return norms


def check_backward(
    inputs: list[Tensor], dim: int | None, relu: bool, plan: Plan | None, mask: list[bool] = ALL, biased: bool = True
) -> tuple[Tensor | None, ...]:
    x, v, g, b = inputs
    y, norms = formulas.linear(x, v, g, b if biased else None, dim, 0.0, relu)
    dy = torch.randn_like(y)
    saved = y if relu else None
    plans = None if plan is None else (plan, plan)
    own = run_linear_backward.backward(dy, x, v, g, norms.float(), saved, dim, biased, mask, plans)
    dy_wide, x_wide, v_wide, g_wide, y_wide = wide(dy, x, v, g, saved)
    wanted = formulas.linear_backward(dy_wide, x_wide, v_wide, g_wide, None, y_wide, dim, 0.0, biased, mask)
    assert_all_close(own, wanted, x.dtype)
    return own


@each_dtype
@pytest.mark.parametrize(("mode", "splits"), [("norms first", 1), ("single pass", 1), ("single pass", 3)])
def test_forward_with_every_tile(mode: str, splits: int, dtype: torch.dtype, weights: torch.dtype) -> None:
    for tile in tiles(dtype):
        check_forward(make((19, 2 * tile.k + 9, 67), 0, dtype, weights), 0, False, Plan(mode, tile, splits))


@each_dtype
def test_backward_with_every_tile(dtype: torch.dtype, weights: torch.dtype) -> None:
    for tile in tiles(dtype):
        inputs = make((2 * tile.k + 5, 21, 67), 0, dtype, weights)
        check_backward(inputs, 0, False, Plan("norms first", tile, 1))
        check_backward(inputs, 0, False, Plan("norms first", tile, 3), mask=[False, True, True, True])


@each_dtype
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("dim", [0, 1, None])
def test_dimensions_and_options(dim: int | None, relu: bool, dtype: torch.dtype, weights: torch.dtype) -> None:
    inputs = make((37, 50, 70), dim, dtype, weights)
    check_forward(inputs, dim, relu, None, eps=1e-3)
    check_backward(inputs, dim, relu, None)


@pytest.mark.parametrize("shape", [(1, 40, 20), (5, 1, 20), (5, 40, 1), (1, 1, 1), (64, 64, 64), (16, 32, 64)], ids=str)
def test_edges(shape: Shape) -> None:
    for dim in (0, 1, None):
        inputs = make(shape, dim, torch.float32, torch.float32)
        check_forward(inputs, dim, True, None)
    check_forward(
        inputs := make(shape, 0, torch.float32, torch.float32), 0, True, Plan("norms first", tiles(torch.float32)[0])
    )
    x, v, g, b = inputs
    y, norms = run_linear.forward(x, v, g, b, 0, 0.0, False)
    dx, dv, dg, db = run_linear_backward.backward(torch.ones_like(y), x, v, g, norms, None, 0, True, ALL)
    assert all(a is not None and a.shape == t.shape for a, t in zip((dx, dv, dg, db), inputs, strict=True))
    assert_close(db.cpu(), torch.full((shape[2],), float(shape[0]), dtype=torch.float64))


@pytest.mark.parametrize("mask", [[i == j for i in range(4)] for j in range(4)], ids=["dx", "dv", "dg", "db"])
def test_only_requested_gradients(mask: list[bool]) -> None:
    for dim in (0, 1):
        check_backward(make((9, 20, 33), dim, torch.float32, torch.float32), dim, True, None, mask)


@each_dtype
def test_one_pass(dtype: torch.dtype, weights: torch.dtype) -> None:
    """With a fused ReLU and no bias, one kernel computes dv and dg; a gain of 0 and a row of zeros are exact."""
    inputs = make((40, 21, 67), 0, dtype, weights)
    inputs[2][3] = 0.0
    inputs[1][5] = 0.0
    _, dv, dg, _ = check_backward(inputs, 0, True, None, [True, True, True, False], biased=False)
    assert dv is not None and dg is not None
    assert not dv[[3, 5]].any() and not dg[[3, 5]].any()


def test_one_pass_is_not_used_for_layers_with_a_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    """y − b has lost the digits that dg needs: with a large bias one pass would be wrong; the layer's result is not."""
    inputs = make((40, 21, 67), 0, torch.float32, torch.float32)
    inputs[3] += 1e4
    x, v, g, b = inputs
    y, norms = formulas.linear(x, v, g, b, 0, 0.0, True)
    dy = torch.randn_like(y)
    wanted = formulas.linear_backward(*wide(dy, x, v, g, None, y), 0, 0.0, True, ALL)
    guarded = run_linear_backward.backward(dy, x, v, g, norms, y, 0, True, ALL)
    assert_all_close(guarded, wanted, torch.float32)
    careless = run_linear_backward.backward(dy, x, v, g, norms, y, 0, False, [False, True, True, False])
    with pytest.raises(AssertionError, match="dg"):
        assert_close(careless[2].cpu(), wanted[2], what="dg")


@pytest.mark.parametrize("size", [1e-30, 1e-20, 1e20, 1e30])
@pytest.mark.parametrize(("mode", "splits"), [("norms first", 1), ("single pass", 1), ("single pass", 3)])
def test_extreme_norms_and_zero_rows(size: float, mode: str, splits: int) -> None:
    x, v, g, b = make((6, 70, 20), 0, torch.float32, torch.float32)
    v *= size
    v[::4] = 0.0
    plan = Plan(mode, tiles(torch.float32)[0], splits)
    y, norms = run_linear.forward(x, v, g, b, 0, 0.0, False, plan=plan)
    y_wide, _ = formulas.linear(*wide(x, v, g, b), 0, 0.0, False)
    assert_close(y.cpu(), y_wide)
    own = run_linear_backward.backward(torch.ones_like(y), x, v, g, norms, None, 0, True, ALL, (plan, plan))
    ones = torch.ones_like(y_wide)
    wanted = formulas.linear_backward(ones, *wide(x, v, g), None, None, 0, 0.0, True, ALL)
    assert_all_close(own, wanted, torch.float32)
    assert not own[1][::4].any() and not own[2][::4].any()


@each_dtype
def test_small_and_large_weights_in_sixteen_bits(dtype: torch.dtype, weights: torch.dtype) -> None:
    """float16 cannot hold every x·g/n, dy·g/n or float32 weight: the scale is applied elsewhere."""
    for size in (1e-6, 3e3) if weights == torch.float16 else (1e-6, 1e6):
        for dim in (0, 1, None):
            x, v, g, b = make((9, 30, 20), dim, dtype, weights)
            inputs = [x, v * size, g, b]
            check_forward(inputs, dim, False, None)
            own = check_backward(inputs, dim, False, None, [True, False, False, False])
            assert own[0] is not None and own[0].isfinite().all()


@each_dtype
def test_results_are_reproducible(dtype: torch.dtype, weights: torch.dtype) -> None:
    x, v, g, b = make((33, 150, 20), 0, dtype, weights)
    plan = Plan("single pass", tiles(dtype)[0], 4)
    first = run_linear.forward(x, v, g, b, 0, 0.0, True, plan=plan)
    for a, again in zip(first, run_linear.forward(x, v, g, b, 0, 0.0, True, plan=plan), strict=True):
        assert torch.equal(a, again)
    arguments = (torch.randn_like(first[0]), x, v, g, first[1], first[0], 0, True, ALL, (plan, plan))
    for a, again in zip(
        run_linear_backward.backward(*arguments), run_linear_backward.backward(*arguments), strict=True
    ):
        assert a is not None and again is not None and torch.equal(a, again)


def test_64_bit_addresses_give_the_same_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels for tensors beyond 2³¹ elements, run on small ones."""
    inputs = make((33, 50, 20), 0, torch.float32, torch.float32)
    near = run_linear.forward(*inputs, 0, 0.0, True)
    monkeypatch.setattr(run_linear, "index64", lambda *tensors: True)
    monkeypatch.setattr(run_linear_backward, "index64", lambda *tensors: True)
    monkeypatch.setattr(run_rows, "index64", lambda *tensors: True)
    far = run_linear.forward(*inputs, 0, 0.0, True)
    assert torch.equal(near[0], far[0])
    for plan in (None, Plan("norms first", tiles(torch.float32)[0], 3)):
        check_backward(inputs, 0, True, plan)
    check_backward(make((33, 50, 20), 1, torch.float32, torch.float32), 1, True, None)


def test_which_addresses_need_64_bits() -> None:
    assert not run_rows.index64(torch.empty(2**10, 2**10, device="meta"), None)
    assert run_rows.index64(torch.empty(2**16, 2**16, device="meta"))
    assert run_rows.index64(torch.empty(1, device="meta").expand(4, 2**40)[:, ::7].new_empty(2**31 + 1))


def test_strided_and_expanded_tensors() -> None:
    x, v, g, b = make((6, 24, 18), 0, torch.float32, torch.float32)
    spread, turned = torch.randn(6, 48, device=DEVICE)[:, ::2], v.t().contiguous().t()
    for inputs in ([spread, v, g, b], [x, turned, g, b], [x[:1].expand(6, 24), v, g, b]):
        norms = check_forward(inputs, 0, False, None)
        dy = torch.ones((), device=DEVICE).expand(6, 18)
        own = run_linear_backward.backward(dy, *inputs[:3], norms, None, 0, True, ALL)
        wanted = formulas.linear_backward(*wide(dy, *inputs[:3], norms, None), 0, 0.0, True, ALL)
        assert_all_close(own, wanted, torch.float32)


def test_empty_batch() -> None:
    x, v, g, b = make((0, 24, 18), 0, torch.float32, torch.float32)
    y, norms = run_linear.forward(x, v, g, b, 0, 0.0, True)
    assert y.shape == (0, 18)
    dx, dv, dg, db = run_linear_backward.backward(y, x, v, g, norms, y, 0, True, ALL)
    assert dx is not None and dx.shape == x.shape
    assert not any(t.any() for t in (dv, dg, db) if t is not None)


@pytest.mark.parametrize(("scale", "size"), [(2e6, 1e32), (1e-7, 1e-33), (1e30, 1e30), (1e-30, 1e-25)])
@pytest.mark.parametrize("mode", ["norms first", "single pass"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_extreme_norms_with_extreme_inputs(mode: str, scale: float, size: float, dtype: torch.dtype) -> None:
    """Tiles with such a row are summed again, with v scaled before it meets x: x·v is out of float32's range."""
    x, v, g, b = make((20, 70, 80), 0, dtype, torch.float32)
    v[::7] *= scale
    check_forward([x * size, v, g, torch.zeros_like(b)], 0, False, Plan(mode, tiles(dtype)[-1]))


@pytest.mark.parametrize(("scale", "size"), [(2e6, 1e32), (1e30, 1e30)])
@pytest.mark.parametrize("splits", [1, 3])
def test_extreme_norms_with_large_gradients(scale: float, size: float, splits: int) -> None:
    """⟨dW, v⟩ is out of float32's range, ⟨dW, v/n⟩ is not."""
    x, v, g, _ = make((70, 20, 24), 0, torch.float32, torch.float32)
    v *= scale
    dy, norms = torch.randn(70, 24, device=DEVICE) * size, v.double().norm(dim=1, keepdim=True).float()
    plan = Plan("norms first", tiles(torch.float32)[0], splits)
    own = run_linear_backward.backward(dy, x, v, g, norms, None, 0, True, [False, True, True, False], (plan, plan))
    wanted = formulas.linear_backward(*wide(dy, x, v, g), None, None, 0, 0.0, True, [False, True, True, False])
    assert_all_close(own, wanted, torch.float32)
