"""Depthwise convolutions (as many groups as channels, one filter each), which have no matmul and are bound by memory.

They have the three forms of conv.py, on tiles of BLOCK_P pixels × BLOCK_C channels. Input and output channel are the
same, so the gain always multiplies the result.
"""

import triton
import triton.language as tl

from wnfused.kernels.triton.conv import channel_sums, finish_tile, inside, taps_of_phase, volume_index
from wnfused.kernels.triton.indexing import scale_at


@triton.jit
def depthwise_gather(
    source, mask_source, v, g, norms, bias, out,
    batch, C, D2, D1, D0, O2, O1, O0,
    stride2, stride1, stride0, padding2, padding1, padding0, dilation2, dilation1, dilation0,
    s_batch, s_channel, s2, s1, s0, v_first, v2, v1, v0, o_batch, o_channel, o2, o1, o0, gain_step,
    K2: tl.constexpr, K1: tl.constexpr, K0: tl.constexpr,
    GAIN: tl.constexpr, RELU: tl.constexpr, INDEX64: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    pixels = batch * O2 * O1 * O0
    tiles_c = tl.cdiv(C, BLOCK_C)
    p = tl.program_id(0) // tiles_c * BLOCK_P + tl.arange(0, BLOCK_P)
    c = tl.program_id(0) % tiles_c * BLOCK_C + tl.arange(0, BLOCK_C)
    p_ok, c_ok = p < pixels, c < C
    if INDEX64:
        p, c = p.to(tl.int64), c.to(tl.int64)
    b, z, y, x = volume_index(tl.where(p_ok, p, 0), O2, O1, O0)
    out_at = b * o_batch + z * o2 + y * o1 + x * o0
    z, y, x = z * stride2 - padding2, y * stride1 - padding1, x * stride0 - padding0
    acc = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
    for tap in range(K2 * K1 * K0):
        t2, t1, t0 = tap // (K1 * K0), tap // K0 % K1, tap % K0
        tz, ty, tx = z + t2 * dilation2, y + t1 * dilation1, x + t0 * dilation0
        ok = (p_ok & inside(tz, ty, tx, D2, D1, D0))[:, None] & c_ok[None, :]
        at = (b * s_batch + tz * s2 + ty * s1 + tx * s0)[:, None] + c[None, :] * s_channel
        tile = tl.load(source + at, mask=ok, other=0.0).to(tl.float32)
        if mask_source is not None:
            tile = tl.where(tl.load(mask_source + at, mask=ok, other=0.0) <= 0, 0.0, tile)
        weight = tl.load(v + c * v_first + t2 * v2 + t1 * v1 + t0 * v0, mask=c_ok, other=0.0).to(tl.float32)
        acc += tile * weight[None, :]
    if GAIN != "none":
        acc *= scale_at(g, norms, c, c_ok, gain_step)[None, :]
    finish_tile(acc, bias, out, out_at, p_ok, c, c_ok, o_channel, RELU)


@triton.jit
def depthwise_scatter(
    source, mask_source, v, g, norms, bias, out,
    batch, C, D2, D1, D0, O2, O1, O0,
    stride2, stride1, stride0, padding2, padding1, padding0, dilation2, dilation1, dilation0,
    divisor2, divisor1, divisor0, inverse2, inverse1, inverse0,
    s_batch, s_channel, s2, s1, s0, v_first, v2, v1, v0, o_batch, o_channel, o2, o1, o0, gain_step,
    K2: tl.constexpr, K1: tl.constexpr, K0: tl.constexpr,
    GAIN: tl.constexpr, RELU: tl.constexpr, INDEX64: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    phase = tl.program_id(1)
    f2, f1, f0 = phase // (stride1 * stride0), phase // stride0 % stride1, phase % stride0
    J2, J1, J0 = tl.cdiv(O2, stride2), tl.cdiv(O1, stride1), tl.cdiv(O0, stride0)
    pixels = batch * J2 * J1 * J0
    tiles_c = tl.cdiv(C, BLOCK_C)
    p = tl.program_id(0) // tiles_c * BLOCK_P + tl.arange(0, BLOCK_P)
    c = tl.program_id(0) % tiles_c * BLOCK_C + tl.arange(0, BLOCK_C)
    p_ok, c_ok = p < pixels, c < C
    if INDEX64:
        p, c = p.to(tl.int64), c.to(tl.int64)
    b, z, y, x = volume_index(tl.where(p_ok, p, 0), J2, J1, J0)
    first2, step2, count2, z0 = taps_of_phase(f2, padding2, stride2, divisor2, inverse2, K2, dilation2)
    first1, step1, count1, y0 = taps_of_phase(f1, padding1, stride1, divisor1, inverse1, K1, dilation1)
    first0, step0, count0, x0 = taps_of_phase(f0, padding0, stride0, divisor0, inverse0, K0, dilation0)
    out2, out1, out0 = f2 + z * stride2, f1 + y * stride1, f0 + x * stride0
    p_ok = p_ok & (out2 < O2) & (out1 < O1) & (out0 < O0)
    out_at = b * o_batch + out2 * o2 + out1 * o1 + out0 * o0
    z, y, x = z + z0, y + y0, x + x0
    acc = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
    for tap in range(count2 * count1 * count0):
        m2, m1, m0 = tap // (count1 * count0), tap // count0 % count1, tap % count0
        tz = z - m2 * (dilation2 // divisor2)
        ty = y - m1 * (dilation1 // divisor1)
        tx = x - m0 * (dilation0 // divisor0)
        ok = (p_ok & inside(tz, ty, tx, D2, D1, D0))[:, None] & c_ok[None, :]
        at = (b * s_batch + tz * s2 + ty * s1 + tx * s0)[:, None] + c[None, :] * s_channel
        tile = tl.load(source + at, mask=ok, other=0.0).to(tl.float32)
        if mask_source is not None:
            tile = tl.where(tl.load(mask_source + at, mask=ok, other=0.0) <= 0, 0.0, tile)
        tap_at = (first2 + m2 * step2) * v2 + (first1 + m1 * step1) * v1 + (first0 + m0 * step0) * v0
        weight = tl.load(v + c * v_first + tap_at, mask=c_ok, other=0.0).to(tl.float32)
        acc += tile * weight[None, :]
    if GAIN != "none":
        acc *= scale_at(g, norms, c, c_ok, gain_step)[None, :]
    finish_tile(acc, bias, out, out_at, p_ok, c, c_ok, o_channel, RELU)


@triton.jit
def depthwise_weight_gradient(
    near, far, mask_near, mask_far, dw, sums,
    batch, C, D2, D1, D0, O2, O1, O0,
    stride2, stride1, stride0, padding2, padding1, padding0, dilation2, dilation1, dilation0,
    n_batch, n_channel, n2, n1, n0, f_batch, f_channel, f2, f1, f0, v_first, v2, v1, v0,
    elements, pixels_per_split,
    K2: tl.constexpr, K1: tl.constexpr, K0: tl.constexpr, SUM_FAR: tl.constexpr, INDEX64: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """A split's share of dW for BLOCK_C channels and one tap, to ``dw`` [splits, …] in v's order.

    ``sums`` [splits, C] takes shares of near's (SUM_FAR: far's) sums over pixels, from the programs of the first tap.
    """
    split = tl.program_id(1)
    taps = K2 * K1 * K0
    tap = tl.program_id(0) % taps
    t2, t1, t0 = tap // (K1 * K0), tap // K0 % K1, tap % K0
    c = tl.program_id(0) // taps * BLOCK_C + tl.arange(0, BLOCK_C)
    c_ok = c < C
    first = split * pixels_per_split
    last = tl.minimum(first + pixels_per_split, batch * O2 * O1 * O0)
    if INDEX64:
        c = c.to(tl.int64)
    total = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
    for p0 in range(first, last, BLOCK_P):
        p = p0 + tl.arange(0, BLOCK_P)
        p_ok = p < last
        if INDEX64:
            p = p.to(tl.int64)
        b, z, y, x = volume_index(p, O2, O1, O0)
        near_ok = p_ok[:, None] & c_ok[None, :]
        near_at = (b * n_batch + z * n2 + y * n1 + x * n0)[:, None] + c[None, :] * n_channel
        z = z * stride2 - padding2 + t2 * dilation2
        y = y * stride1 - padding1 + t1 * dilation1
        x = x * stride0 - padding0 + t0 * dilation0
        far_ok = (p_ok & inside(z, y, x, D2, D1, D0))[:, None] & c_ok[None, :]
        far_at = (b * f_batch + z * f2 + y * f1 + x * f0)[:, None] + c[None, :] * f_channel
        near_tile = tl.load(near + near_at, mask=near_ok, other=0.0).to(tl.float32)
        far_tile = tl.load(far + far_at, mask=far_ok, other=0.0).to(tl.float32)
        if mask_near is not None:
            near_tile = tl.where(tl.load(mask_near + near_at, mask=near_ok, other=0.0) <= 0, 0.0, near_tile)
        if mask_far is not None:
            far_tile = tl.where(tl.load(mask_far + far_at, mask=far_ok, other=0.0) <= 0, 0.0, far_tile)
        total += near_tile * far_tile
    part = split.to(tl.int64) * elements if INDEX64 else split * elements
    tl.store(dw + part + c * v_first + t2 * v2 + t1 * v1 + t0 * v0, tl.sum(total, 0), mask=c_ok)
    if sums is not None:  # noqa: SIM102 - this test is the compiler's, the next one the program's
        if tap == 0:
            if SUM_FAR:
                pixels = batch * D2 * D1 * D0
                share = tl.cdiv(pixels, tl.num_programs(1))
                total_of = channel_sums(
                    far, mask_far, c, c_ok, split * share, tl.minimum(split * share + share, pixels),
                    D2, D1, D0, f_batch, f_channel, f2, f1, f0, INDEX64, BLOCK_P,
                )  # fmt: skip
            else:
                total_of = channel_sums(
                    near, mask_near, c, c_ok, first, last, O2, O1, O0, n_batch, n_channel, n2, n1, n0, INDEX64, BLOCK_P
                )
            tl.store(sums + split * C + c, total_of, mask=c_ok)
