"""The forms of a linear layer's backward in Triton: few rows, the gain before or inside dx's loop, float16's guard."""

import pytest
import torch
from torch import Tensor

from tests.support.triton_cases import DEVICE, DTYPE_IDS, DTYPES, assert_all_close, gains, tensors, tiles, wide
from wnfused.kernels.triton import prepare, run_linear_backward
from wnfused.kernels.triton.rules import Plan
from wnfused.kernels.triton.tiles import FEW_ROWS, tiles_for
from wnfused.ops import reference as formulas

Shape = tuple[int, int, int]
Results = tuple[Tensor | None, ...]
each_dtype = pytest.mark.parametrize(("dtype", "weights"), DTYPES, ids=DTYPE_IDS)
ALL = [True] * 4


def make(shape: Shape, dtype: torch.dtype = torch.float32, weights: torch.dtype = torch.float32) -> list[Tensor]:
    m, k, n = shape
    x, v, b = tensors(((m, k), dtype), ((n, k), weights), ((n,), weights))
    return [x, v, gains(v, 0), b]


def plans(dtype: torch.dtype, dx: str, dw: str) -> tuple[Plan, Plan]:
    few = tiles_for("few_rows", "sm_80", "fp32" if dtype == torch.float32 else "16-bit")[0]
    return Plan(dx, tiles(dtype)[0]), Plan(dw, few if dw == "few rows" else tiles(dtype)[0])


def run(
    inputs: list[Tensor], how: tuple[Plan, Plan] | None, relu: bool = False, biased: bool = True,
    mask: list[bool] = ALL, dy: Tensor | None = None,
) -> Results:  # fmt: skip
    """The gradients, after comparing them with those of the formulas in float64."""
    x, v, g, b = inputs
    y, norms = formulas.linear(x, v, g, b if biased else None, 0, 0.0, relu)
    dy = torch.randn_like(y) if dy is None else dy
    saved = y if relu else None
    own = run_linear_backward.backward(dy, x, v, g, norms.float(), saved, 0, biased, mask, how)
    dy_wide, x_wide, v_wide, g_wide, y_wide = wide(dy, x, v, g, saved)
    wanted = formulas.linear_backward(dy_wide, x_wide, v_wide, g_wide, None, y_wide, 0, 0.0, biased, mask)
    assert_all_close(own, wanted, x.dtype)
    return own


@each_dtype
@pytest.mark.parametrize("relu", [False, True])
def test_few_rows(relu: bool, dtype: torch.dtype, weights: torch.dtype) -> None:
    """Neither rows nor columns divide the tile; a row of zeros has no gradient, a gain of 0 has one of its own."""
    inputs = make((5, 150, 45), dtype, weights)
    inputs[1][4] = 0.0
    inputs[2][7] = 0.0
    _, dv, dg, _ = run(inputs, plans(dtype, "scaled first", "few rows"), relu)
    assert dv is not None and dg is not None
    assert not dv[[4, 7]].any() and not dg[4].any()
    assert dg[7].any() or relu


@pytest.mark.parametrize("shape", [(1, 40, 20), (5, 1, 20), (5, 40, 1), (1, 1, 1), (FEW_ROWS, 128, 32)], ids=str)
def test_edges_of_few_rows(shape: Shape) -> None:
    how, inputs = plans(torch.float32, "scaled first", "few rows"), make(shape)
    run(inputs, how, relu=True, mask=[True, shape[1] > 1, True, True])
    if shape[1] == 1:  # a row of one number has no direction to turn in
        x, v, g, _ = inputs
        dy = torch.randn(shape[0], shape[2], device=DEVICE)
        _, dv, *_ = run_linear_backward.backward(dy, x, v, g, v.abs(), None, 0, True, ALL, how)
        assert dv is not None and dv.abs().max() <= 1e-6 * (dy.t() @ x * g / v).abs().max()


