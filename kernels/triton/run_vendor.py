"""The vendor path: cuBLAS and cuDNN compute the sums, row kernels the rest. It is a candidate of the rule, and it
handles float64, mixed dtypes that the matmul kernels do not support, and empty tensors.

The gain is applied to the smaller of the weight and the output. 16-bit types use the scaled weight, because scaling the
output would round it twice.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from wnfused.kernels.triton import affine
from wnfused.kernels.triton.launch import launch
from wnfused.kernels.triton.rules import Plan, cdiv
from wnfused.kernels.triton.run_finish import Gradients
from wnfused.kernels.triton.run_rows import (
    Dim,
    in_memory_order,
    index64,
    normalized,
    norms_and_weight,
    project,
    row_norms,
    tl_type,
)


def side_by_side(
    mask: list[bool], plans: tuple[Plan, Plan],
    vendor: Callable[[list[bool]], Gradients], kernels: Callable[[list[bool]], Gradients],
) -> Gradients:  # fmt: skip
    """The gradients, computed as their plans say: one plan for dx, and one for the others."""
    dx, dw = (plan.mode == "vendor" for plan in plans)
    theirs = [asked and there for asked, there in zip(mask, (dx, dw, dw, dw), strict=True)]
    ours = [asked and not there for asked, there in zip(mask, theirs, strict=True)]
    nothing: Gradients = (None,) * len(mask)
    found = vendor(theirs) if any(theirs) else nothing, kernels(ours) if any(ours) else nothing
    return tuple(a if b is None else b for a, b in zip(*found, strict=True))


def _masked(dy: Tensor, y: Tensor | None) -> Tensor:
    return dy if y is None else torch.where(y <= 0, 0.0, dy)


def _wide(*tensors: Tensor) -> bool:
    return all(t.dtype in (torch.float32, torch.float64) and t.dtype == tensors[0].dtype for t in tensors)


def _pixel_step(t: Tensor) -> int:
    """The stride of pixels in a dense [batch, channels, pixels…]; that of a dimension of size 1 is meaningless."""
    return next((step for size, step in zip(t.shape[:1:-1], t.stride()[:1:-1], strict=True) if size > 1), 1)


def scale_output(y: Tensor, g: Tensor, norms: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
    """act(y · g/n + bias) in place, for a dense y [batch, channels, pixels…] with one norm per channel or in all."""
    channels, pixels = y.shape[1], y[0, 0].numel() if y.ndim > 2 else 1
    strides = (y.stride(0), y.stride(1), _pixel_step(y))
    grid = (cdiv(y.shape[0] * pixels, 64) * cdiv(channels, 64),)
    launch(
        affine.scale_channels, grid,
        y, g.contiguous(), norms, None if bias is None else bias.contiguous(), y,
        channels, y.shape[0], pixels, *strides,
        0 if norms.numel() == 1 else 1, max(1, norms.numel()),
        RELU=relu, STATISTICS=tl_type(y.dtype), INDEX64=index64(y), BLOCK_P=64, BLOCK_C=64,
    )  # fmt: skip
    return y


def _written_dtype(x: Tensor, v: Tensor) -> torch.dtype:
    """A float32 weight under 16-bit activations is rounded as it is written."""
    return x.dtype if v.dtype == torch.float32 and x.dtype.itemsize == 2 else v.dtype


def _weight(x: Tensor, v: Tensor, g: Tensor, norms: Tensor, dim: Dim) -> Tensor:
    """w as the vendor multiplies it with x."""
    return normalized(v, g, norms, dim, _written_dtype(x, v)).to(x.dtype)


def _norms_and_weight(
    x: Tensor, v: Tensor, g: Tensor, norms: Tensor | None, dim: Dim, eps: float
) -> tuple[Tensor, Tensor]:
    if norms is not None:
        return norms, _weight(x, v, g, norms, dim)
    norms, w = norms_and_weight(v, g, dim, eps, _written_dtype(x, v))
    return norms, w.to(x.dtype)


def linear(
    x: Tensor, v: Tensor, g: Tensor, bias: Tensor | None, dim: Dim, eps: float, relu: bool, norms: Tensor | None
) -> tuple[Tensor, Tensor]:
    output = x.numel() // max(1, v.shape[1]) * v.shape[0]
    if dim != 1 and 0 < output < v.numel() and _wide(x, v, g) and v.numel() > 0:
        norms = row_norms(v, g, dim, eps) if norms is None else norms
        y = x @ v.t()
        scale_output(y.view(-1, v.shape[0]), g, norms, bias, relu)
        return y, norms  # not a view: users may modify it in place
    norms, w = _norms_and_weight(x, v, g, norms, dim, eps)
    y = F.linear(x, w, None if bias is None else bias.to(x.dtype))
    return y.relu_() if relu else y, norms


def linear_backward(
    dy: Tensor, x: Tensor, v: Tensor, g: Tensor, norms: Tensor, y: Tensor | None, dim: Dim, mask: list[bool]
) -> Gradients:
    dy = _masked(dy, y)
    rows = dy.reshape(dy.numel() // v.shape[0] if v.shape[0] else x[..., 0:1].numel(), v.shape[0])
    dx = dv = dg = db = None
    if mask[0]:
        dx = dy @ _weight(dy, v, g, norms, dim)
    if mask[1] or mask[2]:
        dw = rows.t() @ x.reshape(rows.shape[0], v.shape[1])
        dv, dg = project(_like(dw, v, dim), v, g, norms, dim, mask[1], mask[2])
    if mask[3]:
        db = rows.sum(0, dtype=torch.float64 if dy.dtype == torch.float64 else torch.float32)
    return dx, dv, dg, db


def _like(dw: Tensor, v: Tensor, dim: Dim) -> Tensor:
    """dw in the memory order in which ``project`` reads v."""
    ordered = in_memory_order(v, dim)
    if dw.stride() == ordered.stride():
        return dw
    return torch.empty_like(ordered, dtype=dw.dtype).copy_(dw)


def on_output(dim: Dim, transposed: bool, groups: int) -> bool:
    return dim is None or (dim == 1 and groups == 1 if transposed else dim == 0)


def convolution(
    x: Tensor, v: Tensor, g: Tensor, bias: Tensor | None, geometry: tuple, dim: Dim, eps: float, relu: bool,
    norms: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """geometry is aten's: stride, padding, dilation, transposed, output_padding, groups."""
    _, _, _, transposed, _, groups = geometry
    if on_output(dim, transposed, groups) and _wide(x, v, g) and x.numel() < v.numel():
        y = torch.ops.aten.convolution(x, v, None, *geometry)
        if 0 < y.numel() < v.numel():
            norms = row_norms(v, g, dim, eps) if norms is None else norms
            return scale_output(_dense(y), g, norms, bias, relu), norms
    norms, w = _norms_and_weight(x, v, g, norms, dim, eps)
    y = torch.ops.aten.convolution(x, w, None if bias is None else bias.to(x.dtype), *geometry)
    if relu:  # in one dimension y is a view; a saved view would hide in-place changes
        y = y.relu() if y._is_view() else y.relu_()
    return y, norms


