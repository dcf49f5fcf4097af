"""Launches of the last step of a backward pass (finish.py), for linear and convolution layers."""

import torch
from torch import Tensor

from wnfused.kernels.triton import finish
from wnfused.kernels.triton.launch import launch
from wnfused.kernels.triton.rules import bucket, cdiv
from wnfused.kernels.triton.run_rows import Dim, index64

Gradients = tuple[Tensor | None, ...]
BLOCK_C = 128  # channels whose sums a program adds


def new_scales(norms: Tensor, mask: list[bool], dim: Dim) -> Tensor | None:
    """Room for g/n, which the weight gradient's kernels leave for the input gradient to read instead of dividing."""
    return torch.empty_like(norms) if mask[0] and dim == 0 else None


def finish_rows(
    dw: Tensor, v: Tensor, g: Tensor, norms: Tensor, dots: Tensor | None, dg: Tensor | None,
    scales: Tensor | None, sums: Tensor | None, want_dv: bool, parts: int,
) -> Gradients:  # fmt: skip
    """dv, dg and db in one launch, from dW (whole and given up, or in splits) and dy's sums, a norm per row of v."""
    rows, length = v.shape[0], v.numel() // v.shape[0]
    from_splits = dots is None
    dv = (torch.empty_like(v) if from_splits or dw.dtype != v.dtype else dw.view(-1)) if want_dv else None
    db = None if sums is None else sums.new_empty(sums.shape[1])
    sum_parts, channels = (0, 0) if sums is None else sums.shape
    block_e = min(2048, max(16, bucket(length)))
    block_r = min(2048 // block_e, bucket(rows))
    parts = dw.shape[0] if from_splits else parts
    launch(
        finish.finish_weight, (cdiv(rows, block_r) + cdiv(channels, BLOCK_C),),
        dw, v, g, norms, dots, dv, dg, scales, sums, db, rows, length, parts, v.numel(), channels, sum_parts,
        FROM_SPLITS=from_splits, INDEX64=index64(dw), BLOCK_R=block_r, BLOCK_E=block_e, BLOCK_C=BLOCK_C,
    )  # fmt: skip
    if dv is not None and dv.shape != v.shape:
        dv = dv.as_strided(v.shape, v.stride())
    return dv, dg, db


def added(sums: Tensor | None) -> Tensor | None:
    """db from shares of dy's sums, where no launch follows that could add them."""
    return None if sums is None else sums.view(-1) if sums.shape[0] == 1 else sums.sum(0)
