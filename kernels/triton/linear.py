"""Linear layers: y = act(x · (g/n · v)ᵀ + b), dx and dW, each one GEMM that never writes the normalized weight.

``GAIN`` says where g/n enters: ``"output"`` (a norm per output, or one for everything), ``"input"`` (a norm per input
feature), ``"weight"`` (on the weight's tile, before it is rounded to a 16-bit type of small range) or ``"none"``: the
plain GEMM, which the audit compares with. g and the norms are read at ``index * gain_step``: a step of 0 is one norm
for all. Strides along the last dimension are 1. ``EVEN`` promises that the summed dimension is a multiple of its tile.
"""

import triton
import triton.language as tl

from wnfused.kernels.triton.language import dot, narrowed
from wnfused.kernels.triton.rows import careful_norm, gain_over_norm, is_unsafe


@triton.jit
def grouped_tile(pid, tiles_m, tiles_n, GROUP: tl.constexpr):
    """Tiles in columns of GROUP rows, so that programs that run together share operands in the L2 cache."""
    per_group = GROUP * tiles_n
    first = pid // per_group * GROUP
    height = tl.minimum(tiles_m - first, GROUP)
    return first + pid % per_group % height, pid % per_group // height


@triton.jit
def clamped(start, size, BLOCK: tl.constexpr, INDEX64: tl.constexpr):
    """BLOCK indices from start on, those past the end moved onto the last: loads along them need no mask.

    Not for a dimension that is contiguous in memory: moved indices hide from the compiler that their neighbours are
    neighbours, and the loads become as narrow as an element.
    """
    index = tl.minimum(start + tl.arange(0, BLOCK), size - 1)
    return index.to(tl.int64) if INDEX64 else index


@triton.jit
def scale_at(g, norms, index, ok, gain_step):
    """g/n of an index; without norms g holds that already. ok may be None, where every index is inside."""
    if ok is None:
        scale = tl.load(g + index * gain_step).to(tl.float32)
    else:
        scale = tl.load(g + index * gain_step, mask=ok, other=0.0).to(tl.float32)
    if norms is not None:
        if ok is None:
            norm = tl.load(norms + index * gain_step)
        else:
            norm = tl.load(norms + index * gain_step, mask=ok, other=0.0)
        scale = gain_over_norm(scale, norm)
    return scale


