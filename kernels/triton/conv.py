"""Convolutions as implicit GEMMs over pixels: one, two and three dimensions, plain and transposed, in any layout.

Three kernels handle both kinds of layer with v ``[first, second, taps]``:

    gather            out[p, n] = Σ in[p·stride − padding + tap·dilation, c] · v[n, c, tap]
                      a convolution's forward, a transposed convolution's input gradient
    scatter           the transpose of it, by pixel phase, so that no tap is visited in vain
                      a transposed convolution's forward, a convolution's input gradient
    weight_gradient   dv[n, c, tap] = Σ near[p, n] · far[p·stride − padding + tap·dilation, c]
                      near is the tensor at gather's output, far the one at its input

Signals and images are volumes with sizes of 1. Sizes are (depth, height, width); ``n`` runs over a group's outputs,
``c`` over a group's inputs. GAIN is as in linear.py, seen from the kernel: "output" multiplies the result, "input"
the tile that is read, "weight" v's tile. ``gain_group`` is what a group adds to the gain's index.
"""

import triton
import triton.language as tl

from wnfused.kernels.triton.indexing import clamped, grouped_tile, scale_at, scales_of_columns
from wnfused.kernels.triton.language import dot, narrowed, product
from wnfused.kernels.triton.rows import gain_over_norm


@triton.jit
def volume_index(p, D2, D1, D0):
    """Split the index p in [batch, D2, D1, D0] into its coordinates."""
    return p // (D0 * D1 * D2), p // (D0 * D1) % D2, p // D0 % D1, p % D0


@triton.jit
def advanced(b, z, y, x, b_step, z_step, y_step, x_step, D2, D1, D0):
    """Coordinates in [batch, D2, D1, D0] after a step, itself given as coordinates: without divisions."""
    x += x_step
    carry = x >= D0
    x -= tl.where(carry, D0, 0)
    y += y_step + carry.to(y.dtype)
    carry = y >= D1
    y -= tl.where(carry, D1, 0)
    z += z_step + carry.to(z.dtype)
    carry = z >= D2
    return b + b_step + carry.to(b.dtype), z - tl.where(carry, D2, 0), y, x


@triton.jit
def inside(z, y, x, D2, D1, D0):
    return (z >= 0) & (z < D2) & (y >= 0) & (y < D1) & (x >= 0) & (x < D0)


@triton.jit
def finish_tile(acc, bias, out, at, at_ok, channel, channel_ok, o_channel, RELU: tl.constexpr):
    """Apply bias and ReLU to pixels × channels and store them; pixels start at ``at``."""
    if bias is not None:
        acc += tl.load(bias + channel, mask=channel_ok, other=0.0).to(tl.float32)[None, :]
    if RELU:
        acc = tl.maximum(acc, 0.0, propagate_nan=tl.PropagateNan.ALL)
    place = at[:, None] + channel[None, :] * o_channel
    tl.store(out + place, narrowed(acc, out.dtype.element_ty), mask=at_ok[:, None] & channel_ok[None, :])