def test_few_rows_are_the_rule_s_choice_for_small_batches() -> None:
    for rows, mode in ((FEW_ROWS, "few rows"), (FEW_ROWS + 1, "two steps")):
        x, v, *_ = make((rows, 64, 64))
        assert run_linear_backward.backward_plans(x, v)[1].mode == mode


@pytest.mark.parametrize("mask", [[i == j for i in range(4)] for j in range(4)], ids=["dx", "dv", "dg", "db"])
def test_few_rows_compute_only_what_is_asked_for(mask: list[bool]) -> None:
    run(make((3, 20, 33)), plans(torch.float32, "scaled first", "few rows"), relu=True, mask=mask)


@pytest.mark.parametrize("size", [1e-30, 1e-20, 1e20, 1e30])
@pytest.mark.parametrize(("dx", "dw"), [("scaled first", "few rows"), ("in registers", "two steps")])
def test_extreme_norms(size: float, dx: str, dw: str) -> None:
    inputs = make((6, 70, 20))
    inputs[1] *= size
    inputs[1][::4] = 0.0
    _, dv, dg, _ = run(inputs, plans(torch.float32, dx, dw))
    assert not dv[::4].any() and not dg[::4].any()


@pytest.mark.parametrize("dw", ["few rows", "two steps"])
def test_strided_and_expanded_gradients(dw: str) -> None:
    inputs = make((6, 24, 18))
    spread = torch.randn(6, 36, device=DEVICE)[:, ::2]
    for dy in (torch.ones((), device=DEVICE).expand(6, 18), spread, torch.randn(1, 18, device=DEVICE).expand(6, 18)):
        run(inputs, plans(torch.float32, "scaled first", dw), dy=dy)


@each_dtype
def test_the_gain_before_and_inside_the_loop(dtype: torch.dtype, weights: torch.dtype) -> None:
    """Every tile; what both round alike is the same bit for bit."""
    for tile in tiles(dtype):
        inputs = make((19, 21, tile.k + 5), dtype, weights)
        dy = torch.randn(19, tile.k + 5, device=DEVICE).to(dtype)
        found = [
            run(inputs, (Plan(mode, tile), Plan("two steps", tile)), mask=mask, dy=dy)[0]
            for mode, mask in (("in registers", ALL), ("scaled first", ALL), ("scaled first", [True, *[False] * 3]))
        ]
        if dtype != torch.float16:
            assert all(torch.equal(found[0], other) for other in found[1:])


