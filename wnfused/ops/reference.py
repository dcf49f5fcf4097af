"""Each operation in plain PyTorch: the specification, the ``torch`` backend and the formula behind double backward.

Notation, row by row (a row is one slice of v along ``dim``; with ``dim=None`` all of v is one row):

    n = sqrt(sum v^2 + eps),  u = v / n,  w = g * u
    dg = c = <dw, u>,         dv = (g / n) * (dw - c * u)

A row with n = 0 has u = 0, so w, dv and dg are 0 there and nothing divides by zero.
Everything below is differentiable to any order and free of data-dependent branches. A function named after an operator
has its signature (``schema.py``). Without norms, the backward functions recompute them from v, which makes them
differentiable in v.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Gradients = tuple[Tensor | None, ...]


def opmath(dtype: torch.dtype) -> torch.dtype:
    """The dtype of statistics: float32 for 16-bit types, otherwise the dtype itself."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def gain_shape(v_shape: tuple[int, ...], dim: int | None) -> tuple[int, ...]:
    """The shape of g for a given v, as in torch: 1 in every dimension except ``dim``; ``()`` for ``dim=None``."""
    if dim is None:
        return ()
    return (*(1,) * dim, v_shape[dim], *(1,) * (len(v_shape) - dim - 1))


def _row_sum(t: Tensor, dim: int | None) -> Tensor:
    """Sum over all dimensions except ``dim``, in the shape of g.

    The rows are made contiguous first: PyTorch sums pairwise along the last dimension, but sequentially along others.
    """
    if dim is None:
        return _sum_of_last(t.flatten())
    return _sum_of_last(t.movedim(dim, 0).flatten(1)).reshape(gain_shape(tuple(t.shape), dim)) if t.ndim > 1 else t


def _sum_of_last(t: Tensor) -> Tensor:
    """Sum the last dimension, short rows on a CPU in float64: PyTorch adds the tail of each row sequentially."""
    wide = t.device.type == "cpu" and t.dtype == torch.float32 and t.shape[-1] <= 1024
    return t.sum(-1, dtype=torch.float64).to(t.dtype) if wide else t.sum(-1)


def row_norms(v: Tensor, dim: int | None, eps: float = 0.0) -> Tensor:
    """The row norms in the shape of g, in ``opmath`` precision, without overflow or underflow of the squares."""
    v = v.to(opmath(v.dtype))
    if v.numel() == 0:
        return _row_sum(v, dim) + eps**0.5
    largest = v.detach().abs()
    if v.ndim > 1 or dim is None:
        largest = largest.amax([d for d in range(v.ndim) if d != dim]).reshape(gain_shape(tuple(v.shape), dim))
    scale = largest.clamp_min(eps**0.5)
    power = torch.ldexp(torch.ones_like(scale), torch.frexp(scale).exponent - 1)  # division by it is exact
    scale = torch.where((scale > 0) & scale.isfinite(), power, 1.0)
    total = _row_sum((v / scale).square(), dim) + (eps**0.5 / scale).square()
    nonzero = total != 0  # NaN counts as nonzero and stays visible
    return torch.where(nonzero, scale * torch.where(nonzero, total, 1.0).sqrt(), 0.0)


def _nonzero(norms: Tensor) -> Tensor:
    """The norms to divide by. A row with norm 0 is all zeros and is divided by 1."""
    return torch.where(norms == 0, 1.0, norms)


def _scale(g: Tensor, norms: Tensor) -> Tensor:
    return torch.where(norms == 0, 0.0, g / _nonzero(norms))


def _normalized(v: Tensor, g: Tensor, norms: Tensor) -> Tensor:
    # A norm over the whole weight is a 0-d tensor, which would not promote a 16-bit v.
    return (v.to(norms.dtype) * _scale(g, norms)).to(v.dtype)


def weight_norm(v: Tensor, g: Tensor, dim: int | None, eps: float) -> tuple[Tensor, Tensor]:
    norms = row_norms(v, dim, eps)
    return _normalized(v, g, norms), norms


class _Plain:
    """The formulas below for the weight alone. Double backward passes the operators of the same names instead."""

    @staticmethod
    def weight_norm(v: Tensor, g: Tensor, norms: Tensor | None, dim: int | None, eps: float) -> Tensor:
        return _normalized(v, g, row_norms(v, dim, eps) if norms is None else norms)

    @staticmethod
    def weight_norm_backward(*args: Any) -> Gradients:
        return weight_norm_backward(*args)


def weight_norm_backward(
    dw: Tensor, v: Tensor, g: Tensor, norms: Tensor | None, dim: int | None, eps: float, mask: list[bool]
) -> Gradients:
    """(dv, dg), in the dtypes of v and g."""
    norms = row_norms(v, dim, eps) if norms is None else norms
    u, dw = v.to(norms.dtype) / _nonzero(norms), dw.to(norms.dtype)
    c = _row_sum(dw * u, dim)
    dv = (_scale(g, norms) * (dw - c * u)).to(v.dtype) if mask[0] else None
    return dv, c.to(g.dtype) if mask[1] else None


