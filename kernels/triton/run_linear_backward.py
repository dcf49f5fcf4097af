"""Launches of a linear layer's backward kernels, from tensors and plans: at most three.

With a norm per output there are three ways to compute dv and dg. *Few rows*: one kernel computes dW in registers.
*One pass*, for layers with a fused ReLU and no bias: y = g ⟨x, v/n⟩ wherever dy is nonzero, so that a pass over dy
computes ⟨dW, v/n⟩ = Σ dy·y / g, and the weight gradient's kernel writes dv directly. *Two steps*: first dW, then dv in
its place.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from wnfused.kernels.triton import few_rows, linear_backward, prepare, run_vendor, tune
from wnfused.kernels.triton.dtypes import linear_dtypes, precision
from wnfused.kernels.triton.launch import launch
from wnfused.kernels.triton.rules import Plan, Problem, cdiv
from wnfused.kernels.triton.run_finish import Gradients, added, finish_rows
from wnfused.kernels.triton.run_linear import matrix, problem_of, supported
from wnfused.kernels.triton.run_rows import Dim, index64, normalized, project
from wnfused.kernels.triton.tiles import with_mask

BLOCK_P, BLOCK_C = 64, 32  # rows and columns of dy that a preparing program processes at a time
ROWS_PER_PART, MOST_PARTS = 1024, 256  # rows per program; the most parts that are added later
# One pass needs sums over all rows before its GEMM: up to this many for each block of columns, which one program has.
ROWS_IN_ONE_PASS = 256


class _Prepared(NamedTuple):
    """The results of a pass over dy in parts of ``rows`` rows; ``factor`` is used only for float16."""

    scaled: Tensor | None
    factor: Tensor | None
    sums: Tensor | None  # [parts, N]
    rows: int = 1

    @property
    def wanted(self) -> bool:
        return self.scaled is not None or self.sums is not None


class _Layer(NamedTuple):
    """The saved tensors, as matrices whose rows are contiguous."""

    dy: Tensor  # [M, N]
    x: Tensor  # [M, K]
    v: Tensor  # [N, K]
    g: Tensor
    norms: Tensor
    y: Tensor | None  # [M, N], where a ReLU was fused
    dim: Dim

    @property
    def y_stride(self) -> int:
        return 0 if self.y is None else self.y.stride(0)

    @property
    def mixed(self) -> bool:
        return self.v.dtype != self.x.dtype

    @property
    def precision(self) -> str:
        return precision(linear_dtypes(self.x, self.v))


def input_gradient_gain(dy: Tensor, v: Tensor, dim: Dim) -> str | None:
    """Where g/n enters dx's GEMM unless dy was scaled before; None where w has to be written."""
    narrow = dy.dtype == torch.float16
    if dim == 0:
        return "weight" if narrow else "output"
    if narrow and v.dtype == torch.float32:
        return None if dim == 1 else "weight"
    return "input"


def backward(
    dy: Tensor, x: Tensor, v: Tensor, g: Tensor, norms: Tensor, y: Tensor | None, dim: Dim, biased: bool,
    mask: list[bool], plans: tuple[Plan, Plan] | None = None,
) -> Gradients:  # fmt: skip
    """(dx, dv, dg, db), as selected by the mask."""
    empty = dy.numel() == 0 or x.numel() == 0 or v.numel() == 0
    if empty or not supported(x, v):
        return run_vendor.linear_backward(dy, x, v, g, norms, y, dim, mask)
    dy = matrix(dy.to(x.dtype), v.shape[0])
    plans = plans or backward_plans(x, v, dy)
    return run_vendor.side_by_side(
        mask, plans,
        vendor=lambda asked: run_vendor.linear_backward(dy.view(*x.shape[:-1], -1), x, v, g, norms, y, dim, asked),
        kernels=lambda asked: _by_kernels(dy, x, v, g, norms, y, dim, biased, asked, *plans),
    )  # fmt: skip


def problems(x: Tensor, v: Tensor, dy: Tensor | None = None) -> tuple[Problem, Problem]:
    """Those of dx and dW; without dy, for one at an aligned address."""
    m, (n, k) = x.numel() // v.shape[1], v.shape
    both = problem_of("linear_dx", m, k, n, x, v), problem_of("linear_dw", n, k, m, x, v)
    if dy is None or (dy.data_ptr() % 16 == 0 and dy.stride(0) % 16 == 0):
        return both
    return both[0]._replace(aligned=False), both[1]._replace(aligned=False)


def backward_plans(x: Tensor, v: Tensor, dy: Tensor | None = None) -> tuple[Plan, Plan]:
    dx, dw = problems(x, v, dy)
    return tune.plan(dx, x.device), tune.plan(dw, x.device)