@pytest.mark.parametrize("weights", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("spread", [1.0, 1e3])
def test_float16_is_guarded(spread: float, relu: bool, weights: torch.dtype) -> None:
    """Gradients times scales would leave float16's range; where the scales lie far apart v's tile is scaled."""
    inputs = make((20, 30, 24), torch.float16, weights)
    x, v, g, b = inputs
    small = v * torch.logspace(0, -1, 24, base=spread, device=DEVICE, dtype=torch.float32)[:, None].to(weights) * 0.01
    dy = (torch.randn(20, 24, device=DEVICE) * 2e3).to(torch.float16)
    only_dx = [True, False, False, False]
    dx, *_ = run([x, small, g, b], plans(torch.float16, "scaled first", "two steps"), relu, mask=only_dx, dy=dy)
    assert dx is not None and dx.isfinite().all()


def factor_of(g: Tensor, norms: Tensor, mixed: bool = False) -> float:
    factor, db = torch.empty(1, device=DEVICE), torch.empty(len(g), device=DEVICE)
    dy = torch.zeros(1, len(g), device=DEVICE, dtype=torch.float16)
    prepare.prepare_gradient[(1,)](
        dy, None, g, norms, torch.empty_like(dy), factor, db, None, None, 1, len(g), len(g), 0, 1,
        MIXED=mixed, INDEX64=False, BLOCK_P=16, BLOCK_C=32,
    )  # fmt: skip
    return factor.item()


def test_the_common_factor_of_scales() -> None:
    ones = torch.ones(20, device=DEVICE)
    assert factor_of(ones, ones) == 2.0
    assert factor_of(-3 * ones, ones) == 4.0
    assert factor_of(ones, 2.0**20 * ones) == 2.0**-19
    assert factor_of(0 * ones, ones) == 1.0
    far = torch.linspace(1, 100, 20, device=DEVICE)
    assert factor_of(far, ones) == 0.0
    assert factor_of(far / 4, far) == 0.5  # zeros and equal scales lie together
    assert factor_of(ones, torch.where(far > 50, 0.0, 1.0)) == 2.0
    assert factor_of(ones, 1e6 * ones, mixed=True) == 0.0


@pytest.mark.parametrize("mask", [ALL, [True, False, False, True]], ids=["all", "dx and db"])
def test_many_rows_are_passed_over_in_parts(mask: list[bool]) -> None:
    rows = 2 * run_linear_backward.ROWS_PER_PART + 50
    run(make((rows, 8, 40)), plans(torch.float32, "scaled first", "two steps"), relu=True, mask=mask)


def test_one_pass_is_for_layers_whose_rows_a_program_can_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    original = run_linear_backward._one_pass
    monkeypatch.setattr(run_linear_backward, "_one_pass", lambda *args: (taken.append(1), original(*args))[1])
    for rows in (run_linear_backward.ROWS_IN_ONE_PASS, run_linear_backward.ROWS_IN_ONE_PASS + 1):
        how = plans(torch.float32, "scaled first", "two steps")
        run(make((rows, 8, 20)), how, relu=True, biased=False, mask=[True, True, True, False])
    assert len(taken) == 1


@pytest.mark.parametrize(("dx", "dw"), [("vendor", "two steps"), ("scaled first", "vendor"), ("vendor", "vendor")])
def test_vendor_and_kernels_side_by_side(dx: str, dw: str) -> None:
    """A tuner may find one faster for dx and the other for dW."""
    for mask in (ALL, [True, False, True, False]):
        run(make((20, 30, 24)), plans(torch.float32, dx, dw), relu=True, mask=mask)


@each_dtype
@pytest.mark.parametrize("dw", ["few rows", "two steps"])
def test_the_same_bits_twice(dw: str, dtype: torch.dtype, weights: torch.dtype) -> None:
    inputs = make((7, 50, 20), dtype, weights)
    dy = torch.randn(7, 20, device=DEVICE).to(dtype)
    how = plans(dtype, "scaled first", dw)
    for a, again in zip(run(inputs, how, dy=dy), run(inputs, how, dy=dy), strict=True):
        assert a is not None and again is not None and torch.equal(a, again)


def test_few_rows_keep_the_digits_of_a_small_dot() -> None:
    """With float32 weights under bfloat16, v/n goes in two parts: rounded to one, dg would be off by its own size."""
    x, v, g, b = make((4, 256, 8), torch.bfloat16, torch.float32)
    dy = torch.randn(4, 8, device=DEVICE).to(torch.bfloat16)
    dw = (dy.double().t() @ x.double()).float()
    v = v - (v * dw).sum(1, keepdim=True) / dw.square().sum(1, keepdim=True) * dw * 0.999  # nearly orthogonal to dW
    _, _, dg, _ = run([x, v, g, b], plans(torch.bfloat16, "scaled first", "few rows"), dy=dy)
    _, _, wanted, _ = formulas.linear_backward(*wide(dy, x, v, g), None, None, 0, 0.0, True, ALL)
    once = (v / v.norm(dim=1, keepdim=True)).to(torch.bfloat16)
    rounded = (dy.double() * (x.double() @ once.double().t())).sum(0)[:, None]

    def error(found: Tensor) -> float:
        return float((found.double().cpu() - wanted).norm() / wanted.norm())

    assert error(dg) < 0.02 < 0.2 < error(rounded)
