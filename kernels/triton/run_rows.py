"""Launches of the row kernels (rows.py): norms, the normalized weight and its backward, on weights in memory order."""

import functools
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from wnfused.kernels.triton import rows
from wnfused.kernels.triton.launch import launch
from wnfused.kernels.triton.rules import bucket, cdiv

Dim = int | None
_INT32 = 2**31


class View(NamedTuple):
    """A weight as [outer, rows, inner] in memory order, a norm per row; ``length`` elements each."""

    outer: int
    rows: int
    inner: int

    @property
    def length(self) -> int:
        return self.outer * self.inner


def statistics(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def tl_type(dtype: torch.dtype) -> triton.language.dtype:
    return triton.language.float64 if dtype == torch.float64 else triton.language.float32


def index64(*tensors: Tensor | None) -> bool:
    """True if an element of one of them is past what 32 bits address."""
    return any(t is not None and _reach(t) >= _INT32 for t in tensors)


def _reach(t: Tensor) -> int:
    if t.is_contiguous():
        return t.numel()
    return sum((size - 1) * abs(step) for size, step in zip(t.shape, t.stride(), strict=True) if size > 1) + 1


def in_memory_order(v: Tensor, dim: Dim) -> Tensor:
    """v itself if its rows can be read in memory order (contiguous, or dense with dim 0 outermost), else a copy."""
    if v.is_contiguous():
        return v
    dense = v.numel() > 0 and v.stride()[0] * v.shape[0] == v.numel() and _reach(v) == v.numel()
    return v if dense and dim in (0, None) else v.contiguous()


def view_of(v: Tensor, dim: Dim) -> View:
    if dim is None:
        return View(1, 1, v.numel())
    shape = list(v.shape)
    outer = 1
    for size in shape[:dim]:
        outer *= size
    inner = 1
    for size in shape[dim + 1 :]:
        inner *= size
    return View(outer, shape[dim], inner)


class _Partition(NamedTuple):
    grid: tuple[int, int]
    per_split: int
    constants: dict[str, object]

    @property
    def splits(self) -> int:
        return self.grid[1]


def _partition(view: View, v: Tensor) -> _Partition:
    return _partition_of(view, tl_type(v.dtype), index64(v))


@functools.lru_cache(maxsize=4096)
def _partition_of(view: View, statistics: triton.language.dtype, wide: bool) -> _Partition:
    """Tiles of 2048 elements: across rows first where those are neighbours in memory, else along; long rows split."""
    if view.outer > 1 and view.inner < 32:
        block_r = min(64, bucket(view.rows))
        block_e = 2048 // block_r
    else:
        block_e = min(2048, max(16, bucket(view.length)))
        block_r = min(2048 // block_e, bucket(view.rows))
    blocks = cdiv(view.rows, block_r)
    splits = max(1, min(cdiv(view.length, 8 * block_e), rows.MOST_SPLITS // blocks))
    per_split = cdiv(cdiv(view.length, splits), block_e) * block_e
    splits = max(1, cdiv(view.length, max(1, per_split)))
    constants = {
        "OUTER_IS_ONE": view.outer == 1, "STATISTICS": statistics, "INDEX64": wide,
        "BLOCK_R": block_r, "BLOCK_E": block_e,
    }  # fmt: skip
    return _Partition((blocks, splits), per_split, constants)


def row_norms(v: Tensor, g: Tensor, dim: Dim, eps: float) -> Tensor:
    """The norms, in the shape of g."""
    v = in_memory_order(v, dim)
    view, norms = view_of(v, dim), torch.empty(g.shape, dtype=statistics(v.dtype), device=v.device)
    if v.numel() == 0:
        return norms.fill_(eps**0.5)
    partition = _partition(view, v)
    sizes = (view.rows, view.inner, view.length, partition.per_split, eps)
    if partition.splits == 1:
        launch(rows.partial_norms, partition.grid, v, None, None, norms, None, None, *sizes, **partition.constants)
        return norms
    parts = norms.new_empty((2, partition.splits, view.rows))
    launch(rows.partial_norms, partition.grid, v, parts[0], parts[1], None, None, None, *sizes, **partition.constants)
    launch(
        rows.combine_norms, (cdiv(view.rows, 128),), *parts, norms, view.rows, partition.splits, eps,
        STATISTICS=tl_type(v.dtype), BLOCK_R=128,
    )  # fmt: skip
    return norms


def norms_and_weight(v: Tensor, g: Tensor, dim: Dim, eps: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The norms and w = g v / n, in one launch that reads v from memory once; in three where rows are split."""
    v = in_memory_order(v, dim)
    view, partition = view_of(v, dim), _partition(view_of(v, dim), v)
    if v.numel() == 0 or partition.splits > 1:
        norms = row_norms(v, g, dim, eps)
        return norms, normalized(v, g, norms, dim, dtype)
    norms = torch.empty(g.shape, dtype=statistics(v.dtype), device=v.device)
    w = torch.empty_like(v, dtype=dtype)
    sizes = (view.rows, view.inner, view.length, partition.per_split, eps)
    launch(
        rows.partial_norms, partition.grid, v, None, None, norms, g.contiguous(), w, *sizes, **partition.constants
    )  # fmt: skip
    return norms, w


def normalized(v: Tensor, g: Tensor, norms: Tensor, dim: Dim, dtype: torch.dtype) -> Tensor:
    """w = g v / n, in v's memory order."""
    v = in_memory_order(v, dim)
    w = torch.empty_like(v, dtype=dtype)
    if v.numel() > 0:
        view, partition = view_of(v, dim), _partition(view_of(v, dim), v)
        sizes = (view.rows, view.inner, view.length, partition.per_split)
        launch(rows.write_normalized, partition.grid, v, g.contiguous(), norms, w, *sizes, **partition.constants)
    return w


def project(
    dw: Tensor, v: Tensor, g: Tensor, norms: Tensor, dim: Dim, want_dv: bool, want_dg: bool
) -> tuple[Tensor | None, Tensor | None]:
    """(dv, dg) from dw, which is in the order of ``in_memory_order(v)`` and is given up."""
    v = in_memory_order(v, dim)
    dg = torch.empty(g.shape, dtype=g.dtype, device=g.device) if want_dg else None
    dv = (dw if dw.dtype == v.dtype else torch.empty_like(v)) if want_dv else None
    if v.numel() == 0:
        return dv, None if dg is None else dg.zero_()
    view, partition = view_of(v, dim), _partition(view_of(v, dim), v)
    dots = norms.new_empty((partition.splits, view.rows)) if partition.splits > 1 else None
    sizes = (view.rows, view.inner, view.length, partition.per_split)
    if dots is not None:
        launch(rows.partial_dots, partition.grid, dw, v, norms, dots, *sizes, **partition.constants)
    gains = g.contiguous()
    launch(
        rows.project, partition.grid, dw, v, gains, norms, dots, dv, dg, *sizes, partition.splits, **partition.constants
    )
    return dv, dg
