"""The vendor path's epilogue: gain, bias and ReLU on a finished output, in place."""

import triton
import triton.language as tl

from wnfused.kernels.triton.language import narrowed
from wnfused.kernels.triton.rows import gain_over_norm


@triton.jit
def scale_channels(
    t, g, norms, bias, out, channels, batch, pixels, t_batch, t_channel, t_pixel, gain_step, gain_period,
    RELU: tl.constexpr, STATISTICS: tl.constexpr, INDEX64: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """out = act(t · g/n + bias), channel by channel; the gain of channel c is at c modulo gain_period."""
    tiles_c = tl.cdiv(channels, BLOCK_C)
    p = tl.program_id(0) // tiles_c * BLOCK_P + tl.arange(0, BLOCK_P)
    c = tl.program_id(0) % tiles_c * BLOCK_C + tl.arange(0, BLOCK_C)
    c_ok = c < channels
    ok = (p < batch * pixels)[:, None] & c_ok[None, :]
    gain = tl.load(g + c % gain_period * gain_step, mask=c_ok, other=0.0).to(STATISTICS)
    s = gain_over_norm(gain, tl.load(norms + c % gain_period * gain_step, mask=c_ok, other=0.0))
    if INDEX64:
        p, c = p.to(tl.int64), c.to(tl.int64)
    at = (p // pixels * t_batch + p % pixels * t_pixel)[:, None] + c[None, :] * t_channel
    tile = tl.load(t + at, mask=ok, other=0.0).to(STATISTICS) * s[None, :]
    if bias is not None:
        tile += tl.load(bias + c, mask=c_ok, other=0.0).to(STATISTICS)[None, :]
    if RELU:
        tile = tl.maximum(tile, 0.0, propagate_nan=tl.PropagateNan.ALL)
    tl.store(out + at, narrowed(tile, out.dtype.element_ty), mask=ok)