@triton.jit
def add_squares(squares, tile, LANES: tl.constexpr):
    """Adds a tile's squares to partial sums of LANES neighbours, which one thread holds: threads exchange nothing."""
    wide = tile.to(tl.float32)
    ROWS: tl.constexpr = tile.shape[0]
    COLUMNS: tl.constexpr = tile.shape[1]
    return squares + tl.sum(tl.reshape(wide * wide, (ROWS, COLUMNS // LANES, LANES)), 2)


@triton.jit
def linear_forward(
    x, v, g, norms, bias, y, partial, squares_out,
    M, N, K, x_stride, v_stride, y_stride, gain_step, eps, k_per_split,
    GAIN: tl.constexpr, SINGLE_PASS: tl.constexpr, SPLITS: tl.constexpr, RELU: tl.constexpr, EVEN: tl.constexpr,
    PRECISION: tl.constexpr, INDEX64: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """y from x [M, K] and v [N, K]. With SINGLE_PASS the norms are found on the way and written, else they are read.

    With SPLITS > 1 each program sums a share of K into ``partial`` [SPLITS, M, N] (and of Σv² into ``squares_out``
    [SPLITS, N]); finish_linear makes y of them.
    """
    pid, split = tl.program_id(0), tl.program_id(1)
    tile_m, tile_n = grouped_tile(pid, tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP)
    row = clamped(tile_m * BLOCK_M, M, BLOCK_M, INDEX64)
    column = clamped(tile_n * BLOCK_N, N, BLOCK_N, INDEX64)
    k = tl.arange(0, BLOCK_K)
    first = split * k_per_split if SPLITS > 1 else 0
    last = tl.minimum(first + k_per_split, K) if SPLITS > 1 else K
    x_at = x + row[:, None] * x_stride + (first + k)[None, :]
    v_at = v + column[:, None] * v_stride + (first + k)[None, :]
    LANES: tl.constexpr = 128 // v.dtype.element_ty.primitive_bitwidth
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    squares = tl.zeros([BLOCK_N, BLOCK_K // LANES], tl.float32)
    if GAIN == "weight":
        weight_scale = scale_at(g, norms, column, column < N, gain_step)
    for k0 in range(first, last, BLOCK_K):
        if EVEN:
            x_tile, v_tile = tl.load(x_at), tl.load(v_at)
        else:
            x_tile = tl.load(x_at, mask=(k < last - k0)[None, :], other=0.0)
            v_tile = tl.load(v_at, mask=(k < last - k0)[None, :], other=0.0)
        if SINGLE_PASS:
            squares = add_squares(squares, v_tile, LANES)
        if GAIN == "input":
            s = scale_at(g, norms, k0 + k, k < last - k0, gain_step)
            x_tile = narrowed(x_tile.to(tl.float32) * s[None, :], x.dtype.element_ty)
        if GAIN == "weight":
            v_tile = v_tile.to(tl.float32) * weight_scale[:, None]
        acc = dot(x_tile, tl.trans(narrowed(v_tile, x.dtype.element_ty)), acc, PRECISION)
        x_at += BLOCK_K
        v_at += BLOCK_K
    out_row = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    out_column = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    ok = (out_row < M)[:, None] & (out_column < N)[None, :]
    if INDEX64:
        out_row = out_row.to(tl.int64)
    if SPLITS > 1:
        tl.store(partial + (split * M + out_row)[:, None] * N + out_column[None, :], acc, mask=ok)
        if SINGLE_PASS:
            mine = (out_column < N) & (tile_m == 0)
            tl.store(squares_out + split * N + out_column, tl.sum(squares, 1), mask=mine)
    else:
        if SINGLE_PASS:
            square = tl.sum(squares, 1)
            norm = tl.sqrt(square + eps)
            if tl.max(is_unsafe(square).to(tl.int32), 0) > 0:
                careful = careful_norm(v + column * v_stride, out_column < N, K, eps, BLOCK_K)
                norm = tl.where(is_unsafe(square), careful, norm)
            tl.store(norms + out_column, norm, mask=(out_column < N) & (tile_m == 0))
            gain = tl.load(g + out_column, mask=out_column < N, other=0.0).to(tl.float32)
            acc *= gain_over_norm(gain, norm)[None, :]
        elif GAIN == "output":
            acc *= scale_at(g, norms, out_column, out_column < N, gain_step)[None, :]
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
        norm = tl.sqrt(square + eps)
        if tl.max(is_unsafe(square).to(tl.int32), 0) > 0:
            at = tl.minimum(column, N - 1)
            careful = careful_norm(v + at.to(tl.int64) * v_stride, column < N, K, eps, 32)
            norm = tl.where(is_unsafe(square), careful, norm)
        tl.store(norms + column, norm, mask=(column < N) & (tile_m == 0))
        gain = tl.load(g + column, mask=column < N, other=0.0).to(tl.float32)
        acc *= gain_over_norm(gain, norm)[None, :]
    elif GAIN == "output":
        acc *= scale_at(g, norms, column, column < N, gain_step)[None, :]
    if bias is not None:
        acc += tl.load(bias + column, mask=column < N, other=0.0).to(tl.float32)[None, :]
    if RELU:
        acc = tl.maximum(acc, 0.0, propagate_nan=tl.PropagateNan.ALL)
    tl.store(y + row[:, None] * y_stride + column[None, :], narrowed(acc, y.dtype.element_ty), mask=ok)


@triton.jit
def linear_input_gradient(
    dy, v, g, norms, y, dx, M, N, K, dy_stride, v_stride, y_stride, dx_stride, gain_step,
    GAIN: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr, INDEX64: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """dx [M, K] = (dy · g/n) · v, summed over N; y is the saved output where a ReLU was fused.

    GAIN is where g/n stands in the layer: "output" multiplies dy's tile, "weight" v's, "input" the result.
    """
    tile_m, tile_k = grouped_tile(tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(K, BLOCK_K), GROUP)
    row = clamped(tile_m * BLOCK_M, M, BLOCK_M, INDEX64)
    column = tile_k * BLOCK_K + tl.arange(0, BLOCK_K)
    column_ok = (column < K)[None, :]
    n = tl.arange(0, BLOCK_N)
    dy_at = dy + row[:, None] * dy_stride + n[None, :]
    v_at = v + (n.to(tl.int64) if INDEX64 else n)[:, None] * v_stride + column[None, :]
    if y is not None:
        y_at = y + row[:, None] * y_stride + n[None, :]
    acc = tl.zeros([BLOCK_M, BLOCK_K], tl.float32)
    for n0 in range(0, N, BLOCK_N):
        if EVEN:
            dy_tile, v_tile = tl.load(dy_at), tl.load(v_at, mask=column_ok, other=0.0)
        else:
            dy_tile = tl.load(dy_at, mask=(n < N - n0)[None, :], other=0.0)
            v_tile = tl.load(v_at, mask=(n < N - n0)[:, None] & column_ok, other=0.0)
        if y is not None:
            y_tile = tl.load(y_at) if EVEN else tl.load(y_at, mask=(n < N - n0)[None, :], other=0.0)
            dy_tile = narrowed(tl.where(y_tile <= 0, 0.0, dy_tile), dy.dtype.element_ty)
            y_at += BLOCK_N
        if GAIN == "output":
            s = scale_at(g, norms, n0 + n, None if EVEN else n < N - n0, gain_step)
            dy_tile = narrowed(dy_tile.to(tl.float32) * s[None, :], dy.dtype.element_ty)
        if GAIN == "weight":
            s = scale_at(g, norms, n0 + n, None if EVEN else n < N - n0, gain_step)
            v_tile = v_tile.to(tl.float32) * s[:, None]
        acc = dot(dy_tile, narrowed(v_tile, dy.dtype.element_ty), acc, PRECISION)
        dy_at += BLOCK_N
        v_at += BLOCK_N * v_stride
    out_row = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    if INDEX64:
        out_row = out_row.to(tl.int64)
    out_column = tile_k * BLOCK_K + tl.arange(0, BLOCK_K)
    if GAIN == "input":
        acc *= scale_at(g, norms, out_column, out_column < K, gain_step)[None, :]
    ok = (out_row < M)[:, None] & (out_column < K)[None, :]
    tl.store(dx + out_row[:, None] * dx_stride + out_column[None, :], narrowed(acc, dx.dtype.element_ty), mask=ok)


@triton.jit
def linear_weight_gradient(
    dy, x, y, v, g, norms, dw, dots, dg, scales,
    M, N, K, dy_stride, x_stride, y_stride, v_stride, m_per_split,
    ONE_PASS: tl.constexpr, SPLITS: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr, INDEX64: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """dW [N, K] = dyᵀ · x, summed over M, and with ``dots`` [tiles of K, N] its partial row dots ⟨dW, v⟩.

    ONE_PASS is for layers with a fused ReLU and no bias: there y = g ⟨x, v/n⟩ wherever dy passes, so that
    c = Σ dy·y / g comes from the tiles at hand, and dv = g/n (dW − c v/n) is written to ``dw`` at once (a row with
    g = 0 has y = 0 and passes nothing: c = 0).
    ``scales`` [N] then takes g/n, for the input gradient.
    With SPLITS > 1 shares of M are written to ``dw`` [SPLITS, N, K], for finish_weight to add.
    """
    pid, split = tl.program_id(0), tl.program_id(1)
    tile_n, tile_k = grouped_tile(pid, tl.cdiv(N, BLOCK_N), tl.cdiv(K, BLOCK_K), GROUP)
    row = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    column = tile_k * BLOCK_K + tl.arange(0, BLOCK_K)
    row_ok, column_ok = row < N, column < K
    m = tl.arange(0, BLOCK_M)
    if INDEX64:
        m = m.to(tl.int64)
    first = split * m_per_split if SPLITS > 1 else 0
    last = tl.minimum(first + m_per_split, M) if SPLITS > 1 else M
    dy_at = dy + (first + m)[:, None] * dy_stride + row[None, :]
    x_at = x + (first + m)[:, None] * x_stride + column[None, :]
    if y is not None:
        y_at = y + (first + m)[:, None] * y_stride + row[None, :]
    acc = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    products = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)  # dy·y, summed over rows of tiles: threads exchange nothing
    for m0 in range(first, last, BLOCK_M):
        dy_ok, x_ok = row_ok[None, :], column_ok[None, :]
        if not EVEN:
            m_ok = (m < last - m0)[:, None]
            dy_ok, x_ok = dy_ok & m_ok, x_ok & m_ok
        dy_tile = tl.load(dy_at, mask=dy_ok, other=0.0)
        x_tile = tl.load(x_at, mask=x_ok, other=0.0)
        if y is not None:
            y_tile = tl.load(y_at, mask=dy_ok, other=0.0)
            dy_tile = narrowed(tl.where(y_tile <= 0, 0.0, dy_tile), dy.dtype.element_ty)
            y_at += BLOCK_M * y_stride
            if ONE_PASS:
                products += dy_tile.to(tl.float32) * y_tile.to(tl.float32)
        acc = dot(tl.trans(dy_tile), x_tile, acc, PRECISION)
        dy_at += BLOCK_M * dy_stride
        x_at += BLOCK_M * x_stride
    out_row = row.to(tl.int64) if INDEX64 else row
    ok = row_ok[:, None] & column_ok[None, :]
    if ONE_PASS or dots is not None:
        v_tile = tl.load(v + out_row[:, None] * v_stride + column[None, :], mask=ok, other=0.0).to(tl.float32)
    if ONE_PASS:
        gain = tl.load(g + out_row, mask=row_ok, other=0.0).to(tl.float32)
        norm = tl.load(norms + out_row, mask=row_ok, other=0.0)
        c = tl.where(gain == 0, 0.0, tl.sum(products, 0) / tl.where(gain == 0, 1.0, gain))
        c = tl.where(norm == 0, 0.0, c)
        u = v_tile * gain_over_norm(1.0, norm)[:, None]
        scale = gain_over_norm(gain, norm)
        acc = scale[:, None] * (acc - c[:, None] * u)
        if scales is not None:
            tl.store(scales + out_row, scale, mask=row_ok & (tile_k == 0))
        if dg is not None:
            tl.store(dg + out_row, narrowed(c, dg.dtype.element_ty), mask=row_ok & (tile_k == 0))
    elif dots is not None:
        tl.store(dots + tile_k * N + out_row, tl.sum(tl.where(ok, acc, 0.0) * v_tile, 1), mask=row_ok)
    tl.store(dw + (split * N + out_row)[:, None] * K + column[None, :], narrowed(acc, dw.dtype.element_ty), mask=ok)