@triton.jit
def gather(
    source, mask_source, v, g, norms, bias, out,
    batch, C, N, D2, D1, D0, O2, O1, O0,
    stride2, stride1, stride0, padding2, padding1, padding0, dilation2, dilation1, dilation0,
    s_batch, s_channel, s2, s1, s0, v_first, v_second, v2, v1, v0, o_batch, o_channel, o2, o1, o0,
    gain_step, gain_group,
    K2: tl.constexpr, K1: tl.constexpr, K0: tl.constexpr,
    GAIN: tl.constexpr, RELU: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr, INDEX64: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """out [batch, groups·N, O] from source [batch, groups·C, D]; where mask_source <= 0, source counts as 0."""
    group = tl.program_id(1)
    pixels = batch * O2 * O1 * O0
    tile_m, tile_n = grouped_tile(tl.program_id(0), tl.cdiv(pixels, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP)
    p = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    p_ok = p < pixels
    if INDEX64:
        p, group = p.to(tl.int64), group.to(tl.int64)
    b, z, y, x = volume_index(tl.where(p_ok, p, 0), O2, O1, O0)
    out_at = b * o_batch + z * o2 + y * o1 + x * o0
    z, y, x = z * stride2 - padding2, y * stride1 - padding1, x * stride0 - padding0
    start = b * s_batch + z * s2 + y * s1 + x * s0 + group * C * s_channel
    n = clamped(tile_n * BLOCK_N, N, BLOCK_N, INDEX64)
    c = tl.arange(0, BLOCK_K).to(tl.int64) if INDEX64 else tl.arange(0, BLOCK_K)
    v_start = (group * N + n) * v_first
    if GAIN == "weight":
        weight_scale = scale_at(g, norms, group * gain_group + n, n < N, gain_step)
    blocks = tl.cdiv(C, BLOCK_K)
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for i in range(K2 * K1 * K0 * blocks):
        tap, c0 = i // blocks, i % blocks * BLOCK_K
        t2, t1, t0 = tap // (K1 * K0), tap // K0 % K1, tap % K0
        there = p_ok & inside(z + t2 * dilation2, y + t1 * dilation1, x + t0 * dilation0, D2, D1, D0)
        shift = t2 * dilation2 * s2 + t1 * dilation1 * s1 + t0 * dilation0 * s0
        at = (start + shift)[:, None] + (c0 + c)[None, :] * s_channel
        v_at = v_start[:, None] + (c0 + c)[None, :] * v_second + (t2 * v2 + t1 * v1 + t0 * v0)
        ok = there[:, None] if EVEN else there[:, None] & (c0 + c < C)[None, :]
        tile = tl.load(source + at, mask=ok, other=0.0)
        v_tile = tl.load(v + v_at) if EVEN else tl.load(v + v_at, mask=(c0 + c < C)[None, :], other=0.0)
        if mask_source is not None:
            passed = tl.load(mask_source + at, mask=ok, other=0.0)
            tile = narrowed(tl.where(passed <= 0, 0.0, tile), source.dtype.element_ty)
        if GAIN == "input":
            s = scale_at(g, norms, group * gain_group + c0 + c, None if EVEN else c0 + c < C, gain_step, True)
            tile = narrowed(tile.to(tl.float32) * s[None, :], source.dtype.element_ty)
        if GAIN == "weight":
            v_tile = v_tile.to(tl.float32) * weight_scale[:, None]
        acc = dot(tile, tl.trans(narrowed(v_tile, source.dtype.element_ty)), acc, PRECISION)
    n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    n_ok = n < N
    if GAIN == "output":
        scale, _ = scales_of_columns(g, norms, group * gain_group + n, n_ok, gain_step)
        acc *= scale[None, :]
    finish_tile(acc, bias, out, out_at, p_ok, group * N + n, n_ok, o_channel, RELU)


@triton.jit
def taps_of_phase(phase, padding, stride, divisor, inverse, K: tl.constexpr, dilation):
    """The taps t with t·dilation ≡ phase + padding (mod stride): (first, step, how many, source index of the first).

    ``divisor`` is gcd(dilation, stride), ``inverse`` that of dilation/divisor modulo step = stride/divisor.
    """
    step = stride // divisor
    rest = (phase + padding) % stride
    first = rest // divisor * inverse % step
    count = tl.where(rest % divisor == 0, tl.maximum(0, (K - first + step - 1) // step), 0)
    return first, step, count, (phase + padding - first * dilation) // stride


@triton.jit
def scatter(
    source, mask_source, v, g, norms, bias, out,
    batch, C, N, D2, D1, D0, O2, O1, O0,
    stride2, stride1, stride0, padding2, padding1, padding0, dilation2, dilation1, dilation0,
    divisor2, divisor1, divisor0, inverse2, inverse1, inverse0,
    s_batch, s_channel, s2, s1, s0, v_first, v_second, v2, v1, v0, o_batch, o_channel, o2, o1, o0,
    gain_step, gain_group,
    K2: tl.constexpr, K1: tl.constexpr, K0: tl.constexpr,
    GAIN: tl.constexpr, RELU: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr, INDEX64: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """out [batch, groups·N, O] = source [batch, groups·C, D] · v [groups·C, N, taps] at d·stride − padding + t·dilation

    Output pixels with the same remainder modulo the stride receive the same taps; a program computes one such phase.
    """
    phase = tl.program_id(1) % (stride2 * stride1 * stride0)
    group = tl.program_id(1) // (stride2 * stride1 * stride0)
    f2, f1, f0 = phase // (stride1 * stride0), phase // stride0 % stride1, phase % stride0
    J2, J1, J0 = tl.cdiv(O2, stride2), tl.cdiv(O1, stride1), tl.cdiv(O0, stride0)
    pixels = batch * J2 * J1 * J0
    tile_m, tile_n = grouped_tile(tl.program_id(0), tl.cdiv(pixels, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP)
    p = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    p_ok = p < pixels
    if INDEX64:
        p, group = p.to(tl.int64), group.to(tl.int64)
    b, z, y, x = volume_index(tl.where(p_ok, p, 0), J2, J1, J0)
    first2, step2, count2, z0 = taps_of_phase(f2, padding2, stride2, divisor2, inverse2, K2, dilation2)
    first1, step1, count1, y0 = taps_of_phase(f1, padding1, stride1, divisor1, inverse1, K1, dilation1)
    first0, step0, count0, x0 = taps_of_phase(f0, padding0, stride0, divisor0, inverse0, K0, dilation0)
    out2, out1, out0 = f2 + z * stride2, f1 + y * stride1, f0 + x * stride0
    p_ok = p_ok & (out2 < O2) & (out1 < O1) & (out0 < O0)
    out_at = b * o_batch + out2 * o2 + out1 * o1 + out0 * o0
    z, y, x = z + z0, y + y0, x + x0
    back2, back1, back0 = dilation2 // divisor2, dilation1 // divisor1, dilation0 // divisor0
    start = b * s_batch + z * s2 + y * s1 + x * s0 + group * C * s_channel
    n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    n_ok = n < N
    c = tl.arange(0, BLOCK_K).to(tl.int64) if INDEX64 else tl.arange(0, BLOCK_K)
    blocks = tl.cdiv(C, BLOCK_K)
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for i in range(count2 * count1 * count0 * blocks):
        tap, c0 = i // blocks, i % blocks * BLOCK_K
        m2, m1, m0 = tap // (count1 * count0), tap // count0 % count1, tap % count0
        there = p_ok & inside(z - m2 * back2, y - m1 * back1, x - m0 * back0, D2, D1, D0)
        shift = m2 * back2 * s2 + m1 * back1 * s1 + m0 * back0 * s0
        at = (start - shift)[:, None] + (c0 + c)[None, :] * s_channel
        tap_at = (first2 + m2 * step2) * v2 + (first1 + m1 * step1) * v1 + (first0 + m0 * step0) * v0
        v_at = (group * C + c0 + c)[:, None] * v_first + n[None, :] * v_second + tap_at
        ok = there[:, None] if EVEN else there[:, None] & (c0 + c < C)[None, :]
        tile = tl.load(source + at, mask=ok, other=0.0)
        v_ok = n_ok[None, :] if EVEN else n_ok[None, :] & (c0 + c < C)[:, None]
        v_tile = tl.load(v + v_at, mask=v_ok, other=0.0)
        if mask_source is not None:
            passed = tl.load(mask_source + at, mask=ok, other=0.0)
            tile = narrowed(tl.where(passed <= 0, 0.0, tile), source.dtype.element_ty)
        if GAIN == "input":
            s = scale_at(g, norms, group * gain_group + c0 + c, None if EVEN else c0 + c < C, gain_step, True)
            tile = narrowed(tile.to(tl.float32) * s[None, :], source.dtype.element_ty)
        if GAIN == "weight":
            s = scale_at(g, norms, group * gain_group + c0 + c, None if EVEN else c0 + c < C, gain_step, True)
            v_tile = v_tile.to(tl.float32) * s[:, None]
        acc = dot(tile, narrowed(v_tile, source.dtype.element_ty), acc, PRECISION)
    if GAIN == "output":
        scale, _ = scales_of_columns(g, norms, group * gain_group + n, n_ok, gain_step)
        acc *= scale[None, :]
    finish_tile(acc, bias, out, out_at, p_ok, group * N + n, n_ok, o_channel, RELU)


@triton.jit
def channel_sums(
    t, mask, channel, channel_ok, first, last, D2, D1, D0, t_batch, t_channel, t2, t1, t0,
    INDEX64: tl.constexpr, BLOCK_P: tl.constexpr,
):  # fmt: skip
    """Σ of t [batch, channels, D] over the pixels from first to last, where mask (if there is one) is positive."""
    if INDEX64:
        channel = channel.to(tl.int64)
    total = tl.zeros([BLOCK_P, channel.shape[0]], tl.float32)
    for p0 in range(first, last, BLOCK_P):
        p = p0 + tl.arange(0, BLOCK_P)
        ok = (p < last)[:, None] & channel_ok[None, :]
        b, z, y, x = volume_index(p.to(tl.int64) if INDEX64 else p, D2, D1, D0)
        at = (b * t_batch + z * t2 + y * t1 + x * t0)[:, None] + channel[None, :] * t_channel
        tile = tl.load(t + at, mask=ok, other=0.0).to(tl.float32)
        if mask is not None:
            tile = tl.where(tl.load(mask + at, mask=ok, other=0.0) <= 0, 0.0, tile)
        total += tile
    return tl.sum(total, 0)


@triton.jit
def store_channels(acc, v, norms, dw, dots, row, row_ok, at, channel, C, v_second):
    """Store dW of these input channels, and return their share of the row dots ⟨dW, v/n⟩."""
    total = tl.zeros_like(row_ok.to(tl.float32))
    ok = row_ok[:, None] & (channel < C)[None, :]
    place = at[:, None] + channel[None, :] * v_second
    if dots is not None:
        inverse = gain_over_norm(1.0, tl.load(norms + row, mask=row_ok, other=0.0), True)
        u = tl.load(v + place, mask=ok, other=0.0).to(tl.float32) * inverse[:, None]
        total = tl.sum(product(acc, u), 1)
    tl.store(dw + place, narrowed(acc, dw.dtype.element_ty), mask=ok)
    return total


@triton.jit
def weight_gradient(
    near, far, mask_near, mask_far, v, norms, dw, dots, sums,
    batch, C, N, D2, D1, D0, O2, O1, O0,
    stride2, stride1, stride0, padding2, padding1, padding0, dilation2, dilation1, dilation0,
    n_batch, n_channel, n2, n1, n0, f_batch, f_channel, f2, f1, f0, v_first, v_second, v2, v1, v0,
    elements, rows, pixels_per_split, splits,
    K2: tl.constexpr, K1: tl.constexpr, K0: tl.constexpr,
    SUM_FAR: tl.constexpr, PRECISION: tl.constexpr, INDEX64: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """dW, in v's order, from near [batch, groups·N, O] and far [batch, groups·C, D], summed over near's pixels.

    A program owns BLOCK_M outputs × BLOCK_N inputs of one tap. With ``dots`` [tiles of taps and inputs, rows] it leaves
    its part of the row dots ⟨dW, v/n⟩; with splits > 1 shares of the pixels go to ``dw`` [splits, …].
    ``sums`` [splits, channels] takes shares of near's sums over pixels (SUM_FAR: of far's), from the programs of the
    first tap and input (output).
    """
    group, split = tl.program_id(1) // splits, tl.program_id(1) % splits
    blocks = tl.cdiv(C, BLOCK_N)
    columns = K2 * K1 * K0 * blocks
    tile_n, column = tl.program_id(0) // columns, tl.program_id(0) % columns
    tap, c0 = column // blocks, column % blocks * BLOCK_N
    t2, t1, t0 = tap // (K1 * K0), tap // K0 % K1, tap % K0
    if INDEX64:
        group = group.to(tl.int64)
    n = tile_n * BLOCK_M + tl.arange(0, BLOCK_M)
    c = c0 + tl.arange(0, BLOCK_N)
    m = tl.arange(0, BLOCK_K)
    first = split * pixels_per_split
    last = tl.minimum(first + pixels_per_split, batch * O2 * O1 * O0)
    n_ok, c_ok = n < N, c < C
    near_channel = (group * N + n) * n_channel
    far_channel = (group * C + c) * f_channel
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    # The coordinates of the pixels are carried by the loop: dividing for them would take longer than the products.
    b, z, y, x = volume_index((first + m).to(tl.int64) if INDEX64 else first + m, O2, O1, O0)
    b_step, z_step, y_step, x_step = volume_index(tl.cast(BLOCK_K, tl.int32), O2, O1, O0)
    for p0 in range(first, last, BLOCK_K):
        p_ok = m < last - p0
        near_at = (b * n_batch + z * n2 + y * n1 + x * n0)[:, None] + near_channel[None, :]
        far_z = z * stride2 - padding2 + t2 * dilation2
        far_y = y * stride1 - padding1 + t1 * dilation1
        far_x = x * stride0 - padding0 + t0 * dilation0
        far_ok = p_ok & inside(far_z, far_y, far_x, D2, D1, D0)
        far_at = (b * f_batch + far_z * f2 + far_y * f1 + far_x * f0)[:, None] + far_channel[None, :]
        b, z, y, x = advanced(b, z, y, x, b_step, z_step, y_step, x_step, O2, O1, O0)
        near_ok, far_ok = p_ok[:, None] & n_ok[None, :], far_ok[:, None] & c_ok[None, :]
        near_tile = tl.load(near + near_at, mask=near_ok, other=0.0)
        far_tile = tl.load(far + far_at, mask=far_ok, other=0.0)
        if mask_near is not None:
            passed = tl.load(mask_near + near_at, mask=near_ok, other=0.0)
            near_tile = narrowed(tl.where(passed <= 0, 0.0, near_tile), near.dtype.element_ty)
        if mask_far is not None:
            passed = tl.load(mask_far + far_at, mask=far_ok, other=0.0)
            far_tile = narrowed(tl.where(passed <= 0, 0.0, far_tile), far.dtype.element_ty)
        acc = dot(tl.trans(near_tile), far_tile, acc, PRECISION)
    row = group * N + n
    at = row * v_first + (t2 * v2 + t1 * v1 + t0 * v0)
    part = split.to(tl.int64) * elements if INDEX64 else split * elements
    if BLOCK_M * BLOCK_N > 128 * 128:  # half of v's tile at a time: beside the products there are no registers for all
        left, right = tl.split(tl.permute(tl.reshape(acc, [BLOCK_M, 2, BLOCK_N // 2]), [0, 2, 1]))
        half = c0 + tl.arange(0, BLOCK_N // 2)
        shares = store_channels(left, v, norms, dw + part, dots, row, n_ok, at, half, C, v_second)
        half += BLOCK_N // 2
        shares += store_channels(right, v, norms, dw + part, dots, row, n_ok, at, half, C, v_second)
    else:
        shares = store_channels(acc, v, norms, dw + part, dots, row, n_ok, at, c, C, v_second)
    if dots is not None:
        tl.store(dots + column * rows + row, shares, mask=n_ok)
    if sums is not None:
        if SUM_FAR:
            if (tile_n == 0) & (tap == 0):
                pixels = batch * D2 * D1 * D0
                share = tl.cdiv(pixels, splits)
                total = channel_sums(
                    far, mask_far, group * C + c, c_ok, split * share, tl.minimum(split * share + share, pixels),
                    D2, D1, D0, f_batch, f_channel, f2, f1, f0, INDEX64, 64,
                )  # fmt: skip
                tl.store(sums + split * (rows // N * C) + group * C + c, total, mask=c_ok)
        else:
            if column == 0:
                total = channel_sums(
                    near, mask_near, row, n_ok, first, last, O2, O1, O0, n_batch, n_channel, n2, n1, n0, INDEX64, 64
                )
                tl.store(sums + split * rows + row, total, mask=n_ok)