def _dense(y: Tensor) -> Tensor:
    """y in one of the two layouts whose pixels are evenly spaced."""
    channels_last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(y.ndim)
    if y.is_contiguous() or (channels_last and y.is_contiguous(memory_format=channels_last)):
        return y
    return y.contiguous()


def bias_gradient(dy: Tensor, y: Tensor | None) -> Tensor:
    """Of dy [batch, channels, pixels…], where y (if a ReLU was fused) is positive."""
    wide = torch.float64 if dy.dtype == torch.float64 else torch.float32
    return _masked(dy, y).sum((0, *range(2, dy.ndim)), dtype=wide)


def convolution_backward(
    dy: Tensor, x: Tensor, v: Tensor, g: Tensor, norms: Tensor, y: Tensor | None, geometry: tuple, dim: Dim,
    mask: list[bool],
) -> Gradients:  # fmt: skip
    dy = _masked(dy, y)
    want_dw = mask[1] or mask[2]
    dx = dv = dg = None
    if mask[0] or want_dw:
        w = _weight(x, v, g, norms, dim)
        dx, dw, _ = torch.ops.aten.convolution_backward(dy, x, w, None, *geometry, [mask[0], want_dw, False])
    if want_dw:
        dv, dg = project(_like(dw, v, dim), v, g, norms, dim, mask[1], mask[2])
    return dx, dv, dg, bias_gradient(dy, None) if mask[3] else None