def _by_kernels(
    dy: Tensor, x: Tensor, v: Tensor, g: Tensor, norms: Tensor, y: Tensor | None, dim: Dim, biased: bool,
    mask: list[bool], dx_plan: Plan, dw_plan: Plan,
) -> Gradients:  # fmt: skip
    n, k = v.shape
    v = v if v.stride(1) == 1 or k == 1 else v.contiguous()
    saved = None if y is None else matrix(y, n)
    layer = _Layer(dy, matrix(x, k), v, g.contiguous(), norms, saved, dim)
    form = _form(layer, biased, mask, dw_plan)
    prepared = _room(layer, mask, form, dx_plan)
    dv = dg = db = scales = None
    if form == "two steps":
        scales = torch.empty_like(norms) if mask[0] and dim == 0 and prepared.scaled is None else None
        dv, dg, db = _two_steps(layer, mask, prepared, scales, dw_plan)
    elif form == "few rows":
        _prepare(layer, prepared, None, None)
        dv, dg = _few_rows(layer, mask, dw_plan)
    elif form == "one pass":
        dv, dg = _one_pass(layer, mask, prepared, dw_plan)
    else:
        _prepare(layer, prepared, None, None)
    if form != "two steps":
        db = added(prepared.sums)
    dx = _input_gradient(layer, prepared, scales, dx_plan).view(x.shape) if mask[0] else None
    return dx, dv, dg, db


def _form(layer: _Layer, biased: bool, mask: list[bool], plan: Plan) -> str | None:
    if not (mask[1] or mask[2]):
        return None
    if layer.dim == 0 and plan.mode == "few rows" and layer.dy.shape[0] <= plan.tile.m:
        return "few rows"
    # Shares of a sum over many rows are added by the second step; float16 cannot hold every dy·g/n that one pass reads.
    exact = layer.y is not None and not biased and layer.dim == 0 and layer.x.dtype != torch.float16
    m, n = layer.dy.shape
    short = m <= ROWS_IN_ONE_PASS * cdiv(n, BLOCK_C)
    return "one pass" if exact and short and plan.splits == 1 else "two steps"


def _room(layer: _Layer, mask: list[bool], form: str | None, dx_plan: Plan) -> _Prepared:
    """Memory for the results of a pass over dy: the scaled dy if it is needed, and the sums if db is requested."""
    dy, scaled, factor = layer.dy, None, None
    in_registers = dx_plan.mode == "in registers" and layer.y is None and form != "few rows"
    if form == "one pass" or (mask[0] and layer.dim == 0 and not in_registers):
        scaled = torch.empty(dy.shape, dtype=dy.dtype, device=dy.device)
        factor = layer.norms.new_empty(1) if dy.dtype == torch.float16 else None
    rows = dy.shape[0] if form == "one pass" else _rows_per_part(dy.shape[0])
    sums = layer.norms.new_empty((cdiv(dy.shape[0], rows), dy.shape[1])) if mask[3] else None
    return _Prepared(scaled, factor, sums, rows)


def _rows_per_part(m: int) -> int:
    return max(ROWS_PER_PART, cdiv(cdiv(m, MOST_PARTS), BLOCK_P) * BLOCK_P)


def _prepare(layer: _Layer, prepared: _Prepared, dots: Tensor | None, dg: Tensor | None) -> None:
    if not prepared.wanted:
        return
    dy, (m, n) = layer.dy, layer.dy.shape
    launch(
        prepare.prepare_gradient, (cdiv(n, BLOCK_C) * cdiv(m, prepared.rows),),
        dy, layer.y, layer.g, layer.norms, prepared.scaled, prepared.factor, prepared.sums, dots, dg,
        m, n, dy.stride(0), layer.y_stride, prepared.rows,
        MIXED=layer.mixed, INDEX64=index64(dy, layer.y, prepared.scaled), BLOCK_P=BLOCK_P, BLOCK_C=BLOCK_C,
    )  # fmt: skip


def _few_rows(layer: _Layer, mask: list[bool], plan: Plan) -> Gradients:
    dy, x, v, tile = layer.dy, layer.x, layer.v.contiguous(), plan.tile
    (m, n), k = dy.shape, v.shape[1]
    dv = torch.empty_like(v) if mask[1] else None
    dg = torch.empty_like(layer.g) if mask[2] else None
    launch(
        few_rows.few_rows_weight_gradient, (cdiv(n, tile.n),),
        dy, x, layer.y, v, layer.g, layer.norms, dv, dg, m, n, k, dy.stride(0), x.stride(0), layer.y_stride, k,
        MIXED=layer.mixed, EVEN=k % tile.k == 0, PRECISION=layer.precision, INDEX64=index64(dy, x, v),
        BLOCK_M=tile.m, BLOCK_N=tile.n, BLOCK_K=tile.k, warps=tile.warps, stages=tile.stages,
    )  # fmt: skip
    return dv, dg


