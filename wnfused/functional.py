"""Weight-normalized operations as functions: argument checks, then one operator.

Shared arguments: ``v`` (the direction, shaped like the plain weight), ``g`` (the gain, shaped as torch's ``weight_g``:
ones everywhere except along ``dim``, ``()`` for ``dim=None``), ``bias``, ``dim`` (the dimension that keeps its own
norm, torch's convention), ``eps`` (the norm is ``sqrt(sum(v**2) + eps)``) and ``activation`` (``None`` or ``"relu"``,
fused).
A row of zeros (with ``eps=0``) gives a zero weight and zero gradients, never NaN.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from wnfused import checks, ops
from wnfused.geometry import ConvOptions, KnownOptions, Size

__all__ = [
    "weight_norm",
    "wn_conv1d",
    "wn_conv2d",
    "wn_conv3d",
    "wn_conv_transpose1d",
    "wn_conv_transpose2d",
    "wn_conv_transpose3d",
    "wn_linear",
]


def _under_autocast(x: Tensor) -> Tensor:
    """Cast x as autocast does for a matmul; the weights stay float32 and are cast inside the kernel."""
    if torch._C._is_any_autocast_enabled() and x.dtype != torch.float64:
        kind = x.device.type
        if torch.is_autocast_enabled(kind):
            return x.to(torch.get_autocast_dtype(kind))
    return x


def _is_usual(x: Any, v: Any, g: Any, bias: Any, dim: Any, eps: Any, activation: Any) -> bool:
    """Whether the operator's own checks are enough. It has no dtype rule of its own and takes any number as ``eps``.

    They are nearly free, because a call of known shapes is not checked again; those in Python cost as much as a launch.
    """
    return (
        type(x) is Tensor
        and not torch.compiler.is_compiling()
        and (activation is None or activation == "relu")
        and type(eps) is float
        and (dim is None or type(dim) is int)
        and isinstance(v, Tensor)
        and isinstance(g, Tensor)
        and x.dtype == v.dtype == g.dtype
        and (bias is None or (isinstance(bias, Tensor) and bias.dtype == v.dtype))
    )


def weight_norm(v: Tensor, g: Tensor, dim: int | None = 0, eps: float = 0.0) -> Tensor:
    """The normalized weight ``g * v / norm(v)``, which torch's ``weight_norm`` writes on every forward.

    The layers never materialize it. Use it to inspect or fold a weight, or to build new operations.
    """
    checks.tensors("weight_norm", v, v, g, None)
    checks.gain_and_bias("weight_norm", v.shape, g.shape, None, None, dim, eps)
    return ops.weight_norm(v, g, dim, eps)[0]


def wn_linear(
    x: Tensor,
    v: Tensor,
    g: Tensor,
    bias: Tensor | None = None,
    *,
    dim: int | None = 0,
    eps: float = 0.0,
    activation: str | None = None,
) -> Tensor:
    """``act(F.linear(x, g * v / norm(v), bias))`` without storing the normalized weight.

    ``x`` is ``[..., in]``, ``v`` is ``[out, in]``, ``g`` is ``[out, 1]`` (for ``dim=0``), ``bias`` is ``[out]``.
    """
    if _is_usual(x, v, g, bias, dim, eps, activation):
        try:
            return ops.linear(_under_autocast(x), v, g, bias, dim, eps, activation == "relu")[0]
        except (TypeError, ValueError):
            pass  # the checks below name this function's arguments
    checks.tensors("wn_linear", x, v, g, bias)
    if v.ndim != 2:
        raise checks.ArgumentValueError(f"wn_linear: v: expected 2 dimensions [out, in], got shape {checks.shape(v)}")
    if x.ndim == 0 or x.shape[-1] != v.shape[1]:
        raise checks.ArgumentValueError(
            f"wn_linear: x: expected last dimension {v.shape[1]} like v of shape {checks.shape(v)}, "
            f"got shape {checks.shape(x)}"
        )
    checks.gain_and_bias("wn_linear", v.shape, g.shape, None if bias is None else bias.shape, v.shape[0], dim, eps)
    checks.activation("wn_linear", activation)
    return ops.linear(_under_autocast(x), v, g, bias, dim, eps, activation == "relu")[0]


def convolve(x: Tensor, v: Tensor, g: Tensor, bias: Tensor | None, known: KnownOptions) -> Tensor | None:
    """The convolution with options that were already checked; None if this call needs all checks."""
    if not _is_usual(x, v, g, bias, known.dim, known.eps, None) or x.ndim != v.ndim:
        return None
    try:
        return ops.convolution(_under_autocast(x), v, g, bias, *known)[0]
    except (TypeError, ValueError):
        return None


def _convolution(x: Tensor, v: Tensor, g: Tensor, bias: Tensor | None, options: ConvOptions) -> Tensor:
    checks.tensors(options.where, x, v, g, bias)
    arguments, pad_first, relu = options.geometry(x.shape, v.shape, g.shape, None if bias is None else bias.shape)
    x = _under_autocast(x)
    if pad_first is not None:
        mode = options.padding_mode
        x = F.pad(x, pad_first, mode="constant" if mode == "zeros" else mode)
    if x.ndim == v.ndim:
        return ops.convolution(x, v, g, bias, *arguments, options.dim, options.eps, relu)[0]
    return ops.convolution(x[None], v, g, bias, *arguments, options.dim, options.eps, relu)[0][0]


def wn_conv1d(
    x: Tensor,
    v: Tensor,
    g: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size | str = 0,
    dilation: Size = 1,
    groups: int = 1,
    *,
    padding_mode: str = "zeros",
    dim: int | None = 0,
    eps: float = 0.0,
    activation: str | None = None,
) -> Tensor:
    """``act(F.conv1d(x, g * v / norm(v), bias, …))``; ``padding_mode`` is ``nn.Conv1d``'s."""
    options = ConvOptions(1, stride, padding, dilation, groups, dim, eps, activation, padding_mode)
    return _convolution(x, v, g, bias, options)


