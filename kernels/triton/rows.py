"""Kernels over the rows of a weight: norms, the normalized weight, and its backward, for a norm along any dimension.

A weight is seen as ``[outer, rows, inner]`` in memory, one norm per row over outer and inner. Statistics are float32,
or float64 for float64 weights. A long row is cut into splits whose partial results a second kernel combines in a fixed
order: no atomics, the same bits every time.
"""

import triton
import triton.language as tl

from wnfused.kernels.triton.language import narrowed, product, quotient, root

# Squares of norms between these bounds neither overflow nor lose digits in float32, even where MOST_SPLITS of them are
# added; others are summed again, scaled.
SMALLEST_SQUARE = tl.constexpr(1e-24)
LARGEST_SQUARE = tl.constexpr(1e35)
MOST_SPLITS = 512
# x and dy of up to 4e34 (and down to 1e-34) meet v unscaled where its norm is between these bounds.
SMALLEST_NORM = tl.constexpr(2.0**-13)
LARGEST_NORM = tl.constexpr(2.0**13)


@triton.jit
def gain_over_norm(g, norm, QUICK: tl.constexpr = False):
    """g / n, and 0 for a row of zeros."""
    return tl.where(norm == 0, 0.0, quotient(g, tl.where(norm == 0, 1.0, norm), QUICK))


@triton.jit
def is_unsafe(square):
    return (square <= SMALLEST_SQUARE) | (square >= LARGEST_SQUARE) | (square != square)


@triton.jit
def is_extreme(norm):
    """Rows whose v is scaled before it meets x or dy; between these norms products stay far from float32's bounds."""
    return ((norm > 0) & (norm < SMALLEST_NORM)) | (norm > LARGEST_NORM)


@triton.jit
def usable_scale(largest):
    """What a row can be divided by: its largest element, unless that is 0, infinite or NaN."""
    return tl.where((largest > 0) & (largest < float("inf")), largest, 1.0)


@triton.jit
def careful_norm(v_rows, row_ok, K, eps, BLOCK: tl.constexpr):
    """Norms of contiguous rows of length K at ``v_rows``, safe for every finite value; for the few that need it."""
    columns = tl.arange(0, BLOCK)
    floor = root(tl.zeros_like(row_ok.to(tl.float32)) + eps)
    largest = floor
    for k in range(0, K, BLOCK):
        ok = row_ok[:, None] & (columns[None, :] < K - k)
        tile = tl.load(v_rows[:, None] + (k + columns)[None, :], mask=ok, other=0.0).to(tl.float32)
        largest = tl.maximum(largest, tl.max(tl.abs(tile), 1))
    scale = usable_scale(largest)
    floor = quotient(floor, scale)
    total = floor * floor
    for k in range(0, K, BLOCK):
        ok = row_ok[:, None] & (columns[None, :] < K - k)
        tile = tl.load(v_rows[:, None] + (k + columns)[None, :], mask=ok, other=0.0).to(tl.float32)
        tile = quotient(tile, scale[:, None])
        total += tl.sum(product(tile, tile), 1)
    return scale * root(total)


