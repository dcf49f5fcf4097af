"""The normalized weights of a whole model in one launch, and their gradients: kernels, plan and launch.

A table gives each program its weight, its rows and their memory layout; a second one, filled on every call, gives the
addresses. Each row belongs to one program: no atomics, the same bits every time.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from wnfused.kernels.triton import run_rows
from wnfused.kernels.triton.language import narrowed, quotient, root
from wnfused.kernels.triton.launch import launch
from wnfused.kernels.triton.rows import (
    element_offset,
    gain_over_norm,
    is_unsafe,
    share_of_dots,
    usable_scale,
    write_rows,
)
from wnfused.kernels.triton.run_rows import Dim, View, in_memory_order, statistics, tl_type, view_of
from wnfused.kernels.triton.support import on_device
from wnfused.kernels.triton.tiles import NORM_TILES

# The memory layout of a weight's rows: contiguous and 16-byte aligned; contiguous but unaligned; or interleaved, so
# that the elements of a row are far apart.
ALIGNED, ALONG, ACROSS = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
FIELDS = tl.constexpr(5)  # of a weight: rows, inner, length, first norm, memory layout
LONGEST_ROW = 2**15  # for one program; a longer row (one norm over a large weight) is split, by its own launches


@triton.jit
def norms_of_rows(
    v, row, row_ok, rows, inner, length, eps,
    OUTER_IS_ONE: tl.constexpr, STATISTICS: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    columns = tl.arange(0, BLOCK_E).to(tl.int64)
    total = tl.zeros([BLOCK_R, BLOCK_E], STATISTICS)
    largest = tl.zeros([BLOCK_R, BLOCK_E], STATISTICS)
    for e in range(0, length, BLOCK_E):
        ok = row_ok[:, None] & (e + columns < length)[None, :]
        at = element_offset(row, e + columns, rows, inner, OUTER_IS_ONE)
        tile = tl.load(v + at, mask=ok, other=0.0).to(STATISTICS)
        total += tile * tile
        largest = tl.maximum(largest, tl.abs(tile))
    square = tl.sum(total, 1)
    norm = root(square + eps)
    if tl.max(is_unsafe(square).to(tl.int32), 0) > 0:
        floor = root(tl.zeros([BLOCK_R], STATISTICS) + eps)
        scale = usable_scale(tl.maximum(tl.max(largest, 1), floor))
        careful = tl.zeros([BLOCK_R, BLOCK_E], STATISTICS)
        for e in range(0, length, BLOCK_E):
            ok = row_ok[:, None] & (e + columns < length)[None, :]
            at = element_offset(row, e + columns, rows, inner, OUTER_IS_ONE)
            tile = quotient(tl.load(v + at, mask=ok, other=0.0).to(STATISTICS), scale[:, None])
            careful += tile * tile
        floor = quotient(floor, scale)
        norm = tl.where(is_unsafe(square), scale * root(tl.sum(careful, 1) + floor * floor), norm)
    return norm


@triton.jit
def write_some(
    v, g, w, norms, first, rows, inner, length, eps,
    OUTER_IS_ONE: tl.constexpr, STATISTICS: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    """Norms and w = v · g/n of BLOCK_R rows, which are still in the cache when they are read again."""
    row = first + tl.arange(0, BLOCK_R)
    row_ok = row < rows
    norm = norms_of_rows(v, row, row_ok, rows, inner, length, eps, OUTER_IS_ONE, STATISTICS, BLOCK_R, BLOCK_E)
    tl.store(norms + row, norm, mask=row_ok)
    s = gain_over_norm(tl.load(g + row, mask=row_ok, other=0.0).to(STATISTICS), norm)
    write_rows(v, s, w, row, row_ok, rows, inner, 0, length, OUTER_IS_ONE, STATISTICS, True, BLOCK_E)


@triton.jit
def write_model_weights(
    programs, weights, addresses, eps, norms, V: tl.constexpr, G: tl.constexpr, W: tl.constexpr,
    STATISTICS: tl.constexpr, LANES: tl.constexpr,
    ALONG_R: tl.constexpr, ALONG_E: tl.constexpr, ACROSS_R: tl.constexpr, ACROSS_E: tl.constexpr,
):  # fmt: skip
    """``programs`` [grid, 2]: weight, first row; ``weights`` [count, FIELDS]; ``addresses`` [count, 3]: v, g, w.

    The tables hold int64, ``eps`` [count] float64. ``norms`` are those of all weights.
    """
    pid = tl.program_id(0)
    weight, first = tl.load(programs + pid * 2), tl.load(programs + pid * 2 + 1)
    entry, address = weights + weight * FIELDS, addresses + weight * 3
    rows, inner, length = tl.load(entry), tl.load(entry + 1), tl.load(entry + 2)
    out, lie = norms + tl.load(entry + 3), tl.load(entry + 4)
    added = tl.load(eps + weight).to(STATISTICS)
    v = tl.load(address).to(tl.pointer_type(V))
    g = tl.load(address + 1).to(tl.pointer_type(G))
    w = tl.load(address + 2).to(tl.pointer_type(W))
    if lie == ALIGNED:  # the compiler sees 16-byte accesses in these pointers and this length
        v, w, whole = tl.multiple_of(v, 16), tl.multiple_of(w, 16), length // LANES * LANES
        write_some(v, g, w, out, first, rows, whole, whole, added, True, STATISTICS, ALONG_R, ALONG_E)
    elif lie == ALONG:
        write_some(v, g, w, out, first, rows, inner, length, added, False, STATISTICS, ALONG_R, ALONG_E)
    else:
        write_some(v, g, w, out, first, rows, inner, length, added, False, STATISTICS, ACROSS_R, ACROSS_E)


@triton.jit
def project_some(
    dw, v, g, dv, dg, norms, first, rows, inner, length,
    OUTER_IS_ONE: tl.constexpr, STATISTICS: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    """dg = c = ⟨dw, v/n⟩ and dv = g/n · (dw − c·v/n) of BLOCK_R rows; an address of 0: not wanted."""
    row = first + tl.arange(0, BLOCK_R)
    row_ok = row < rows
    columns = tl.arange(0, BLOCK_E).to(tl.int64)
    norm = tl.load(norms + row, mask=row_ok, other=0.0)
    inverse = gain_over_norm(1.0, norm)
    c = share_of_dots(
        dw, v, inverse, row, row_ok, rows, inner, 0, length, OUTER_IS_ONE, STATISTICS, True, BLOCK_R, BLOCK_E
    )
    tl.store(dg + row, narrowed(c, dg.dtype.element_ty), mask=row_ok & (dg.to(tl.int64) != 0))
    s = gain_over_norm(tl.load(g + row, mask=row_ok, other=0.0).to(STATISTICS), norm)
    row_ok = row_ok & (dv.to(tl.int64) != 0)
    for e in range(0, length, BLOCK_E):
        ok = row_ok[:, None] & (e + columns < length)[None, :]
        at = element_offset(row, e + columns, rows, inner, OUTER_IS_ONE)
        u = tl.load(v + at, mask=ok, other=0.0).to(STATISTICS) * inverse[:, None]
        rest = tl.load(dw + at, mask=ok, other=0.0).to(STATISTICS) - c[:, None] * u
        tl.store(dv + at, narrowed(s[:, None] * rest, dv.dtype.element_ty), mask=ok)


@triton.jit
def project_model_weights(
    programs, weights, addresses, norms, V: tl.constexpr, G: tl.constexpr, W: tl.constexpr,
    STATISTICS: tl.constexpr, LANES: tl.constexpr,
    ALONG_R: tl.constexpr, ALONG_E: tl.constexpr, ACROSS_R: tl.constexpr, ACROSS_E: tl.constexpr,
):  # fmt: skip
    """As ``write_model_weights``; ``addresses`` [count, 5]: dw, of type W, v, g, dv, dg."""
    pid = tl.program_id(0)
    weight, first = tl.load(programs + pid * 2), tl.load(programs + pid * 2 + 1)
    entry, address = weights + weight * FIELDS, addresses + weight * 5
    rows, inner, length = tl.load(entry), tl.load(entry + 1), tl.load(entry + 2)
    known, lie = norms + tl.load(entry + 3), tl.load(entry + 4)
    dw, v = tl.load(address).to(tl.pointer_type(W)), tl.load(address + 1).to(tl.pointer_type(V))
    g, dv = tl.load(address + 2).to(tl.pointer_type(G)), tl.load(address + 3).to(tl.pointer_type(V))
    dg = tl.load(address + 4).to(tl.pointer_type(G))
    if lie == ALIGNED:
        dw, v, dv = tl.multiple_of(dw, 16), tl.multiple_of(v, 16), tl.multiple_of(dv, 16)
        whole = length // LANES * LANES
        project_some(dw, v, g, dv, dg, known, first, rows, whole, whole, True, STATISTICS, ALONG_R, ALONG_E)
    elif lie == ALONG:
        project_some(dw, v, g, dv, dg, known, first, rows, inner, length, False, STATISTICS, ALONG_R, ALONG_E)
    else:
        project_some(dw, v, g, dv, dg, known, first, rows, inner, length, False, STATISTICS, ACROSS_R, ACROSS_E)


_TYPES = {
    torch.float32: tl.float32,
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
    torch.float64: tl.float64,
}


class _Weight(NamedTuple):
    """A weight in memory order, with what decides its programs."""

    view: View
    aligned: bool
    first: int  # where its norms start
    eps: float

    @property
    def lie(self) -> int:
        if self.view.outer > 1:
            return ACROSS.value if self.view.inner < NORM_TILES["ACROSS_E"] else ALONG.value
        return ALIGNED.value if self.aligned else ALONG.value


class _Tables(NamedTuple):
    programs: Tensor
    weights: Tensor
    eps: Tensor


_tables: dict[tuple, _Tables] = {}  # reused, because every step has the same weights
_addresses: dict[tuple, Tensor] = {}  # and often, with torch's caching allocator, the same addresses
_MOST = 64  # of each: a model has a few


def forward(
    v: Sequence[Tensor], g: Sequence[Tensor], dims: Sequence[Dim], eps: Sequence[float], dtype: torch.dtype
) -> tuple[list[Tensor], Tensor]:
    """Each w = g v / n in ``dtype``, in v's memory order, and all norms in one dimension."""
    ordered = [in_memory_order(t, dim) for t, dim in zip(v, dims, strict=True)]
    counts = [t.numel() for t in g]
    norms = torch.empty(sum(counts), dtype=statistics(v[0].dtype), device=v[0].device)
    w: list[Tensor] = []
    together: list[_Weight] = []
    rows: list[tuple[int, ...]] = []
    first, alive = 0, []
    for t, gain, dim, added, count in zip(ordered, g, dims, eps, counts, strict=True):
        view = view_of(t, dim)
        if shares(view):
            w.append(torch.empty_like(t, dtype=dtype))
            alive.append(gain.contiguous())
            together.append(_Weight(view, _aligned(view, t, w[-1]), first, added))
            rows.append((t.data_ptr(), alive[-1].data_ptr(), w[-1].data_ptr()))
        else:
            own, weight = run_rows.norms_and_weight(t, gain, dim, added, dtype)
            w.append(weight)
            norms[first : first + count] = own.reshape(-1)
        first += count
    if together:
        _launch(write_model_weights, together, rows, norms, v[0].dtype, g[0].dtype, dtype)
    return w, norms


