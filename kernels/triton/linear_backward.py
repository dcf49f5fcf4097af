"""Backward of linear layers: dx and dW, each one GEMM (modes and names as in linear.py).

A tile is BLOCK_M × BLOCK_N results, summed BLOCK_K at a time, whatever the matrices are called.
"""

import triton
import triton.language as tl

from wnfused.kernels.triton.indexing import clamped, grouped_tile, scale_at
from wnfused.kernels.triton.language import dot, narrowed, product
from wnfused.kernels.triton.prepare import prepare_channels
from wnfused.kernels.triton.rows import gain_over_norm


@triton.jit
def input_gradient_sum(
    dy, v, g, norms, y, tile_m, column, M, N, K, dy_stride, v_stride, y_stride, gain_step,
    GAIN: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr, INDEX64: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    row = clamped(tile_m * BLOCK_M, M, BLOCK_M, INDEX64)
    column_ok = (column < K)[None, :]
    n = tl.arange(0, BLOCK_K)
    dy_at = dy + row[:, None] * dy_stride + n[None, :]
    v_at = v + (n.to(tl.int64) if INDEX64 else n)[:, None] * v_stride + column[None, :]
    if y is not None:
        y_at = y + row[:, None] * y_stride + n[None, :]
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for n0 in range(0, N, BLOCK_K):
        v_step = (tl.cast(n0, tl.int64) if INDEX64 else n0) * v_stride
        if EVEN:
            dy_tile, v_tile = tl.load(dy_at + n0), tl.load(v_at + v_step, mask=column_ok, other=0.0)
        else:
            dy_tile = tl.load(dy_at + n0, mask=(n < N - n0)[None, :], other=0.0)
            v_tile = tl.load(v_at + v_step, mask=(n < N - n0)[:, None] & column_ok, other=0.0)
        if y is not None:
            y_tile = tl.load(y_at + n0) if EVEN else tl.load(y_at + n0, mask=(n < N - n0)[None, :], other=0.0)
            dy_tile = narrowed(tl.where(y_tile <= 0, 0.0, dy_tile), dy.dtype.element_ty)
        if GAIN == "output":
            s = scale_at(g, norms, n0 + n, None if EVEN else n < N - n0, gain_step, True)
            dy_tile = narrowed(dy_tile.to(tl.float32) * s[None, :], dy.dtype.element_ty)
        if GAIN == "weight":
            s = scale_at(g, norms, n0 + n, None if EVEN else n < N - n0, gain_step, True)
            v_tile = v_tile.to(tl.float32) * s[:, None]
        acc = dot(dy_tile, narrowed(v_tile, dy.dtype.element_ty), acc, PRECISION)
    return acc


@triton.jit
def linear_input_gradient(
    dy, v, g, norms, y, factor, dx, M, N, K, dy_stride, v_stride, y_stride, dx_stride, gain_step,
    GAIN: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr, INDEX64: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """dx [M, K] = (dy · g/n) · v, summed over N; y is the saved output where a ReLU was fused.

    GAIN is where g/n stands in the layer: "output" multiplies dy's tile, "weight" v's, "input" the result. "none" is
    for a dy that prepare.py has scaled; so is "guarded", for float16, unless dy's ``factor`` is 0: then dy·g/n would
    have left float16's range, dy is only masked, and v's tile is multiplied.
    """
    tile_m, tile_k = grouped_tile(tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(K, BLOCK_N), GROUP)
    column = tile_k * BLOCK_N + tl.arange(0, BLOCK_N)
    if GAIN == "guarded":
        power = tl.load(factor)
        if power > 0:
            acc = input_gradient_sum(
                dy, v, g, norms, None, tile_m, column, M, N, K, dy_stride, v_stride, 0, gain_step,
                "none", EVEN, PRECISION, INDEX64, BLOCK_M, BLOCK_N, BLOCK_K,
            )  # fmt: skip
            acc *= power
        else:
            acc = input_gradient_sum(
                dy, v, g, norms, None, tile_m, column, M, N, K, dy_stride, v_stride, 0, gain_step,
                "weight", EVEN, PRECISION, INDEX64, BLOCK_M, BLOCK_N, BLOCK_K,
            )  # fmt: skip
    else:
        acc = input_gradient_sum(
            dy, v, g, norms, y, tile_m, column, M, N, K, dy_stride, v_stride, y_stride, gain_step,
            GAIN, EVEN, PRECISION, INDEX64, BLOCK_M, BLOCK_N, BLOCK_K,
        )  # fmt: skip
    out_row = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    if INDEX64:
        out_row = out_row.to(tl.int64)
    out_column = tile_k * BLOCK_N + tl.arange(0, BLOCK_N)
    if GAIN == "input":
        acc *= scale_at(g, norms, out_column, out_column < K, gain_step)[None, :]
    ok = (out_row < M)[:, None] & (out_column < K)[None, :]
    tl.store(dx + out_row[:, None] * dx_stride + out_column[None, :], narrowed(acc, dx.dtype.element_ty), mask=ok)


@triton.jit
def store_columns(acc, v, g, norms, dw, dots, row, row_ok, column, N, K, v_stride, ONE_PASS: tl.constexpr):
    """Store dW of these columns, or dv at once, and return their share of the row dots ⟨dW, v/n⟩."""
    part = tl.zeros_like(row_ok.to(tl.float32))
    ok = row_ok[:, None] & (column < K)[None, :]
    dw_at = dw + row[:, None] * K + column[None, :]
    if ONE_PASS or dots is not None:
        v_at = v + row[:, None] * v_stride + column[None, :]
        v_tile = tl.load(v_at, mask=ok, other=0.0, eviction_policy="evict_last").to(tl.float32)
        inverse = gain_over_norm(1.0, tl.load(norms + row, mask=row_ok, other=0.0), True)  # registers are scarce
    if ONE_PASS:
        gain = tl.load(g + row, mask=row_ok, other=0.0).to(tl.float32)
        share = tl.load(dots + row, mask=row_ok, other=0.0) * (gain * inverse)
        acc -= share[:, None] * (v_tile * inverse[:, None])
        tl.store(dw_at, narrowed(acc, dw.dtype.element_ty), mask=ok, eviction_policy="evict_first")
    else:
        if dots is not None:  # of v/n: those of v may leave float32's range; outside the columns both factors are 0
            part = tl.sum(product(acc, v_tile * inverse[:, None]), 1)
        tl.store(dw_at, narrowed(acc, dw.dtype.element_ty), mask=ok)
    return part


@triton.jit
def weight_gradient_tile(
    pid, dy, x, y, v, g, norms, dw, dots, M, N, K, dy_stride, x_stride, y_stride, v_stride, m_per_split,
    ONE_PASS: tl.constexpr, SPLIT: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr, INDEX64: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    tile_n, tile_k = grouped_tile(pid, tl.cdiv(N, BLOCK_M), tl.cdiv(K, BLOCK_N), GROUP)
    split = tl.program_id(1) if SPLIT else 0
    row = tile_n * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tile_k * BLOCK_N + tl.arange(0, BLOCK_N)
    row_ok, column_ok = row < N, column < K
    m = tl.arange(0, BLOCK_K)
    if INDEX64:
        m = m.to(tl.int64)
    first = split * m_per_split if SPLIT else 0
    last = tl.minimum(first + m_per_split, M) if SPLIT else M
    x_at = x + m[:, None] * x_stride + column[None, :]
    if y is None:  # transposed by the load: a later transposition passes through registers
        dy_at = dy + m[None, :] * dy_stride + row[:, None]
    else:  # the ReLU's mask needs registers anyway
        dy_at = dy + m[:, None] * dy_stride + row[None, :]
        y_at = y + m[:, None] * y_stride + row[None, :]
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for m0 in range(first, last, BLOCK_K):
        step = tl.cast(m0, tl.int64) if INDEX64 else m0
        m_ok = m < last - m0
        x_ok = column_ok[None, :] if EVEN else column_ok[None, :] & m_ok[:, None]
        x_tile = tl.load(x_at + step * x_stride, mask=x_ok, other=0.0)
        if y is None:
            dy_ok = row_ok[:, None] if EVEN else row_ok[:, None] & m_ok[None, :]
            dy_tile = tl.load(dy_at + step * dy_stride, mask=dy_ok, other=0.0)
        else:
            dy_ok = row_ok[None, :] if EVEN else row_ok[None, :] & m_ok[:, None]
            dy_tile = tl.load(dy_at + step * dy_stride, mask=dy_ok, other=0.0)
            y_tile = tl.load(y_at + step * y_stride, mask=dy_ok, other=0.0)
            dy_tile = tl.trans(narrowed(tl.where(y_tile <= 0, 0.0, dy_tile), dy.dtype.element_ty))
        acc = dot(dy_tile, x_tile, acc, PRECISION)
    out_row = row.to(tl.int64) if INDEX64 else row
    if SPLIT:
        out = dw + (split * N + out_row)[:, None] * K
        tl.store(out + column[None, :], narrowed(acc, dw.dtype.element_ty), mask=row_ok[:, None] & column_ok[None, :])
    else:
        if BLOCK_N > 128:  # half of v's tile at a time: beside the products there are no registers for all of it
            left, right = tl.split(tl.permute(tl.reshape(acc, [BLOCK_M, 2, BLOCK_N // 2]), [0, 2, 1]))
            half = tile_k * BLOCK_N + tl.arange(0, BLOCK_N // 2)
            part = store_columns(left, v, g, norms, dw, dots, out_row, row_ok, half, N, K, v_stride, ONE_PASS)
            half += BLOCK_N // 2
            part += store_columns(right, v, g, norms, dw, dots, out_row, row_ok, half, N, K, v_stride, ONE_PASS)
        else:
            part = store_columns(acc, v, g, norms, dw, dots, out_row, row_ok, column, N, K, v_stride, ONE_PASS)
        if dots is not None and not ONE_PASS:
            tl.store(dots + tile_k * N + out_row, part, mask=row_ok)


@triton.jit
def linear_weight_gradient(
    dy, x, y, v, g, norms, dw, dots, scaled, factor, sums,
    M, N, K, dy_stride, x_stride, y_stride, v_stride, m_per_split, rows_per_part,
    ONE_PASS: tl.constexpr, SPLIT: tl.constexpr, PREPARE: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
    MIXED: tl.constexpr, INDEX64: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """dW [N, K] = dyᵀ · x, summed over M, and with ``dots`` [tiles of K, N] its partial row dots ⟨dW, v/n⟩.

    ONE_PASS: dy is g/n times the gradient and ``dots`` [N] holds c = ⟨dW, v/n⟩ already (prepare.py): ``dw`` takes
    dv = g/n (dW − c v/n) at once. v, which dx reads next, is worth keeping in the cache; dv is not.
    With SPLIT shares of M are written to ``dw`` [splits, N, K], for finish_weight to add.
    PREPARE: the first programs pass over dy for ``scaled`` and ``sums``, which are read after this launch.
    """
    pid = tl.program_id(0)
    if PREPARE:
        first = tl.cdiv(N, BLOCK_C) * tl.cdiv(M, rows_per_part)
        if pid < first:
            if tl.program_id(1) == 0:
                prepare_channels(
                    pid, dy, y, g, norms, scaled, factor, sums, None, None, M, N, dy_stride, y_stride, rows_per_part,
                    MIXED, INDEX64, BLOCK_P, BLOCK_C,
                )  # fmt: skip
        else:
            weight_gradient_tile(
                pid - first, dy, x, y, v, g, norms, dw, dots, M, N, K, dy_stride, x_stride, y_stride, v_stride,
                m_per_split, ONE_PASS, SPLIT, EVEN, PRECISION, INDEX64, BLOCK_M, BLOCK_N, BLOCK_K, GROUP,
            )  # fmt: skip
    else:
        weight_gradient_tile(
            pid, dy, x, y, v, g, norms, dw, dots, M, N, K, dy_stride, x_stride, y_stride, v_stride,
            m_per_split, ONE_PASS, SPLIT, EVEN, PRECISION, INDEX64, BLOCK_M, BLOCK_N, BLOCK_K, GROUP,
        )  # fmt: skip
