"""Launches of the linear kernels: forward and backward of a layer, from tensors and a plan."""

import torch
import triton
from torch import Tensor

from wnfused.kernels.triton import finish, linear, run_vendor, tune
from wnfused.kernels.triton.rules import MOST_ROWS_IN_ONE_PASS, Plan, Problem
from wnfused.kernels.triton.run_rows import Dim, index64, normalized, project, row_norms

Gradients = tuple[Tensor | None, ...]


def matrix(t: Tensor, columns: int) -> Tensor:
    """t as a matrix whose rows are contiguous."""
    rows = t.numel() // columns if columns else t[..., 0:1].numel()
    t = t.reshape(rows, columns)
    return t if t.stride(1) == 1 or columns <= 1 else t.contiguous()


def precision(dtype: torch.dtype) -> str:
    """What float32 products may lose, as torch's own flag for matmuls says."""
    return "tf32" if dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32 else "ieee"


def supported(x: Tensor, v: Tensor) -> bool:
    """The matmul kernels take one dtype, or float32 weights under 16-bit activations."""
    return x.dtype != torch.float64 and (v.dtype == x.dtype or v.dtype == torch.float32)


def forward_gain(x: Tensor, v: Tensor, dim: Dim) -> str | None:
    """Where g/n enters the forward GEMM; None where w has to be written.

    float16 cannot hold what float32 weights or an input times g/n may be before the norm is divided out.
    """
    narrow = x.dtype == torch.float16
    if dim == 1:
        return None if narrow else "input"
    return "weight" if narrow and v.dtype == torch.float32 else "output"


def input_gradient_gain(dy: Tensor, v: Tensor, dim: Dim) -> str | None:
    narrow = dy.dtype == torch.float16
    if dim == 0:
        return "weight" if narrow else "output"
    if narrow and v.dtype == torch.float32:
        return None if dim == 1 else "weight"
    return "input"


def plan_of(kernel: str, m: int, n: int, k: int, x: Tensor, single_pass: bool = False) -> Plan:
    problem = Problem(kernel, m, n, k, x.element_size(), single_pass_allowed=single_pass)
    return tune.plan(problem, x.device)