def backward(
    dw: Sequence[Tensor], v: Sequence[Tensor], g: Sequence[Tensor], norms: Tensor, dims: Sequence[Dim],
    want_v: Sequence[bool], want_g: Sequence[bool],
) -> tuple[list[Tensor | None], list[Tensor | None]]:  # fmt: skip
    """(dv, dg), in v's memory order; None if not wanted."""
    ordered = [in_memory_order(t, dim) for t, dim in zip(v, dims, strict=True)]
    norms = norms.contiguous()
    dv: list[Tensor | None] = []
    dg: list[Tensor | None] = []
    together: list[_Weight] = []
    rows: list[tuple[int, ...]] = []
    first, alive = 0, []
    for i, t in enumerate(ordered):
        dim, count = dims[i], g[i].numel()
        view = view_of(t, dim)
        if shares(view):
            given = dw[i] if dw[i].stride() == t.stride() else torch.empty_like(t, dtype=dw[i].dtype).copy_(dw[i])
            gain = g[i].contiguous()
            dv.append(torch.empty_like(t) if want_v[i] else None)
            dg.append(torch.empty_like(gain) if want_g[i] else None)
            alive += [given, gain]
            together.append(_Weight(view, _aligned(view, t, given), first, 0.0))
            rows.append((given.data_ptr(), t.data_ptr(), gain.data_ptr(), _address(dv[-1]), _address(dg[-1])))
        else:
            given = torch.empty_like(t, dtype=dw[i].dtype).copy_(dw[i])  # a copy, because it is projected in place
            own = norms[first : first + count].view(g[i].shape)
            one, other = run_rows.project(given, t, g[i], own, dim, want_v[i], want_g[i])
            dv.append(one)
            dg.append(other)
        first += count
    if together:
        _launch(project_model_weights, together, rows, norms, v[0].dtype, g[0].dtype, dw[0].dtype)
    return dv, dg


