"""Forward of linear layers: y = act(x · (g/n · v)ᵀ + b), a GEMM that never writes the normalized weight.

``GAIN`` says where g/n enters: ``"output"`` (a norm per output, or one for everything), ``"input"`` (a norm per input
feature), ``"weight"`` (on the weight's tile, before it is rounded to a 16-bit type of small range) or ``"none"``: the
plain GEMM, which the audit compares with. g and the norms are read at ``index * gain_step``: a step of 0 is one norm
for all. Strides along the last dimension are 1. ``EVEN`` promises that the summed dimension is a multiple of its tile.
"""

import triton
import triton.language as tl

from wnfused.kernels.triton.indexing import clamped, grouped_tile, scale_at, scales_of_columns
from wnfused.kernels.triton.language import dot, narrowed, root
from wnfused.kernels.triton.rows import careful_norm, gain_over_norm, is_extreme, is_unsafe


@triton.jit
def add_squares(squares, tile, LANES: tl.constexpr):
    """Adds a tile's squares to partial sums of LANES neighbours, which one thread holds: threads exchange nothing.

    LANES is 1 where a thread does not read 16 bytes at a time.
    """
    wide = tile.to(tl.float32)
    ROWS: tl.constexpr = tile.shape[0]
    COLUMNS: tl.constexpr = tile.shape[1]
    return squares + tl.sum(tl.reshape(wide * wide, (ROWS, COLUMNS // LANES, LANES)), 2)


@triton.jit
def careful_sum(
    x, v, scale, row, column, first, last, x_stride, v_stride, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """x · (scale · v)ᵀ, scaled before it is multiplied: once more, for tiles with a row whose norm is extreme.

    It is slow, and small: the loop that ran before keeps its registers.
    """
    k = tl.arange(0, 16)
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for k0 in tl.range(first, last, 16, num_stages=1):
        ok = (k < last - k0)[None, :]
        x_tile = tl.load(x + row[:, None] * x_stride + (k0 + k)[None, :], mask=ok, other=0.0)
        v_tile = tl.load(v + column[:, None] * v_stride + (k0 + k)[None, :], mask=ok, other=0.0).to(tl.float32)
        v_tile = narrowed(v_tile * scale[:, None], x.dtype.element_ty)
        acc = dot(x_tile, tl.trans(v_tile), acc, PRECISION)
    return acc


@triton.jit
def linear_forward(
    x, v, g, norms, bias, y, partial, squares_out,
    M, N, K, x_stride, v_stride, y_stride, gain_step, eps, k_per_split,
    GAIN: tl.constexpr, SINGLE_PASS: tl.constexpr, SPLIT: tl.constexpr, RELU: tl.constexpr, EVEN: tl.constexpr,
    PRECISION: tl.constexpr, INDEX64: tl.constexpr, LANES: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """y from x [M, K] and v [N, K]. SINGLE_PASS computes the norms in the same loop and writes them, else reads them.

    With SPLIT each program sums a share of K into ``partial`` [splits, M, N] (and of Σv² into ``squares_out``
    [splits, N]); finish_linear makes y of them.
    """
    pid, split = tl.program_id(0), tl.program_id(1)
    tile_m, tile_n = grouped_tile(pid, tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP)
    row = clamped(tile_m * BLOCK_M, M, BLOCK_M, INDEX64)
    column = clamped(tile_n * BLOCK_N, N, BLOCK_N, INDEX64)
    k = tl.arange(0, BLOCK_K)
    first = split * k_per_split if SPLIT else 0
    last = tl.minimum(first + k_per_split, K) if SPLIT else K
    x_at = x + row[:, None] * x_stride + k[None, :]
    v_at = v + column[:, None] * v_stride + k[None, :]
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    squares = tl.zeros([BLOCK_N, BLOCK_K // LANES], tl.float32)
    if GAIN == "weight":
        weight_scale = scale_at(g, norms, column, column < N, gain_step)
    for k0 in range(first, last, BLOCK_K):  # addresses that the loop carried would be copied at its end
        if EVEN:
            x_tile, v_tile = tl.load(x_at + k0), tl.load(v_at + k0)
        else:
            x_tile = tl.load(x_at + k0, mask=(k < last - k0)[None, :], other=0.0)
            v_tile = tl.load(v_at + k0, mask=(k < last - k0)[None, :], other=0.0)
        if SINGLE_PASS:
            squares = add_squares(squares, v_tile, LANES)
        if GAIN == "input":
            s = scale_at(g, norms, k0 + k, k < last - k0, gain_step, True)
            x_tile = narrowed(x_tile.to(tl.float32) * s[None, :], x.dtype.element_ty)
        if GAIN == "weight":
            v_tile = v_tile.to(tl.float32) * weight_scale[:, None]
        acc = dot(x_tile, tl.trans(narrowed(v_tile, x.dtype.element_ty)), acc, PRECISION)
    out_row = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    out_column = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    ok = (out_row < M)[:, None] & (out_column < N)[None, :]
    if INDEX64:
        out_row = out_row.to(tl.int64)
    if SPLIT:
        tl.store(partial + (split * M + out_row)[:, None] * N + out_column[None, :], acc, mask=ok)
        if SINGLE_PASS:
            mine = out_column < tl.where(tile_m == 0, N, 0)
            tl.store(squares_out + split * N + out_column, tl.sum(squares, 1), mask=mine)
    else:
        if SINGLE_PASS:
            square = tl.sum(squares, 1)
            norm = root(square + eps)
            if tl.max(is_unsafe(square).to(tl.int32), 0) > 0:
                careful = careful_norm(v + column * v_stride, out_column < N, K, eps, BLOCK_K)
                norm = tl.where(is_unsafe(square), careful, norm)
            tl.store(norms + out_column, norm, mask=out_column < tl.where(tile_m == 0, N, 0))
            gain = tl.load(g + out_column, mask=out_column < N, other=0.0).to(tl.float32)
            scale, extreme = gain_over_norm(gain, norm), is_extreme(norm).to(tl.int32)
        elif GAIN == "output":
            scale, extreme = scales_of_columns(g, norms, out_column, out_column < N, gain_step)
        if GAIN == "output":
            if tl.max(extreme, 0) > 0:
                acc = careful_sum(
                    x, v, tl.where(extreme > 0, scale, 1.0), row, column, first, last, x_stride, v_stride, PRECISION,
                    BLOCK_M, BLOCK_N,
                )  # fmt: skip
                scale = tl.where(extreme > 0, 1.0, scale)
            acc *= scale[None, :]
        if bias is not None:
            acc += tl.load(bias + out_column, mask=out_column < N, other=0.0).to(tl.float32)[None, :]
        if RELU:
            acc = tl.maximum(acc, 0.0, propagate_nan=tl.PropagateNan.ALL)
        tl.store(y + out_row[:, None] * y_stride + out_column[None, :], narrowed(acc, y.dtype.element_ty), mask=ok)


@triton.jit
def finish_linear(
    partial, squares, v, g, norms, bias, y, M, N, K, v_stride, y_stride, gain_step, eps, splits,
    GAIN: tl.constexpr, SINGLE_PASS: tl.constexpr, RELU: tl.constexpr, INDEX64: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The second stage of a split sum over K: adds the parts in order, then gain, bias and ReLU."""
    tiles_n = tl.cdiv(N, BLOCK_N)
    tile_m, tile_n = tl.program_id(0) // tiles_n, tl.program_id(0) % tiles_n
    row = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    if INDEX64:
        row = row.to(tl.int64)
    column = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    ok = (row < M)[:, None] & (column < N)[None, :]
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for s in range(splits):
        acc += tl.load(partial + (s * M + row)[:, None] * N + column[None, :], mask=ok, other=0.0)
    if SINGLE_PASS:
        square = tl.zeros([BLOCK_N], tl.float32)
        for s in range(splits):
            square += tl.load(squares + s * N + column, mask=column < N, other=0.0)
        norm = root(square + eps)
        if tl.max(is_unsafe(square).to(tl.int32), 0) > 0:
            at = tl.minimum(column, N - 1)
            careful = careful_norm(v + at.to(tl.int64) * v_stride, column < N, K, eps, 32)
            norm = tl.where(is_unsafe(square), careful, norm)
        tl.store(norms + column, norm, mask=column < tl.where(tile_m == 0, N, 0))
        gain = tl.load(g + column, mask=column < N, other=0.0).to(tl.float32)
        acc *= gain_over_norm(gain, norm)[None, :]
    elif GAIN == "output":
        acc *= scale_at(g, norms, column, column < N, gain_step)[None, :]
    if bias is not None:
        acc += tl.load(bias + column, mask=column < N, other=0.0).to(tl.float32)[None, :]
    if RELU:
        acc = tl.maximum(acc, 0.0, propagate_nan=tl.PropagateNan.ALL)
    tl.store(y + row[:, None] * y_stride + column[None, :], narrowed(acc, y.dtype.element_ty), mask=ok)
