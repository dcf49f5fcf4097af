"""Each operation in plain PyTorch: the specification, the ``torch`` backend and the formula behind double backward.

Notation, row by row (a row is one slice of v along ``dim``; with ``dim=None`` all of v is one row):

    n = sqrt(sum v^2 + eps),  u = v / n,  w = g * u
    dg = c = <dw, u>,         dv = (g / n) * (dw - c * u)

A row with n = 0 has u = 0, so w, dv and dg are 0 there and nothing divides by zero.
Everything below is differentiable to any order and free of data-dependent branches. The functions named after an
operator have its signature (``schema.py``); the backward ones recompute the norms from v when they are given none,
which is what makes them differentiable in v.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

Gradients = tuple[Tensor | None, ...]


def opmath(dtype: torch.dtype) -> torch.dtype:
    """The type statistics are kept in: float32 for 16-bit types, otherwise the type itself."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def gain_shape(v_shape: tuple[int, ...], dim: int | None) -> tuple[int, ...]:
    """Shape of g for a given v: torch's, ones everywhere except along ``dim``; ``()`` for one norm over everything."""
    if dim is None:
        return ()
    return (*(1,) * dim, v_shape[dim], *(1,) * (len(v_shape) - dim - 1))


def _row_sum(t: Tensor, dim: int | None) -> Tensor:
    """Sum over everything but ``dim``, in the shape of g.

    Rows are laid side by side first: PyTorch sums along the last dimension pairwise, across others one by one.
    """
    if dim is None:
        return _sum_of_last(t.flatten())
    return _sum_of_last(t.movedim(dim, 0).flatten(1)).reshape(gain_shape(tuple(t.shape), dim)) if t.ndim > 1 else t


def _sum_of_last(t: Tensor) -> Tensor:
    """Short rows on a CPU are summed in float64: there PyTorch adds the tail of each row one by one, in float32."""
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
    power = torch.ldexp(torch.ones_like(scale), torch.frexp(scale).exponent - 1)  # dividing by it does not round
    scale = torch.where((scale > 0) & scale.isfinite(), power, 1.0)
    total = _row_sum((v / scale).square(), dim) + (eps**0.5 / scale).square()
    nonzero = total != 0  # NaN counts as nonzero and stays visible
    return torch.where(nonzero, scale * torch.where(nonzero, total, 1.0).sqrt(), 0.0)


def _nonzero(norms: Tensor) -> Tensor:
    """The norms to divide by: a row with norm 0 is all zeros, and divided by 1 stays so."""
    return torch.where(norms == 0, 1.0, norms)


def _scale(g: Tensor, norms: Tensor) -> Tensor:
    return torch.where(norms == 0, 0.0, g / _nonzero(norms))


def _normalized(v: Tensor, g: Tensor, norms: Tensor) -> Tensor:
    # A norm over everything has no dimensions, and would not widen a 16-bit v by itself.
    return (v.to(norms.dtype) * _scale(g, norms)).to(v.dtype)


def weight_norm(v: Tensor, g: Tensor, dim: int | None, eps: float) -> tuple[Tensor, Tensor]:
    norms = row_norms(v, dim, eps)
    return _normalized(v, g, norms), norms


def weight_norm_backward(
    dw: Tensor, v: Tensor, g: Tensor, norms: Tensor | None, dim: int | None, eps: float, mask: list[bool]
) -> Gradients:
    """(dv, dg), in the dtypes of v and g."""
    norms = row_norms(v, dim, eps) if norms is None else norms
    u, dw = v.to(norms.dtype) / _nonzero(norms), dw.to(norms.dtype)
    c = _row_sum(dw * u, dim)
    dv = (_scale(g, norms) * (dw - c * u)).to(v.dtype) if mask[0] else None
    return dv, c.to(g.dtype) if mask[1] else None


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
) -> Gradients:
    """(dx, dv, dg, db): those that ``mask`` asks for; y is the output where a ReLU was fused."""
    norms = row_norms(v, dim, eps) if norms is None else norms
    dy = dy if y is None else torch.where(y <= 0, 0.0, dy)
    rows = dy.reshape(dy.numel() // v.shape[0] if v.shape[0] else x[..., 0:1].numel(), v.shape[0])  # [M, N]
    dx = dv = dg = None
    if mask[0]:
        dx = dy @ _normalized(v, g, norms).to(dy.dtype)
    if mask[1] or mask[2]:
        dw = rows.t() @ x.reshape(rows.shape[0], v.shape[1])  # [N, K]
        dv, dg = weight_norm_backward(dw, v, g, norms, dim, eps, mask[1:3])
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
) -> Gradients:
    """(dx, dv, dg, db): those that ``mask`` asks for; y is the output where a ReLU was fused."""
    norms = row_norms(v, dim, eps) if norms is None else norms
    dy = dy if y is None else torch.where(y <= 0, 0.0, dy)
    w = _normalized(v, g, norms).to(x.dtype)
    need_dw = mask[1] or mask[2]
    dx = dv = dg = None
    if mask[0] or need_dw:
        dx, dw, _ = torch.ops.aten.convolution_backward(
            dy, x, w, None, stride, padding, dilation, transposed, output_padding, groups, [mask[0], need_dw, False]
        )
    if need_dw:
        dv, dg = weight_norm_backward(dw, v, g, norms, dim, eps, mask[1:3])
    return dx, dv, dg, dy.sum((0, *range(2, dy.ndim)), dtype=opmath(dy.dtype)) if mask[3] else None