def shares(view: View) -> bool:
    """Whether a weight is part of the common launch; others have launches of their own."""
    return view.rows > 0 and 0 < view.length <= LONGEST_ROW


def _address(t: Tensor | None) -> int:
    return 0 if t is None else t.data_ptr()


def _aligned(view: View, a: Tensor, b: Tensor) -> bool:
    """Whether all rows of both start at a multiple of 16 bytes."""
    length = view.length
    return not (
        length * a.element_size() % 16 or length * b.element_size() % 16 or a.data_ptr() % 16 or b.data_ptr() % 16
    )


def _launch(
    kernel: object, weights: list[_Weight], rows: list[tuple[int, ...]], norms: Tensor,
    v: torch.dtype, g: torch.dtype, w: torch.dtype,
) -> None:  # fmt: skip
    tables = _tables_of(tuple(weights), norms.device)
    eps = (tables.eps,) if kernel is write_model_weights else ()
    with on_device(norms.device):
        addresses = _addresses_on(tuple(rows), norms.device)
        launch(
            kernel, (tables.programs.shape[0],), tables.programs, tables.weights, addresses, *eps, norms,
            V=_TYPES[v], G=_TYPES[g], W=_TYPES[w], STATISTICS=tl_type(v),
            LANES=16 // min(v.itemsize, w.itemsize), **NORM_TILES,
        )  # fmt: skip