def wn_conv2d(
    x: Tensor,
    v: Tensor,
    g: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size | str = 0,
    dilation: Size = 1,
    groups: int = 1,
    *,
    padding_mode: str = "zeros",
    dim: int | None = 0,
    eps: float = 0.0,
    activation: str | None = None,
) -> Tensor:
    """``act(F.conv2d(x, g * v / norm(v), bias, …))``; ``padding_mode`` is ``nn.Conv2d``'s."""
    options = ConvOptions(2, stride, padding, dilation, groups, dim, eps, activation, padding_mode)
    return _convolution(x, v, g, bias, options)


def wn_conv3d(
    x: Tensor,
    v: Tensor,
    g: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size | str = 0,
    dilation: Size = 1,
    groups: int = 1,
    *,
    padding_mode: str = "zeros",
    dim: int | None = 0,
    eps: float = 0.0,
    activation: str | None = None,
) -> Tensor:
    """``act(F.conv3d(x, g * v / norm(v), bias, …))``; ``padding_mode`` is ``nn.Conv3d``'s."""
    options = ConvOptions(3, stride, padding, dilation, groups, dim, eps, activation, padding_mode)
    return _convolution(x, v, g, bias, options)


def wn_conv_transpose1d(
    x: Tensor,
    v: Tensor,
    g: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size = 0,
    output_padding: Size = 0,
    groups: int = 1,
    dilation: Size = 1,
    *,
    dim: int | None = 0,
    eps: float = 0.0,
    activation: str | None = None,
) -> Tensor:
    """``act(F.conv_transpose1d(x, g * v / norm(v), bias, …))``; note that ``dim=0`` is the *input* channel here."""
    options = ConvOptions(1, stride, padding, dilation, groups, dim, eps, activation, "zeros", True, output_padding)
    return _convolution(x, v, g, bias, options)


def wn_conv_transpose2d(
    x: Tensor,
    v: Tensor,
    g: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size = 0,
    output_padding: Size = 0,
    groups: int = 1,
    dilation: Size = 1,
    *,
    dim: int | None = 0,
    eps: float = 0.0,
    activation: str | None = None,
) -> Tensor:
    """``act(F.conv_transpose2d(x, g * v / norm(v), bias, …))``; note that ``dim=0`` is the *input* channel here."""
    options = ConvOptions(2, stride, padding, dilation, groups, dim, eps, activation, "zeros", True, output_padding)
    return _convolution(x, v, g, bias, options)


def wn_conv_transpose3d(
    x: Tensor,
    v: Tensor,
    g: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size = 0,
    output_padding: Size = 0,
    groups: int = 1,
    dilation: Size = 1,
    *,
    dim: int | None = 0,
    eps: float = 0.0,
    activation: str | None = None,
) -> Tensor:
    """``act(F.conv_transpose3d(x, g * v / norm(v), bias, …))``; note that ``dim=0`` is the *input* channel here."""
    options = ConvOptions(3, stride, padding, dilation, groups, dim, eps, activation, "zeros", True, output_padding)
    return _convolution(x, v, g, bias, options)