@triton.jit
def element_offset(row, element, rows, inner, OUTER_IS_ONE: tl.constexpr):
    if OUTER_IS_ONE:
        return row[:, None] * inner + element[None, :]
    return (element // inner)[None, :] * (rows * inner) + row[:, None] * inner + (element % inner)[None, :]


@triton.jit
def row_block(pid, rows, BLOCK_R: tl.constexpr, INDEX64: tl.constexpr):
    row = pid * BLOCK_R + tl.arange(0, BLOCK_R)
    if INDEX64:
        row = row.to(tl.int64)
    return row, row < rows


@triton.jit
def write_rows(
    v, s, w, row, row_ok, rows, inner, begin, end,
    OUTER_IS_ONE: tl.constexpr, STATISTICS: tl.constexpr, INDEX64: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    """w = s · v, for elements begin to end of the rows."""
    columns = tl.arange(0, BLOCK_E)
    if INDEX64:
        columns = columns.to(tl.int64)
    for e in range(begin, end, BLOCK_E):
        ok = row_ok[:, None] & (e + columns < end)[None, :]
        at = element_offset(row, e + columns, rows, inner, OUTER_IS_ONE)
        tile = tl.load(v + at, mask=ok, other=0.0).to(STATISTICS) * s[:, None]
        tl.store(w + at, narrowed(tile, w.dtype.element_ty), mask=ok)


@triton.jit
def partial_norms(
    v, scales, squares, norms, g, w, rows, inner, length, per_split, eps: tl.float64,
    OUTER_IS_ONE: tl.constexpr, STATISTICS: tl.constexpr, INDEX64: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    """The norms, where a program has whole rows; else each split's share of Σv² as (scale, Σ(v/scale)²) [splits, rows].

    ``norms`` is given in the first case, ``scales`` and ``squares`` in the second. With ``w`` (first case only) the
    program also writes w = v · g/n: its rows, read a moment ago, are still in the cache.
    """
    pid, split = tl.program_id(0), tl.program_id(1)
    row, row_ok = row_block(pid, rows, BLOCK_R, INDEX64)
    begin = split.to(tl.int64) * per_split if INDEX64 else split * per_split
    end = tl.minimum(begin + per_split, length)
    columns = tl.arange(0, BLOCK_E)
    if INDEX64:
        columns = columns.to(tl.int64)
    squares_here = tl.zeros([BLOCK_R, BLOCK_E], STATISTICS)  # threads exchange nothing before the loop's end
    largest_here = tl.zeros([BLOCK_R, BLOCK_E], STATISTICS)
    for e in range(begin, end, BLOCK_E):
        ok = row_ok[:, None] & (e + columns < end)[None, :]
        at = element_offset(row, e + columns, rows, inner, OUTER_IS_ONE)
        tile = tl.load(v + at, mask=ok, other=0.0).to(STATISTICS)
        squares_here += tile * tile
        largest_here = tl.maximum(largest_here, tl.abs(tile))
    total, largest = tl.sum(squares_here, 1), tl.max(largest_here, 1)
    scale = tl.full([BLOCK_R], 1.0, STATISTICS)
    floor = root(tl.full([BLOCK_R], eps, STATISTICS))
    if tl.max(is_unsafe(total).to(tl.int32), 0) > 0:
        if norms is not None:
            largest = tl.maximum(largest, floor)
        scale = tl.where(is_unsafe(total), usable_scale(largest), scale)
        squares_here = tl.zeros([BLOCK_R, BLOCK_E], STATISTICS)
        for e in range(begin, end, BLOCK_E):
            ok = row_ok[:, None] & (e + columns < end)[None, :]
            at = element_offset(row, e + columns, rows, inner, OUTER_IS_ONE)
            tile = quotient(tl.load(v + at, mask=ok, other=0.0).to(STATISTICS), scale[:, None])
            squares_here += tile * tile
        total = tl.sum(squares_here, 1)
    if norms is not None:
        floor = quotient(floor, scale)
        norm = scale * root(total + floor * floor)
        tl.store(norms + row, norm, mask=row_ok)
        if w is not None:
            s = gain_over_norm(tl.load(g + row, mask=row_ok, other=0.0).to(STATISTICS), norm)
            write_rows(v, s, w, row, row_ok, rows, inner, begin, end, OUTER_IS_ONE, STATISTICS, INDEX64, BLOCK_E)
    else:
        tl.store(scales + split * rows + row, scale, mask=row_ok)
        tl.store(squares + split * rows + row, total, mask=row_ok)


@triton.jit
def combine_norms(
    scales, squares, norms, rows, splits, eps: tl.float64, STATISTICS: tl.constexpr, BLOCK_R: tl.constexpr
):
    row = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    ok = row < rows
    floor = root(tl.full([BLOCK_R], eps, STATISTICS))
    largest = floor
    for s in range(splits):
        square = tl.load(squares + s * rows + row, mask=ok, other=0.0)
        scale = tl.load(scales + s * rows + row, mask=ok, other=0.0)
        largest = tl.maximum(largest, tl.where(square == 0, 0.0, scale))
    common = usable_scale(largest)
    floor = quotient(floor, common)
    total = floor * floor
    for s in range(splits):
        ratio = quotient(tl.load(scales + s * rows + row, mask=ok, other=0.0), common)
        total += tl.load(squares + s * rows + row, mask=ok, other=0.0) * ratio * ratio
    tl.store(norms + row, common * root(total), mask=ok)


@triton.jit
def write_normalized(
    v, g, norms, w, rows, inner, length, per_split,
    OUTER_IS_ONE: tl.constexpr, STATISTICS: tl.constexpr, INDEX64: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    """w = v · g/n."""
    pid, split = tl.program_id(0), tl.program_id(1)
    row, row_ok = row_block(pid, rows, BLOCK_R, INDEX64)
    s = gain_over_norm(
        tl.load(g + row, mask=row_ok, other=0.0).to(STATISTICS), tl.load(norms + row, mask=row_ok, other=0.0)
    )
    begin = split.to(tl.int64) * per_split if INDEX64 else split * per_split
    end = tl.minimum(begin + per_split, length)
    write_rows(v, s, w, row, row_ok, rows, inner, begin, end, OUTER_IS_ONE, STATISTICS, INDEX64, BLOCK_E)


@triton.jit
def share_of_dots(
    dw, v, inverse, row, row_ok, rows, inner, begin, end,
    OUTER_IS_ONE: tl.constexpr, STATISTICS: tl.constexpr, INDEX64: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    """⟨dw, v/n⟩ over elements begin to end of the rows."""
    columns = tl.arange(0, BLOCK_E)
    if INDEX64:
        columns = columns.to(tl.int64)
    total = tl.zeros([BLOCK_R, BLOCK_E], STATISTICS)
    for e in range(begin, end, BLOCK_E):
        ok = row_ok[:, None] & (e + columns < end)[None, :]
        at = element_offset(row, e + columns, rows, inner, OUTER_IS_ONE)
        u = tl.load(v + at, mask=ok, other=0.0).to(STATISTICS) * inverse[:, None]
        total += tl.load(dw + at, mask=ok, other=0.0).to(STATISTICS) * u
    return tl.sum(total, 1)


@triton.jit
def partial_dots(
    dw, v, norms, dots, rows, inner, length, per_split,
    OUTER_IS_ONE: tl.constexpr, STATISTICS: tl.constexpr, INDEX64: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    """Each split's share of c = ⟨dw, v/n⟩, row by row, to [splits, rows]."""
    pid, split = tl.program_id(0), tl.program_id(1)
    row, row_ok = row_block(pid, rows, BLOCK_R, INDEX64)
    inverse = gain_over_norm(1.0, tl.load(norms + row, mask=row_ok, other=0.0))
    begin = split.to(tl.int64) * per_split if INDEX64 else split * per_split
    end = tl.minimum(begin + per_split, length)
    share = share_of_dots(
        dw, v, inverse, row, row_ok, rows, inner, begin, end, OUTER_IS_ONE, STATISTICS, INDEX64, BLOCK_R, BLOCK_E
    )
    tl.store(dots + split * rows + row, share, mask=row_ok)


@triton.jit
def project(
    dw, v, g, norms, dots, dv, dg, rows, inner, length, per_split, splits,
    OUTER_IS_ONE: tl.constexpr, STATISTICS: tl.constexpr, INDEX64: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    """dv = g/n · (dw − c·v/n) and dg = c, from the splits' dots; dv may be dw itself.

    Without ``dots`` a program has whole rows and sums them first; it reads the rows again from the cache.
    """
    pid, split = tl.program_id(0), tl.program_id(1)
    row, row_ok = row_block(pid, rows, BLOCK_R, INDEX64)
    columns = tl.arange(0, BLOCK_E)
    if INDEX64:
        columns = columns.to(tl.int64)
    begin = split.to(tl.int64) * per_split if INDEX64 else split * per_split
    end = tl.minimum(begin + per_split, length)
    norm = tl.load(norms + row, mask=row_ok, other=0.0)
    inverse = gain_over_norm(1.0, norm)
    if dots is None:
        c = share_of_dots(
            dw, v, inverse, row, row_ok, rows, inner, begin, end, OUTER_IS_ONE, STATISTICS, INDEX64, BLOCK_R, BLOCK_E
        )
    else:
        c = tl.zeros([BLOCK_R], STATISTICS)
        for i in range(splits):
            c += tl.load(dots + i * rows + row, mask=row_ok, other=0.0)
    if dg is not None:
        first = row < tl.where(split == 0, rows, 0)
        tl.store(dg + row, narrowed(c, dg.dtype.element_ty), mask=first)
    if dv is not None:
        s = gain_over_norm(tl.load(g + row, mask=row_ok, other=0.0).to(STATISTICS), norm)
        for e in range(begin, end, BLOCK_E):
            ok = row_ok[:, None] & (e + columns < end)[None, :]
            at = element_offset(row, e + columns, rows, inner, OUTER_IS_ONE)
            u = tl.load(v + at, mask=ok, other=0.0).to(STATISTICS) * inverse[:, None]
            rest = tl.load(dw + at, mask=ok, other=0.0).to(STATISTICS) - c[:, None] * u
            tl.store(dv + at, narrowed(s[:, None] * rest, dv.dtype.element_ty), mask=ok)