def _tables_of(weights: tuple[_Weight, ...], device: torch.device) -> _Tables:
    key = (weights, device)
    found = _tables.get(key)
    if found is None:
        _make_room(_tables)
        programs, entries = [], []
        for i, weight in enumerate(weights):
            view, lie = weight.view, weight.lie
            entries.append((view.rows, view.inner, view.length, weight.first, lie))
            step = NORM_TILES["ACROSS_R" if lie == ACROSS.value else "ALONG_R"]
            programs += [(i, row) for row in range(0, view.rows, step)]
        eps = torch.tensor([weight.eps for weight in weights], dtype=torch.float64, device=device)
        found = _Tables(torch.tensor(programs, device=device), torch.tensor(entries, device=device), eps)
        _tables[key] = found
    return found


def _addresses_on(rows: tuple[tuple[int, ...], ...], device: torch.device) -> Tensor:
    if device.type != "cuda":
        return torch.tensor(rows)
    key = (rows, device, torch.cuda.current_stream(device).cuda_stream)  # another stream does not wait for the copy
    found = _addresses.get(key)
    if found is None:
        _make_room(_addresses)
        found = _addresses[key] = torch.tensor(rows, pin_memory=True).to(device, non_blocking=True)
    return found


def _make_room(table: dict) -> None:
    if len(table) >= _MOST:
        del table[next(iter(table))]
