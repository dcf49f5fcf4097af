"""Row norms of many weights in one launch. A table gives each program its weight, its rows and their memory layout."""

import triton
import triton.language as tl

from wnfused.kernels.triton.language import quotient, root
from wnfused.kernels.triton.rows import element_offset, is_unsafe, usable_scale

# The memory layout of a weight's rows: contiguous and 16-byte aligned; contiguous but unaligned; or interleaved, so
# that the elements of a row are far apart.
ALIGNED, ALONG, ACROSS = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@triton.jit
def many_row_norms(
    programs, weights, eps, out, FIELDS: tl.constexpr, DTYPE: tl.constexpr,
    ALONG_R: tl.constexpr, ALONG_E: tl.constexpr, ACROSS_R: tl.constexpr, ACROSS_E: tl.constexpr,
):  # fmt: skip
    """``programs`` [grid, 2]: weight, first row; ``weights`` [count, FIELDS]: address, rows, inner, length, place, lie.

    All of them int64; ``place`` is where the norms go in ``out``. Each row is reduced once, by one program.
    """
    pid = tl.program_id(0)
    weight, first = tl.load(programs + pid * 2), tl.load(programs + pid * 2 + 1)
    entry = weights + weight * FIELDS
    address, rows, inner, length = tl.load(entry), tl.load(entry + 1), tl.load(entry + 2), tl.load(entry + 3)
    place, lie, added = tl.load(entry + 4), tl.load(entry + 5), tl.load(eps + weight)
    if lie == ALIGNED:
        # The compiler reads 16 bytes at a time where it sees that it may: of this pointer and this length.
        LANES: tl.constexpr = 128 // DTYPE.primitive_bitwidth
        v = tl.multiple_of(address.to(tl.pointer_type(DTYPE)), 16)
        whole = length // LANES * LANES
        reduce_rows(v, first, rows, whole, whole, added, out + place, True, ALONG_R, ALONG_E)
    elif lie == ALONG:
        v = address.to(tl.pointer_type(DTYPE))
        reduce_rows(v, first, rows, inner, length, added, out + place, False, ALONG_R, ALONG_E)
    else:
        v = address.to(tl.pointer_type(DTYPE))
        reduce_rows(v, first, rows, inner, length, added, out + place, False, ACROSS_R, ACROSS_E)


@triton.jit
def reduce_rows(
    v, first, rows, inner, length, added, norms,
    OUTER_IS_ONE: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    row = first + tl.arange(0, BLOCK_R)
    row_ok = row < rows
    columns = tl.arange(0, BLOCK_E).to(tl.int64)
    total = tl.zeros([BLOCK_R, BLOCK_E], tl.float32)
    largest = tl.zeros([BLOCK_R, BLOCK_E], tl.float32)
    for e in range(0, length, BLOCK_E):
        ok = row_ok[:, None] & (e + columns < length)[None, :]
        at = element_offset(row, e + columns, rows, inner, OUTER_IS_ONE)
        tile = tl.load(v + at, mask=ok, other=0.0).to(tl.float32)
        total += tile * tile
        largest = tl.maximum(largest, tl.abs(tile))
    square = tl.sum(total, 1)
    norm = root(square + added)
    if tl.max(is_unsafe(square).to(tl.int32), 0) > 0:
        floor = root(tl.full([BLOCK_R], added, tl.float32))
        scale = usable_scale(tl.maximum(tl.max(largest, 1), floor))
        careful = tl.zeros([BLOCK_R, BLOCK_E], tl.float32)
        for e in range(0, length, BLOCK_E):
            ok = row_ok[:, None] & (e + columns < length)[None, :]
            at = element_offset(row, e + columns, rows, inner, OUTER_IS_ONE)
            tile = quotient(tl.load(v + at, mask=ok, other=0.0).to(tl.float32), scale[:, None])
            careful += tile * tile
        floor = quotient(floor, scale)
        norm = tl.where(is_unsafe(square), scale * root(tl.sum(careful, 1) + floor * floor), norm)
    tl.store(norms + row, norm, mask=row_ok)
