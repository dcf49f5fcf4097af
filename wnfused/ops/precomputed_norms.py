"""Row norms computed ahead of the layers, valid inside a ``precompute_norms`` block while the weight is unchanged."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor


class _Known(NamedTuple):
    norms: Tensor
    version: int
    shape: torch.Size
    dim: int | None
    eps: float


_known: dict[int, _Known] = {}  # by the weight's address
_listeners: list[Callable[[], None]] = []


def any_known() -> bool:
    return bool(_known)


def on_change(listener: Callable[[], None]) -> None:
    """Call ``listener`` whenever norms become known or are forgotten: a recorded call computes its own."""
    _listeners.append(listener)


def _tell() -> None:
    for listener in _listeners:
        listener()


def _version(v: Tensor) -> int:
    return -1 if v.is_inference() else v._version


def capturing() -> bool:
    """True during CUDA graph capture: a replayed graph would use these norms after the block has ended."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def find(v: Tensor, dim: int | None, eps: float) -> Tensor | None:
    """The precomputed norms of v, or None if v was modified since or is used with another ``dim`` or ``eps``."""
    if not _known or capturing():
        return None
    known = _known.get(v.data_ptr())
    if known is None or known[1:] != (_version(v), v.shape, dim, eps):
        return None
    return known.norms


@contextmanager
def holding(norms: list[tuple[Tensor, Tensor, int | None, float]]) -> Iterator[None]:
    """A context in which ``find`` returns these norms, given as (v, norms, dim, eps)."""
    mine = {v.data_ptr(): _Known(own, _version(v), v.shape, dim, eps) for v, own, dim, eps in norms}
    _known.update(mine)
    _tell()
    try:
        yield
    finally:
        for address, known in mine.items():
            if _known.get(address) is known:  # another block, perhaps in another thread, may have replaced it
                del _known[address]
        _tell()
