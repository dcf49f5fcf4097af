"""Launches of a linear layer's forward kernels, from tensors and a plan."""

import torch
from torch import Tensor

from wnfused.kernels.triton import linear, run_vendor, tune
from wnfused.kernels.triton.dtypes import linear_dtypes, precision
from wnfused.kernels.triton.launch import launch
from wnfused.kernels.triton.rules import Plan, Problem, cdiv
from wnfused.kernels.triton.run_rows import Dim, index64, normalized, norms_and_weight, row_norms


def matrix(t: Tensor, columns: int) -> Tensor:
    """t as a matrix whose rows are contiguous."""
    rows = t.numel() // columns if columns else t[..., 0:1].numel()
    t = t.reshape(rows, columns)
    return t if t.stride(1) == 1 or columns <= 1 else t.contiguous()


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


def lanes_of(v: Tensor) -> int:
    """Neighbours in v's rows that a thread of the forward reads at once: 16 bytes, or 1 element of unaligned rows."""
    aligned = all(size % 16 == 0 for size in (v.shape[1], v.stride(0), v.data_ptr()))
    return 16 // v.element_size() if aligned else 1


def problem_of(kernel: str, m: int, n: int, k: int, x: Tensor, v: Tensor, single_pass: bool = False) -> Problem:
    # As triton's launcher sees it: addresses that are multiples of 16 bytes, sizes and steps that are multiples of 16.
    aligned = all(size % 16 == 0 for size in (*v.shape, v.stride(0), *x.stride()[-2:-1], x.data_ptr(), v.data_ptr()))
    near = not index64(x, v) and max(m * n, m * k, n * k) < 2**31
    return Problem(kernel, m, n, k, linear_dtypes(x, v), single_pass_allowed=single_pass, aligned=aligned and near)


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
    plan = plan or tune.plan(problem_of("linear", m, n, k, x, v, may_single), x.device)
    if plan.mode == "vendor":
        return run_vendor.linear(x, v, g, bias, dim, eps, relu, norms)
    single = may_single and plan.mode == "single pass"
    v = v if v.stride(1) == 1 or k == 1 else v.contiguous()
    norms = torch.empty(g.shape, dtype=torch.float32, device=x.device) if single else norms
    w, place = v, gain or "none"
    if norms is None and gain is None:
        norms, w = norms_and_weight(v, g, dim, eps, x.dtype)
    elif norms is None:
        norms = row_norms(v, g, dim, eps)
    elif gain is None:
        w = normalized(v, g, norms, dim, x.dtype)
    y = x.new_empty((*x.shape[:-1], n))
    _launch_forward(rows, w, g.contiguous(), norms, bias, y.view(m, n), dim, eps, relu, place, single, plan)
    return y, norms


def _launch_forward(
    x: Tensor, v: Tensor, g: Tensor, norms: Tensor, bias: Tensor | None, y: Tensor, dim: Dim, eps: float, relu: bool,
    gain: str, single: bool, plan: Plan,
) -> None:  # fmt: skip
    (m, k), n, tile = x.shape, v.shape[0], plan.tile
    per_split = cdiv(cdiv(k, plan.splits), tile.k) * tile.k
    splits = cdiv(k, per_split)
    partial = torch.empty((splits, m, n), dtype=torch.float32, device=x.device) if splits > 1 else None
    squares = torch.empty((splits, n), dtype=torch.float32, device=x.device) if splits > 1 and single else None
    step = 0 if dim is None else 1
    bias = None if bias is None else bias.contiguous()
    wide = index64(x, v, y, partial)
    launch(
        linear.linear_forward, (cdiv(m, tile.m) * cdiv(n, tile.n), splits),
        x, v, g, norms, bias, y, partial, squares, m, n, k, x.stride(0), v.stride(0), y.stride(0), step, eps, per_split,
        GAIN=gain, SINGLE_PASS=single, SPLIT=splits > 1, RELU=relu, EVEN=k % tile.k == 0,
        PRECISION=precision(linear_dtypes(x, v)), INDEX64=wide, LANES=lanes_of(v),
        BLOCK_M=tile.m, BLOCK_N=tile.n, BLOCK_K=tile.k, GROUP=8,
        warps=tile.warps, stages=tile.stages,
    )  # fmt: skip
    if partial is not None:
        launch(
            linear.finish_linear, (cdiv(m, 16) * cdiv(n, 64),),
            partial, squares, v, g, norms, bias, y, m, n, k, v.stride(0), y.stride(0), step, eps, splits,
            GAIN=gain, SINGLE_PASS=single, RELU=relu, INDEX64=wide, BLOCK_M=16, BLOCK_N=64,
        )  # fmt: skip
