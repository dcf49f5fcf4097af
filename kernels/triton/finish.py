"""The last step of a backward pass with a norm per row of v: computes dv from dW, and dg and db with it."""

import triton
import triton.language as tl

from wnfused.kernels.triton.language import narrowed
from wnfused.kernels.triton.rows import gain_over_norm


@triton.jit
def sum_of_parts(dw, at, ok, parts, elements):
    total = tl.load(dw + at, mask=ok, other=0.0)
    for _ in range(1, parts):
        at += elements  # in at's own width: parts times elements may be past 32 bits
        total += tl.load(dw + at, mask=ok, other=0.0)
    return total


@triton.jit
def finish_weight(
    dw, v, g, norms, dots, dv, dg, scales, sums, db, rows, length, parts, elements, channels, sum_parts,
    FROM_SPLITS: tl.constexpr, INDEX64: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """The first programs finish BLOCK_R rows each; those after them add ``sums`` [sum_parts, channels] to ``db``.

    FROM_SPLITS: ``dw`` holds ``parts`` float32 shares [parts, rows, length] that are added here in order, and the rows'
    dots are found here too. Otherwise dw is whole and may be dv, and ``dots`` holds ``parts`` shares of each ⟨dW, v/n⟩.
    ``scales`` [rows] takes g/n, for the input gradient.
    """
    pid = tl.program_id(0)
    row_programs = tl.cdiv(rows, BLOCK_R)
    if pid < row_programs:
        row = pid * BLOCK_R + tl.arange(0, BLOCK_R)
        row_ok = row < rows
        norm = tl.load(norms + row, mask=row_ok, other=0.0)
        inverse = gain_over_norm(1.0, norm)
        e = tl.arange(0, BLOCK_E)
        start = (row.to(tl.int64) if INDEX64 else row)[:, None] * length + e[None, :]
        if FROM_SPLITS:
            dot = tl.zeros([BLOCK_R, BLOCK_E], tl.float32)
            for e0 in range(0, length, BLOCK_E):
                ok = row_ok[:, None] & (e < length - e0)[None, :]
                u = tl.load(v + start + e0, mask=ok, other=0.0).to(tl.float32) * inverse[:, None]
                dot += sum_of_parts(dw, start + e0, ok, parts, elements) * u
            c = tl.sum(dot, 1)
        else:
            c = tl.zeros([BLOCK_R], tl.float32)
            for i in range(parts):
                c += tl.load(dots + i * rows + row, mask=row_ok, other=0.0)
        if dg is not None:
            tl.store(dg + row, narrowed(c, dg.dtype.element_ty), mask=row_ok)
        s = gain_over_norm(tl.load(g + row, mask=row_ok, other=0.0).to(tl.float32), norm)
        if scales is not None:
            tl.store(scales + row, s, mask=row_ok)
        if dv is not None:
            for e0 in range(0, length, BLOCK_E):
                ok = row_ok[:, None] & (e < length - e0)[None, :]
                if FROM_SPLITS:
                    whole = sum_of_parts(dw, start + e0, ok, parts, elements)
                else:
                    whole = tl.load(dw + start + e0, mask=ok, other=0.0).to(tl.float32)
                # dx reads v next, nothing reads dv
                u = tl.load(v + start + e0, mask=ok, other=0.0, eviction_policy="evict_last").to(tl.float32)
                u *= inverse[:, None]
                result = s[:, None] * (whole - c[:, None] * u)
                tl.store(dv + start + e0, narrowed(result, dv.dtype.element_ty), mask=ok, eviction_policy="evict_first")
    if db is not None:  # noqa: SIM102 - this test is the compiler's, the next one the program's
        if pid >= row_programs:
            channel = (pid - row_programs) * BLOCK_C + tl.arange(0, BLOCK_C)
            total = tl.zeros([BLOCK_C], tl.float32)
            for i in range(sum_parts):
                total += tl.load(sums + i * channels + channel, mask=channel < channels, other=0.0)
            tl.store(db + channel, total, mask=channel < channels)
