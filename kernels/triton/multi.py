"""Row norms of many weights in one launch: a table tells each program its weight and its rows."""

import triton
import triton.language as tl

from wnfused.kernels.triton.rows import is_unsafe, usable_scale


@triton.jit
def many_row_norms(
    programs, weights, eps, out, FIELDS: tl.constexpr, DTYPE: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_E: tl.constexpr
):
    """``programs`` [grid, 2]: weight, first row; ``weights`` [count, FIELDS]: address, rows, inner, length, place.

    All of them int64; ``place`` is where the norms go in ``out``. Each row is reduced once, by one program.
    """
    pid = tl.program_id(0)
    entry = weights + tl.load(programs + pid * 2) * FIELDS
    v = tl.load(entry).to(tl.pointer_type(DTYPE))
    rows, inner, length, place = tl.load(entry + 1), tl.load(entry + 2), tl.load(entry + 3), tl.load(entry + 4)
    row = tl.load(programs + pid * 2 + 1) + tl.arange(0, BLOCK_R)
    row_ok = row < rows
    columns = tl.arange(0, BLOCK_E).to(tl.int64)
    total = tl.zeros([BLOCK_R, BLOCK_E], tl.float32)
    largest = tl.zeros([BLOCK_R, BLOCK_E], tl.float32)
    for e in range(0, length, BLOCK_E):
        tile = load_elements(v, row, row_ok, e + columns, rows, inner, length)
        total += tile * tile
        largest = tl.maximum(largest, tl.abs(tile))
    square = tl.sum(total, 1)
    added = tl.load(eps + tl.load(programs + pid * 2))
    norm = tl.sqrt(square + added)
    if tl.max(is_unsafe(square).to(tl.int32), 0) > 0:
        scale = usable_scale(tl.maximum(tl.max(largest, 1), tl.sqrt(added)))
        careful = tl.zeros([BLOCK_R, BLOCK_E], tl.float32)
        for e in range(0, length, BLOCK_E):
            tile = load_elements(v, row, row_ok, e + columns, rows, inner, length) / scale[:, None]
            careful += tile * tile
        root = tl.sqrt(added) / scale
        norm = tl.where(is_unsafe(square), scale * tl.sqrt(tl.sum(careful, 1) + root * root), norm)
    tl.store(out + place + row, norm, mask=row_ok)


@triton.jit
def load_elements(v, row, row_ok, element, rows, inner, length):
    """Elements of rows of a weight seen as [outer, rows, inner]."""
    at = (element // inner)[None, :] * (rows * inner) + row[:, None] * inner + (element % inner)[None, :]
    return tl.load(v + at, mask=row_ok[:, None] & (element < length)[None, :], other=0.0).to(tl.float32)