def _one_pass(layer: _Layer, mask: list[bool], prepared: _Prepared, plan: Plan) -> Gradients:
    dg = torch.empty_like(layer.g) if mask[2] else None
    dots = layer.norms.new_empty(layer.dy.shape[1])
    _prepare(layer, prepared, dots, dg)
    if not mask[1]:
        return None, dg
    assert prepared.scaled is not None
    dv = torch.empty_like(layer.v.contiguous())
    ready = layer._replace(dy=prepared.scaled, y=None)
    _launch_dw(ready, dv, dots, _Prepared(None, None, None), plan, one_pass=True)
    return dv, dg


def _two_steps(layer: _Layer, mask: list[bool], prepared: _Prepared, scales: Tensor | None, plan: Plan) -> Gradients:
    if layer.y is not None:
        plan = plan._replace(tile=with_mask(plan.tile))
    v, (m, n), k, tile = layer.v.contiguous(), layer.dy.shape, layer.v.shape[1], plan.tile
    splits, per_split = 1, m
    if layer.dim == 0 and plan.splits > 1:
        per_split = cdiv(cdiv(m, plan.splits), tile.k) * tile.k
        splits = cdiv(m, per_split)
    dw = torch.empty((splits, n, k), dtype=torch.float32 if splits > 1 else v.dtype, device=v.device)
    tiles_k = cdiv(k, tile.n)
    dots = layer.norms.new_empty((tiles_k, n)) if splits == 1 and layer.dim == 0 else None
    _launch_dw(layer, dw, dots, prepared, plan, splits=splits, per_split=per_split)
    if layer.dim != 0:
        return *project(dw[0], v, layer.g, layer.norms, layer.dim, mask[1], mask[2]), added(prepared.sums)
    dg = torch.empty_like(layer.g) if mask[2] else None
    return finish_rows(dw, v, layer.g, layer.norms, dots, dg, scales, prepared.sums, mask[1], tiles_k)


def _launch_dw(
    layer: _Layer, dw: Tensor, dots: Tensor | None, prepared: _Prepared, plan: Plan,
    one_pass: bool = False, splits: int = 1, per_split: int = 0,
) -> None:  # fmt: skip
    dy, x, v, tile = layer.dy, layer.x, layer.v.contiguous(), plan.tile
    (m, n), k = dy.shape, v.shape[1]
    first = cdiv(n, BLOCK_C) * cdiv(m, prepared.rows) if prepared.wanted else 0
    even = m % tile.k == 0 and (splits == 1 or per_split % tile.k == 0)
    launch(
        linear_backward.linear_weight_gradient, (first + cdiv(n, tile.m) * cdiv(k, tile.n), splits),
        dy, x, layer.y, v, layer.g, layer.norms, dw, dots, prepared.scaled, prepared.factor, prepared.sums,
        m, n, k, dy.stride(0), x.stride(0), layer.y_stride, v.stride(0), per_split, prepared.rows,
        ONE_PASS=one_pass, SPLIT=splits > 1, PREPARE=prepared.wanted, EVEN=even, PRECISION=layer.precision,
        MIXED=layer.mixed, INDEX64=index64(dy, x, dw, layer.y, prepared.scaled),
        BLOCK_M=tile.m, BLOCK_N=tile.n, BLOCK_K=tile.k, GROUP=8, BLOCK_P=BLOCK_P, BLOCK_C=BLOCK_C,
        warps=tile.warps, stages=tile.stages,
    )  # fmt: skip


def _input_gradient(layer: _Layer, prepared: _Prepared, scales: Tensor | None, plan: Plan) -> Tensor:
    dy, v, dim, tile = layer.dy, layer.v, layer.dim, plan.tile
    (m, n), k = dy.shape, v.shape[1]
    dx = dy.new_empty((m, k))
    gain = input_gradient_gain(dy, v, dim)
    w, gain = (v, gain) if gain else (normalized(v, layer.g, layer.norms, dim, dy.dtype), "none")
    y = layer.y
    if prepared.scaled is not None:
        gain, dy, y = "none" if prepared.factor is None else "guarded", prepared.scaled, None
    gains, divisors = (layer.g, layer.norms) if scales is None else (scales, None)
    launch(
        linear_backward.linear_input_gradient, (cdiv(m, tile.m) * cdiv(k, tile.n),),
        dy, w, gains, divisors, y, prepared.factor, dx, m, n, k,
        dy.stride(0), w.stride(0), 0 if y is None else y.stride(0), dx.stride(0), 0 if dim is None else 1,
        GAIN=gain, EVEN=n % tile.k == 0, PRECISION=layer.precision, INDEX64=index64(dy, w, dx, y),
        BLOCK_M=tile.m, BLOCK_N=tile.n, BLOCK_K=tile.k, GROUP=8, warps=tile.warps, stages=tile.stages,
    )  # fmt: skip
    return dx