def model_weights(
    v: list[Tensor], g: list[Tensor], dims: list[int], eps: list[float], dtype: torch.dtype
) -> tuple[list[Tensor], Tensor]:
    """``weight_norm`` of many weights, in ``dtype``; a dim of -1 means None."""
    weights, norms = [], []
    for v_one, g_one, dim, eps_one in zip(v, g, dims, eps, strict=True):
        own = row_norms(v_one, None if dim < 0 else dim, eps_one)
        weights.append((v_one.to(own.dtype) * _scale(g_one, own)).to(dtype))  # rounded once
        norms.append(own.reshape(-1))
    return weights, torch.cat(norms)


def model_weights_backward(
    dw: list[Tensor], v: list[Tensor], g: list[Tensor], norms: Tensor | None, dims: list[int], eps: list[float],
    want_v: list[bool], want_g: list[bool],
) -> tuple[list[Tensor], list[Tensor]]:  # fmt: skip
    """The requested dv and the requested dg, in the order of the weights."""
    known = [None] * len(v) if norms is None else norms.split([t.numel() for t in g])
    dvs: list[Tensor] = []
    dgs: list[Tensor] = []
    for i, (v_one, g_one) in enumerate(zip(v, g, strict=True)):
        own, mask = known[i], [want_v[i], want_g[i]]
        own = None if own is None else own.view(g_one.shape)
        dv, dg = weight_norm_backward(dw[i], v_one, g_one, own, None if dims[i] < 0 else dims[i], eps[i], mask)
        dvs += [] if dv is None else [dv]
        dgs += [] if dg is None else [dg]
    return dvs, dgs


def linear(
    x: Tensor, v: Tensor, g: Tensor, bias: Tensor | None, dim: int | None, eps: float, relu: bool
) -> tuple[Tensor, Tensor]:
    w, norms = weight_norm(v, g, dim, eps)
    y = F.linear(x, w.to(x.dtype), None if bias is None else bias.to(x.dtype))
    return y.relu() if relu else y, norms


def linear_backward(
    dy: Tensor,
    x: Tensor,
    v: Tensor,
    g: Tensor,
    norms: Tensor | None,
    y: Tensor | None,
    dim: int | None,
    eps: float,
    biased: bool,
    mask: list[bool],
    weights: Any = _Plain,
) -> Gradients:
    """(dx, dv, dg, db), as selected by ``mask``; y is the output if a ReLU was fused."""
    dy = dy if y is None else torch.where(y <= 0, 0.0, dy)
    rows = dy.reshape(dy.numel() // v.shape[0] if v.shape[0] else x[..., 0:1].numel(), v.shape[0])  # [M, N]
    dx = dv = dg = None
    if mask[0]:
        dx = dy @ weights.weight_norm(v, g, norms, dim, eps).to(dy.dtype)
    if mask[1] or mask[2]:
        dw = rows.t() @ x.reshape(rows.shape[0], v.shape[1])  # [N, K]
        dv, dg = weights.weight_norm_backward(dw, v, g, norms, dim, eps, mask[1:3])
    return dx, dv, dg, rows.sum(0, dtype=opmath(dy.dtype)) if mask[3] else None


def convolution(
    x: Tensor,
    v: Tensor,
    g: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
    dim: int | None,
    eps: float,
    relu: bool,
) -> tuple[Tensor, Tensor]:
    w, norms = weight_norm(v, g, dim, eps)
    b = None if bias is None else bias.to(x.dtype)
    y = torch.ops.aten.convolution(x, w.to(x.dtype), b, stride, padding, dilation, transposed, output_padding, groups)
    return y.relu() if relu else y, norms


def convolution_backward(
    dy: Tensor,
    x: Tensor,
    v: Tensor,
    g: Tensor,
    norms: Tensor | None,
    y: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
    dim: int | None,
    eps: float,
    mask: list[bool],
    weights: Any = _Plain,
) -> Gradients:
    """(dx, dv, dg, db), as selected by ``mask``; y is the output if a ReLU was fused."""
    dy = dy if y is None else torch.where(y <= 0, 0.0, dy)
    w = weights.weight_norm(v, g, norms, dim, eps).to(x.dtype)
    need_dw = mask[1] or mask[2]
    dx = dv = dg = None
    if mask[0] or need_dw:
        dx, dw, _ = torch.ops.aten.convolution_backward(
            dy, x, w, None, stride, padding, dilation, transposed, output_padding, groups, [mask[0], need_dw, False]
        )
    if need_dw:
        dv, dg = weights.weight_norm_backward(dw, v, g, norms, dim, eps, mask[1:3])
    return dx, dv, dg, dy.sum((0, *range(2, dy.ndim)), dtype=opmath(dy.dtype)) if mask[3] else None
