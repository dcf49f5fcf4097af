"""What the 32 lanes of a warp do together: shuffles, reductions, tensor cores. Arrays come as [..., warps, 32].

A fragment's layout is the PTX manual's: lane = 4·group + place. Tensor cores truncate tf32 operands; products and their
sum are exact here and rounded once, which is one of the orders that hardware may add in, not the one it does.
"""

import numpy as np

from .lanes import Lanes, widened

GROUPS, PLACES = 8, 4


def shuffle(value: Lanes, mode: str, lane: Lanes) -> Lanes:
    """Of [warps, 32]: what the lane ``lane`` (idx), or the own number xor it (bfly), holds."""
    own = np.arange(32)
    source = own ^ lane if mode == "bfly" else lane
    return np.take_along_axis(value, np.broadcast_to(source & 31, value.shape).astype(np.int64), 1)


def _halves(words: Lanes) -> Lanes:
    """[..., 32] words as [..., groups, places, 2] halves."""
    split = np.ascontiguousarray(words).view(np.uint16)
    return split.reshape(*words.shape[:-1], GROUPS, PLACES, 2)


def _operands_16(a: Lanes, b: Lanes, type: str) -> tuple[Lanes, Lanes]:
    """Registers a [4, warps, 32], b [2, warps, 32] as matrices [warps, 16, 16], [warps, 16, 8]."""
    warps = a.shape[1]
    rows = _halves(a).reshape(2, 2, warps, GROUPS, PLACES, 2).transpose(2, 1, 3, 0, 4, 5).reshape(warps, 16, 16)
    columns = _halves(b).transpose(1, 0, 3, 4, 2).reshape(warps, 16, 8)
    if type == "bf16":
        return widened(rows), widened(columns)
    return rows.view(np.float16), columns.view(np.float16)


def _operands_tf32(a: Lanes, b: Lanes) -> tuple[Lanes, Lanes]:
    """[warps, 16, 8] and [warps, 8, 8]: the last 13 bits of float32 are not read."""
    warps = a.shape[1]
    cut = np.uint32(0xFFFFE000)
    rows = (a & cut).view(np.float32).reshape(2, 2, warps, GROUPS, PLACES)
    columns = (b & cut).view(np.float32).reshape(2, warps, GROUPS, PLACES)
    return rows.transpose(2, 1, 3, 0, 4).reshape(warps, 16, 8), columns.transpose(1, 0, 3, 2).reshape(warps, 8, 8)


def multiply(a: Lanes, b: Lanes, c: Lanes, type: str) -> Lanes:
    """``mma``: registers [4, warps, 32] of the float32 result a·b + c."""
    rows, columns = _operands_tf32(a, b) if type == "tf32" else _operands_16(a, b, type)
    warps = c.shape[1]
    total = c.view(np.float32).reshape(2, 2, warps, GROUPS, PLACES).transpose(2, 0, 3, 4, 1).reshape(warps, 16, 8)
    result = (rows.astype(np.float64) @ columns.astype(np.float64) + total).astype(np.float32)
    apart = result.reshape(warps, 2, GROUPS, PLACES, 2).transpose(1, 4, 0, 2, 3)
    return np.ascontiguousarray(apart).view(np.uint32).reshape(4, warps, 32)


def matrices(rows: Lanes, transposed: bool) -> Lanes:
    """``ldmatrix``: from rows [warps, count, 8, 8 halves] the registers [count, warps, 32]."""
    if transposed:
        rows = rows.swapaxes(2, 3)
    pairs = np.ascontiguousarray(rows).view(np.uint32)  # [warps, count, group, place]
    return np.ascontiguousarray(pairs.transpose(1, 0, 2, 3)).reshape(rows.shape[1], rows.shape[0], 32)
