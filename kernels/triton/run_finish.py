"""Launches of the last step of a backward pass (finish.py), for linear and convolution layers."""

import torch
import triton
from torch import Tensor

from wnfused.kernels.triton import finish
from wnfused.kernels.triton.run_rows import Dim, index64
from wnfused.kernels.triton.support import launch_options

Gradients = tuple[Tensor | None, ...]


def pixel_step(t: Tensor) -> int:
    """From one pixel of [batch, channels, pixels…] to the next, in a dense layout: dimensions of size 1 do not tell."""
    return next((step for size, step in zip(t.shape[:1:-1], t.stride()[:1:-1], strict=True) if size > 1), 1)


def new_scales(norms: Tensor, mask: list[bool], dim: Dim) -> Tensor | None:
    """Room for g/n, which the weight gradient's kernels leave for the input gradient to read instead of dividing."""
    return torch.empty_like(norms) if mask[0] and dim == 0 else None


def finish_rows(
    dw: Tensor, v: Tensor, g: Tensor, norms: Tensor, dots: Tensor | None, dg: Tensor | None,
    scales: Tensor | None, dy: Tensor, y: Tensor | None, want_dv: bool, want_db: bool, parts: int,
) -> Gradients:  # fmt: skip
    """dv, dg and db in one launch, from dW (whole and given up, or in splits) with a norm per row of v."""
    rows, length = v.shape[0], v.numel() // v.shape[0]
    from_splits = dots is None
    dv = (torch.empty_like(v) if from_splits or dw.dtype != v.dtype else dw.view(-1)) if want_dv else None
    db, blocks, layout = _bias_layout(dy) if want_db else (None, 0, (0, 0, 0, 0, 0, 0))
    block_e = min(2048, max(16, triton.next_power_of_2(length)))
    block_r = min(2048 // block_e, triton.next_power_of_2(rows))
    parts = dw.shape[0] if from_splits else parts
    finish.finish_weight[(triton.cdiv(rows, block_r) + blocks,)](
        dw, v, g, norms, dots, dv, dg, scales, *((dy, y) if want_db else (None, None)), db,
        rows, length, parts, v.numel(), *layout,
        FROM_SPLITS=from_splits, HAS_ROWS=True, INDEX64=index64(dw, dy),
        BLOCK_R=block_r, BLOCK_E=block_e, BLOCK_P=256, BLOCK_C=32, **launch_options(),
    )  # fmt: skip
    if dv is not None and dv.shape != v.shape:
        dv = dv.as_strided(v.shape, v.stride())
    return dv, dg, db


def finish_bias(dy: Tensor, y: Tensor | None) -> Tensor:
    """db alone."""
    db, blocks, layout = _bias_layout(dy)
    finish.finish_weight[(blocks,)](
        None, None, None, None, None, None, None, None, dy, y, db, 0, 0, 0, 0, *layout,
        FROM_SPLITS=False, HAS_ROWS=False, INDEX64=index64(dy),
        BLOCK_R=1, BLOCK_E=16, BLOCK_P=256, BLOCK_C=32, **launch_options(),
    )  # fmt: skip
    return db


def _bias_layout(dy: Tensor) -> tuple[Tensor, int, tuple[int, int, int, int, int, int]]:
    """(db, programs, sizes and strides) of dy [batch, channels, pixels…] in a dense layout, or of a matrix."""
    channels = dy.shape[1]
    pixels = dy[0, 0].numel() if dy.ndim > 2 else 1
    layout = (channels, dy.shape[0], pixels, dy.stride(0), dy.stride(1), pixel_step(dy))
    return dy.new_empty(channels, dtype=torch.float32), triton.cdiv(channels, 32), layout
