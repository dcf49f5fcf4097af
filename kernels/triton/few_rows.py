"""The weight gradient of a linear layer with few batch rows: dv and dg without dW in memory."""

import triton
import triton.language as tl

from wnfused.kernels.triton.indexing import clamped
from wnfused.kernels.triton.language import dot, narrowed
from wnfused.kernels.triton.rows import gain_over_norm


@triton.jit
def few_rows_weight_gradient(
    dy, x, y, v, g, norms, dv, dg, M, N, K, dy_stride, x_stride, y_stride, v_stride,
    MIXED: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr, INDEX64: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """dv [N, K] and dg [N] from dy [M, N] and x [M, K], M <= BLOCK_M; a program owns BLOCK_N rows of v.

    A first pass along the rows computes z = x · (v/n)ᵀ and c = Σ dy·z = ⟨dW, v/n⟩. A second pass, over rows that are
    still in the cache, computes dW = dyᵀ · x in registers and writes dv = g/n (dW − c v/n). MIXED: v is float32 under
    16-bit x; the tensor cores get v/n in two parts, which together have the digits that a small c needs.
    """
    row = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    row_ok = row < N
    at_row = clamped(tl.program_id(0) * BLOCK_N, N, BLOCK_N, INDEX64)
    m = tl.arange(0, BLOCK_M)
    k = tl.arange(0, BLOCK_K)
    x_at = x + (tl.minimum(m, M - 1).to(tl.int64) if INDEX64 else tl.minimum(m, M - 1))[:, None] * x_stride + k[None, :]
    v_at = v + at_row[:, None] * v_stride + k[None, :]
    norm = tl.load(norms + row, mask=row_ok, other=0.0)
    inverse = gain_over_norm(1.0, norm)
    z = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for k0 in range(0, K, BLOCK_K):
        if EVEN:
            x_tile, v_tile = tl.load(x_at + k0), tl.load(v_at + k0)
        else:
            x_tile = tl.load(x_at + k0, mask=(k < K - k0)[None, :], other=0.0)
            v_tile = tl.load(v_at + k0, mask=(k < K - k0)[None, :], other=0.0)
        if MIXED:
            u = v_tile * inverse[:, None]
            high = narrowed(u, x.dtype.element_ty)
            low = narrowed(u - high.to(tl.float32), x.dtype.element_ty)
            z = dot(x_tile, tl.trans(low), z, "ieee")
            z = dot(x_tile, tl.trans(high), z, "ieee")
        else:
            z = dot(x_tile, tl.trans(v_tile), z, "ieee")
    ok = (m < M)[:, None] & row_ok[None, :]
    at = (m.to(tl.int64) if INDEX64 else m)[:, None] * dy_stride + row[None, :]
    dy_tile = tl.load(dy + at, mask=ok, other=0.0)
    if y is not None:
        at = (m.to(tl.int64) if INDEX64 else m)[:, None] * y_stride + row[None, :]
        dy_tile = narrowed(tl.where(tl.load(y + at, mask=ok, other=0.0) <= 0, 0.0, dy_tile), dy.dtype.element_ty)
    if not MIXED:
        z *= inverse[None, :]
    c = tl.sum(tl.where(ok, dy_tile.to(tl.float32) * z, 0.0), 0)
    c = tl.where(norm == 0, 0.0, c)
    if dg is not None:
        tl.store(dg + row, narrowed(c, dg.dtype.element_ty), mask=row_ok)
    if dv is not None:
        scale = gain_over_norm(tl.load(g + row, mask=row_ok, other=0.0).to(tl.float32), norm)
        turned = tl.trans(dy_tile)
        out_row = row.to(tl.int64) if INDEX64 else row
        for k0 in range(0, K, BLOCK_K):
            inside = (k < K - k0)[None, :]
            x_tile = tl.load(x_at + k0, mask=inside, other=0.0)
            v_tile = tl.load(v_at + k0, mask=inside, other=0.0, eviction_policy="evict_last").to(tl.float32)
            dw = dot(turned, x_tile, tl.zeros([BLOCK_N, BLOCK_K], tl.float32), PRECISION)
            result = scale[:, None] * (dw - c[:, None] * (v_tile * inverse[:, None]))
            tl.store(
                dv + out_row[:, None] * K + (k0 + k)[None, :], narrowed(result, dv.dtype.element_ty),
                mask=row_ok[:, None] & inside, eviction_policy="evict_first",
            )  # fmt: skip
