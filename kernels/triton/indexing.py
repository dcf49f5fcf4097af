"""Index arithmetic of the matmul-like kernels: the order of tiles, indices that need no mask, and g/n at an index."""

import triton
import triton.language as tl

from wnfused.kernels.triton.rows import gain_over_norm, is_extreme


@triton.jit
def grouped_tile(pid, tiles_m, tiles_n, GROUP: tl.constexpr):
    """Order tiles in columns of GROUP tiles, so that concurrent programs share operands in the L2 cache."""
    per_group = GROUP * tiles_n
    first = pid // per_group * GROUP
    height = tl.minimum(tiles_m - first, GROUP)
    return first + pid % per_group % height, pid % per_group // height


@triton.jit
def clamped(start, size, BLOCK: tl.constexpr, INDEX64: tl.constexpr):
    """BLOCK indices from start on, clamped to the last valid one, so that loads along them need no mask.

    Not for a dimension that is contiguous in memory: the compiler does not see that clamped indices are consecutive,
    and would load single elements.
    """
    index = tl.minimum(start + tl.arange(0, BLOCK), size - 1)
    return index.to(tl.int64) if INDEX64 else index


@triton.jit
def scale_at(g, norms, index, ok, gain_step, IN_LOOP: tl.constexpr = False):
    """g/n at an index; without norms, g already holds g/n. ok is None if every index is valid.

    IN_LOOP selects the fast quotient: the exact one needs registers that a matmul loop does not have.
    """
    if ok is None:
        scale = tl.load(g + index * gain_step).to(tl.float32)
    else:
        scale = tl.load(g + index * gain_step, mask=ok, other=0.0).to(tl.float32)
    if norms is not None:
        if ok is None:
            norm = tl.load(norms + index * gain_step)
        else:
            norm = tl.load(norms + index * gain_step, mask=ok, other=0.0)
        scale = gain_over_norm(scale, norm, IN_LOOP)
    return scale


@triton.jit
def scales_of_columns(g, norms, index, ok, gain_step):
    """(g/n, 1 where the norm is extreme) of a tile's columns. One thread loads and divides each, and shares the result.

    Otherwise the compiler, for fewer elements than threads, lets every thread load and divide for all its columns, and
    the main loop before lacks the registers that this takes.
    """
    WIDTH: tl.constexpr = index.shape[0]
    copy = tl.arange(0, 512 // WIDTH)[:, None]
    at = tl.broadcast_to(index[None, :], [512 // WIDTH, WIDTH]) * gain_step
    mine = (copy == 0) & ok[None, :]
    scale = tl.load(g + at, mask=mine, other=0.0).to(tl.float32)
    extreme = tl.zeros_like(at).to(tl.int32)
    if norms is not None:
        norm = tl.load(norms + at, mask=mine, other=0.0)
        scale = gain_over_norm(scale, norm)
        extreme = is_extreme(norm).to(tl.int32)
    return tl.sum(scale, 0), tl.max(extreme, 0)
