"""Launch of the multi-tensor norms: one launch for all weights of a model with the same device and dtype."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from wnfused.kernels.triton import multi
from wnfused.kernels.triton.launch import launch
from wnfused.kernels.triton.run_rows import Dim, View, in_memory_order, view_of
from wnfused.kernels.triton.support import on_device
from wnfused.kernels.triton.tiles import NORM_TILES

LONGEST_ROW = 2**15  # for one program; a longer row (one norm over a large weight) is better split
_TYPES = {
    torch.float32: triton.language.float32,
    torch.bfloat16: triton.language.bfloat16,
    torch.float16: triton.language.float16,
}


class Weight(NamedTuple):
    v: Tensor
    gain_shape: tuple[int, ...]
    dim: Dim
    eps: float


def supported(v: Tensor, dim: Dim) -> bool:
    return v.dtype in _TYPES and v.numel() > 0 and view_of(v, dim).length <= LONGEST_ROW


class _Tables(NamedTuple):
    programs: Tensor
    weights: Tensor
    eps: Tensor
    rows: int


_tables: dict[tuple, _Tables] = {}  # reused, because every step has the same weights
_MOST_TABLES = 16  # a model has one for each device and dtype


def many_norms(weights: Sequence[Weight]) -> list[Tensor]:
    """The norms of each weight, in the shape of its gain; all on one device, of one dtype."""
    ordered = [in_memory_order(w.v, w.dim) for w in weights]
    tables = _tables_of(ordered, weights)
    out = torch.empty(tables.rows, dtype=torch.float32, device=ordered[0].device)
    with on_device(out.device):
        launch(
            multi.many_row_norms, (tables.programs.shape[0],),
            tables.programs, tables.weights, tables.eps, out,
            FIELDS=6, DTYPE=_TYPES[ordered[0].dtype], **NORM_TILES,
        )  # fmt: skip
    parts = out.split([view_of(v, w.dim).rows for v, w in zip(ordered, weights, strict=True)])
    return [part.view(w.gain_shape) for part, w in zip(parts, weights, strict=True)]


def _tables_of(ordered: list[Tensor], weights: Sequence[Weight]) -> _Tables:
    key = tuple((v.data_ptr(), v.shape, v.dtype, v.device, w.dim, w.eps) for v, w in zip(ordered, weights, strict=True))
    found = _tables.get(key)
    if found is None:
        if len(_tables) == _MOST_TABLES:
            del _tables[next(iter(_tables))]
        found = _tables[key] = _make_tables(ordered, weights)
    return found


def _lie(v: Tensor, view: View) -> int:
    if view.outer > 1:
        return multi.ACROSS.value if view.inner < NORM_TILES["ACROSS_E"] else multi.ALONG.value
    aligned = v.data_ptr() % 16 == 0 and view.length * v.element_size() % 16 == 0
    return multi.ALIGNED.value if aligned else multi.ALONG.value


def _make_tables(ordered: list[Tensor], weights: Sequence[Weight]) -> _Tables:
    programs, entries, place = [], [], 0
    for i, (v, weight) in enumerate(zip(ordered, weights, strict=True)):
        view = view_of(v, weight.dim)
        lie = _lie(v, view)
        entries.append((v.data_ptr(), view.rows, view.inner, view.length, place, lie))
        step = NORM_TILES["ACROSS_R" if lie == multi.ACROSS.value else "ALONG_R"]
        programs += [(i, row) for row in range(0, view.rows, step)]
        place += view.rows
    device = ordered[0].device
    eps = torch.tensor([w.eps for w in weights], dtype=torch.float32, device=device)
    return _Tables(torch.tensor(programs, device=device), torch.tensor(entries, device=device), eps, place)