def forward(
    x: Tensor, v: Tensor, g: Tensor, bias: Tensor | None, dim: Dim, eps: float, relu: bool,
    norms: Tensor | None = None, plan: Plan | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    n, k = v.shape
    rows = matrix(x, k)
    m = rows.shape[0]
    empty = m == 0 or n == 0 or k == 0
    if empty or not supported(x, v):
        return run_vendor.linear(x, v, g, bias, dim, eps, relu, norms)
    gain = forward_gain(x, v, dim)
    may_single = norms is None and dim == 0 and gain == "output"
    plan = plan or plan_of("linear", m, n, k, x, may_single)
    if plan.mode == "vendor":
        return run_vendor.linear(x, v, g, bias, dim, eps, relu, norms)
    single = may_single and plan.mode == "single pass"
    v = v if v.stride(1) == 1 or k == 1 else v.contiguous()
    norms = torch.empty(g.shape, dtype=torch.float32, device=x.device) if single else norms
    if norms is None:
        norms = row_norms(v, g, dim, eps)
    w, gain = (v, gain) if gain else (normalized(v, g, norms, dim, x.dtype), "none")
    y = x.new_empty((*x.shape[:-1], n))
    _launch_forward(rows, w, g.contiguous(), norms, bias, y.view(m, n), dim, eps, relu, gain, single, plan)
    return y, norms


def _launch_forward(
    x: Tensor, v: Tensor, g: Tensor, norms: Tensor, bias: Tensor | None, y: Tensor, dim: Dim, eps: float, relu: bool,
    gain: str, single: bool, plan: Plan,
) -> None:  # fmt: skip
    (m, k), n, tile = x.shape, v.shape[0], plan.tile
    per_split = triton.cdiv(triton.cdiv(k, plan.splits), tile.k) * tile.k
    splits = triton.cdiv(k, per_split)
    partial = torch.empty((splits, m, n), dtype=torch.float32, device=x.device) if splits > 1 else None
    squares = torch.empty((splits, n), dtype=torch.float32, device=x.device) if splits > 1 and single else None
    step = 0 if dim is None else 1
    bias = None if bias is None else bias.contiguous()
    wide = index64(x, v, y, partial)
    linear.linear_forward[(triton.cdiv(m, tile.m) * triton.cdiv(n, tile.n), splits)](
        x, v, g, norms, bias, y, partial, squares, m, n, k, x.stride(0), v.stride(0), y.stride(0), step, eps, per_split,
        GAIN=gain, SINGLE_PASS=single, SPLITS=splits, RELU=relu, EVEN=k % tile.k == 0, PRECISION=precision(x.dtype),
        INDEX64=wide, BLOCK_M=tile.m, BLOCK_N=tile.n, BLOCK_K=tile.k, GROUP=8,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    if partial is not None:
        linear.finish_linear[(triton.cdiv(m, 16) * triton.cdiv(n, 64),)](
            partial, squares, v, g, norms, bias, y, m, n, k, v.stride(0), y.stride(0), step, eps, splits,
            GAIN=gain, SINGLE_PASS=single, RELU=relu, INDEX64=wide, BLOCK_M=16, BLOCK_N=64,
        )  # fmt: skip


def backward(
    dy: Tensor, x: Tensor, v: Tensor, g: Tensor, norms: Tensor, y: Tensor | None, dim: Dim, biased: bool,
    mask: list[bool], plans: tuple[Plan, Plan] | None = None,
) -> Gradients:  # fmt: skip
    """(dx, dv, dg, db) as asked for; without a bias and with a ReLU, dv and dg come in one pass."""
    n, k = v.shape
    empty = dy.numel() == 0 or x.numel() == 0 or v.numel() == 0
    if empty or not supported(x, v):
        return run_vendor.linear_backward(dy, x, v, g, norms, y, dim, mask)
    d = matrix(dy.to(x.dtype), n)
    saved = None if y is None else matrix(y, n)
    rows, m = matrix(x, k), d.shape[0]
    v = v if v.stride(1) == 1 or k == 1 else v.contiguous()
    dx_plan, dw_plan = plans or (plan_of("linear_dx", m, k, n, x), plan_of("linear_dw", n, k, m, x))
    if "vendor" in (dx_plan.mode, dw_plan.mode):
        return run_vendor.linear_backward(dy, x, v, g, norms, y, dim, mask)
    dx = dv = dg = db = scales = None
    if mask[1] or mask[2]:
        scales = new_scales(norms, mask, dim)
        dv, dg, db = _weight_gradient(d, rows, v, g, norms, saved, dim, mask, biased, scales, dw_plan)
    elif mask[3]:
        db = finish_bias(d, saved)
    if mask[0]:
        dx = x.new_empty(x.shape)
        _launch_dx(d, v, g, norms, scales, saved, dx.view(m, k), dim, dx_plan)
    return dx, dv, dg, db


def new_scales(norms: Tensor, mask: list[bool], dim: Dim) -> Tensor | None:
    """Room for g/n, which the weight gradient's kernels leave for the input gradient to read instead of dividing."""
    return torch.empty_like(norms) if mask[0] and dim == 0 else None


def _launch_dx(
    dy: Tensor, v: Tensor, g: Tensor, norms: Tensor, scales: Tensor | None, y: Tensor | None, dx: Tensor, dim: Dim,
    plan: Plan,
) -> None:  # fmt: skip
    (m, n), k, tile = dy.shape, v.shape[1], plan.tile
    gain = input_gradient_gain(dy, v, dim)
    w, gain = (v, gain) if gain else (normalized(v, g, norms, dim, dy.dtype), "none")
    gains, divisors = (g.contiguous(), norms) if scales is None else (scales, None)
    linear.linear_input_gradient[(triton.cdiv(m, tile.m) * triton.cdiv(k, tile.n),)](
        dy, w, gains, divisors, y, dx, m, n, k,
        dy.stride(0), w.stride(0), 0 if y is None else y.stride(0), dx.stride(0), 0 if dim is None else 1,
        GAIN=gain, EVEN=n % tile.k == 0, PRECISION=precision(dy.dtype), INDEX64=index64(dy, w, dx),
        BLOCK_M=tile.m, BLOCK_N=tile.k, BLOCK_K=tile.n, GROUP=8, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip


def _weight_gradient(
    dy: Tensor, x: Tensor, v: Tensor, g: Tensor, norms: Tensor, y: Tensor | None, dim: Dim, mask: list[bool],
    biased: bool, scales: Tensor | None, plan: Plan,
) -> Gradients:  # fmt: skip
    (m, n), k, tile = dy.shape, v.shape[1], plan.tile
    v = v.contiguous()
    one_pass = y is not None and not biased and dim == 0 and m <= MOST_ROWS_IN_ONE_PASS
    splits, per_split = 1, m
    if dim == 0 and not one_pass and plan.splits > 1:
        per_split = triton.cdiv(triton.cdiv(m, plan.splits), tile.k) * tile.k
        splits = triton.cdiv(m, per_split)
    dg = torch.empty(g.shape, dtype=g.dtype, device=g.device) if mask[2] else None
    dw = torch.empty((splits, n, k), dtype=torch.float32 if splits > 1 else v.dtype, device=v.device)
    tiles_k = triton.cdiv(k, tile.n)
    dots = norms.new_empty((tiles_k, n)) if splits == 1 and dim == 0 and not one_pass else None
    gains = g.contiguous()
    linear.linear_weight_gradient[(triton.cdiv(n, tile.m) * tiles_k, splits)](
        dy, x, y, v, gains, norms, dw, dots, *((dg, scales) if one_pass else (None, None)),
        m, n, k, dy.stride(0), x.stride(0), 0 if y is None else y.stride(0), v.stride(0), per_split,
        ONE_PASS=one_pass, SPLITS=splits, EVEN=m % tile.k == 0 and per_split % tile.k == 0,
        PRECISION=precision(x.dtype), INDEX64=index64(dy, x, dw),
        BLOCK_M=tile.k, BLOCK_N=tile.m, BLOCK_K=tile.n, GROUP=8, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    if one_pass:
        return dw[0] if mask[1] else None, dg, None
    if dim == 0:
        return finish_rows(dw, v, gains, norms, dots, dg, scales, dy, y, mask[1], mask[3], tiles_k)
    dv, dg = project(dw[0], v, g, norms, dim, mask[1], mask[2])
    return dv, dg, finish_bias(dy, y) if mask[3] else None


def finish_rows(
    dw: Tensor, v: Tensor, g: Tensor, norms: Tensor, dots: Tensor | None, dg: Tensor | None,
    scales: Tensor | None, dy: Tensor, y: Tensor | None, want_dv: bool, want_db: bool, parts: int,
) -> Gradients:  # fmt: skip
    """dv, dg and db in one launch, from dW (whole and given up, or in splits) with a norm per row of v."""
    rows, length = v.shape[0], v.numel() // v.shape[0]
    from_splits = dots is None
    dv = (torch.empty_like(v) if from_splits or dw.dtype != v.dtype else dw.view(-1)) if want_dv else None
    db, blocks, layout = _bias_layout(dy) if want_db else (None, 0, (0, 0, 0, 0, 0, 0))
    block_e = min(2048, max(16, triton.next_power_of_2(length)))
    block_r = min(2048 // block_e, triton.next_power_of_2(rows))
    parts = dw.shape[0] if from_splits else parts
    finish.finish_weight[(triton.cdiv(rows, block_r) + blocks,)](
        dw, v, g, norms, dots, dv, dg, scales, dy, y, db, rows, length, parts, v.numel(), *layout,
        FROM_SPLITS=from_splits, HAS_ROWS=True, INDEX64=index64(dw, dy),
        BLOCK_R=block_r, BLOCK_E=block_e, BLOCK_P=64, BLOCK_C=32,
    )  # fmt: skip
    if dv is not None and dv.shape != v.shape:
        dv = dv.as_strided(v.shape, v.stride())
    return dv, dg, db


def finish_bias(dy: Tensor, y: Tensor | None) -> Tensor:
    """db alone."""
    db, blocks, layout = _bias_layout(dy)
    finish.finish_weight[(blocks,)](
        None, None, None, None, None, None, None, None, dy, y, db, 0, 0, 0, 0, *layout,
        FROM_SPLITS=False, HAS_ROWS=False, INDEX64=index64(dy), BLOCK_R=1, BLOCK_E=16, BLOCK_P=64, BLOCK_C=32,
    )  # fmt: skip
    return db


def _bias_layout(dy: Tensor) -> tuple[Tensor, int, tuple[int, int, int, int, int, int]]:
    """(db, programs, sizes and strides) of dy [batch, channels, pixels…] in a dense layout, or of a matrix."""
    channels = dy.shape[1]
    pixels = dy[0, 0].numel() if dy.ndim > 2 else 1
    layout = (channels, dy.shape[0], pixels, dy.stride(0), dy.stride(1), dy.stride(-1) if dy.ndim > 2 else 1)
    return dy.new_empty(channels, dtype=torch.float32), triton.cdiv(channels, 32), layout
