"""Masks dy by the ReLU and multiplies it by g/n, for the backward GEMMs of a linear layer with a norm per output.

dx is then a plain GEMM: if the tensor cores read their operands from shared memory, a multiplication in its loop would
cost more than this pass. The same pass computes the sums of dy and, if the saved output allows it, ⟨dW, v/n⟩.
"""

import triton
import triton.language as tl

from wnfused.kernels.triton.language import narrowed, quotient
from wnfused.kernels.triton.rows import gain_over_norm

# float16: scales this far apart still leave dy·g/n its digits, and float32 rows of these norms can be rounded to it.
WIDEST_SCALES = tl.constexpr(8.0)
SMALLEST_NORM = tl.constexpr(0.125)
LARGEST_NORM = tl.constexpr(32768.0)


@triton.jit
def common_factor(g, norms, N, MIXED: tl.constexpr):
    """A power of two at or above every |g/n|, which float16 gradients are divided by; 0 where that is not enough.

    It is not enough if the scales differ too much, or (MIXED) if float32 weights leave float16's range.
    """
    index = tl.arange(0, 1024)
    largest = tl.zeros([1024], tl.float32)
    smallest = tl.full([1024], float("inf"), tl.float32)
    strange = tl.zeros([1024], tl.int32)
    for n0 in range(0, N, 1024):
        ok = index < N - n0
        norm = tl.load(norms + n0 + index, mask=ok, other=0.0)
        scale = tl.abs(gain_over_norm(tl.load(g + n0 + index, mask=ok, other=0.0).to(tl.float32), norm))
        largest = tl.maximum(largest, scale)
        smallest = tl.minimum(smallest, tl.where(scale == 0, float("inf"), scale))
        bad = (scale != scale) | (scale >= float("inf"))
        if MIXED:
            bad = bad | ((norm != 0) & ((norm < SMALLEST_NORM) | (norm > LARGEST_NORM)))
        strange = tl.maximum(strange, bad.to(tl.int32))
    top, bottom = tl.max(largest, 0), tl.min(smallest, 0)
    tame = (tl.max(strange, 0) == 0) & (top <= bottom * WIDEST_SCALES) & (top >= 1e-30) & (top <= 1e30)
    power = (top.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True) * 2.0
    return tl.where(top == 0, 1.0, tl.where(tame, power, 0.0))


@triton.jit
def prepare_channels(
    pid, dy, y, g, norms, scaled, factor, sums, dots, dg, M, N, dy_stride, y_stride, rows_per_part,
    MIXED: tl.constexpr, INDEX64: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Of BLOCK_C columns and a part of the rows of dy [M, N], what is not None of

    ``scaled`` [M, N]: dy·g/n, 0 where y <= 0; with ``factor`` [1] (program 0 writes it) divided by that, or, where it
    is 0, dy alone;
    ``sums`` [parts, N]: Σ dy; ``dots`` and ``dg`` [N], where all rows are one part: Σ dy·y / g, which is ⟨dW, v/n⟩ of a
    layer with ReLU and no bias.
    """
    columns = tl.cdiv(N, BLOCK_C)
    part, channel = pid // columns, pid % columns * BLOCK_C + tl.arange(0, BLOCK_C)
    channel_ok = channel < N
    p = tl.arange(0, BLOCK_P)
    if scaled is not None or dots is not None:
        gain = tl.load(g + channel, mask=channel_ok, other=0.0).to(tl.float32)
        norm = tl.load(norms + channel, mask=channel_ok, other=0.0)
        scale = gain_over_norm(gain, norm)
    if factor is not None:
        power = common_factor(g, norms, N, MIXED)
        if pid == 0:
            tl.store(factor, power)
        scale = tl.where(power == 0, 1.0, quotient(scale, tl.where(power == 0, 1.0, power)))
    total = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
    products = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
    for p0 in range(part * rows_per_part, tl.minimum(part * rows_per_part + rows_per_part, M), BLOCK_P):
        row = (p0 + p).to(tl.int64) if INDEX64 else p0 + p
        ok = (row < M)[:, None] & channel_ok[None, :]
        tile = tl.load(dy + row[:, None] * dy_stride + channel[None, :], mask=ok, other=0.0).to(tl.float32)
        if y is not None:
            passed = tl.load(y + row[:, None] * y_stride + channel[None, :], mask=ok, other=0.0).to(tl.float32)
            tile = tl.where(passed <= 0, 0.0, tile)
            if dots is not None:
                products += tile * passed
        if sums is not None:
            total += tile
        if scaled is not None:
            out = narrowed(tile * scale[None, :], scaled.dtype.element_ty)
            tl.store(scaled + row[:, None] * N + channel[None, :], out, mask=ok)
    if sums is not None:
        tl.store(sums + part * N + channel, tl.sum(total, 0), mask=channel_ok)
    if dots is not None:
        c = tl.where(gain == 0, 0.0, quotient(tl.sum(products, 0), tl.where(gain == 0, 1.0, gain)))
        c = tl.where(norm == 0, 0.0, c)
        tl.store(dots + channel, c, mask=channel_ok)
        if dg is not None:
            tl.store(dg + channel, narrowed(c, dg.dtype.element_ty), mask=channel_ok)


@triton.jit
def prepare_gradient(
    dy, y, g, norms, scaled, factor, sums, dots, dg, M, N, dy_stride, y_stride, rows_per_part,
    MIXED: tl.constexpr, INDEX64: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    prepare_channels(
        tl.program_id(0), dy, y, g, norms, scaled, factor, sums, dots, dg, M, N, dy_stride, y_stride, rows_per_part,
        MIXED, INDEX64, BLOCK_P, BLOCK_C,
    )  # fmt: skip
