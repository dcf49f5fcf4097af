"""Weight-normalized operations as functions: argument checks, then one operator.

Shared arguments: ``v`` (the direction, shaped like the plain weight), ``g`` (the gain, shaped as torch's ``weight_g``: ones
everywhere except along ``dim``, ``()`` for ``dim=None``), ``bias``, ``dim`` (the dimension that keeps its own norm, torch's
convention), ``eps`` (the norm is ``sqrt(sum(v**2) + eps)``) and ``activation`` (``None`` or ``"relu"``, fused).
A row of zeros (with ``eps=0``) gives a zero weight and zero gradients, never NaN.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from wnfused import checks, ops

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

Size = int | Sequence[int]


def _under_autocast(x: Tensor) -> Tensor:
    """x as autocast's matmuls and convolutions would take it; the weights stay float32 and are cast inside the kernel."""
    if torch._C._is_any_autocast_enabled() and x.dtype != torch.float64:  # type: ignore[attr-defined]
        kind = x.device.type
        if torch.is_autocast_enabled(kind):
            return x.to(torch.get_autocast_dtype(kind))
    return x


def weight_norm(v: Tensor, g: Tensor, dim: int | None = 0, eps: float = 0.0) -> Tensor:
    """The normalized weight ``g * v / norm(v)``: what torch's ``weight_norm`` writes on every forward.

    The layers never need it; it is for looking at a weight, for folding it, and for operations of your own.
    """
    checks.tensors("weight_norm", None, v, g, None)
    checks.gain_and_bias("weight_norm", v, g, None, None, dim, eps)
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
    """``act(F.linear(x, g * v / norm(v), bias))`` without the normalized weight in memory.

    ``x`` is ``[..., in]``, ``v`` is ``[out, in]``, ``g`` is ``[out, 1]`` (for ``dim=0``), ``bias`` is ``[out]``.
    """
    checks.tensors("wn_linear", x, v, g, bias)
    if v.ndim != 2:
        raise ValueError(f"wn_linear: v: expected 2 dimensions [out, in], got shape {checks.shape(v)}")
    if x.ndim == 0 or x.shape[-1] != v.shape[1]:
        raise ValueError(
            f"wn_linear: x: expected last dimension {v.shape[1]} like v of shape {checks.shape(v)}, "
            f"got shape {checks.shape(x)}"
        )
    checks.gain_and_bias("wn_linear", v, g, bias, v.shape[0], dim, eps)
    checks.activation("wn_linear", activation)
    return ops.linear(_under_autocast(x), v, g, bias, dim, eps, activation == "relu")[0]


class _Geometry(NamedTuple):
    """A convolution's checked arguments, as the operator takes them."""

    stride: list[int]
    padding: list[int]
    dilation: list[int]
    output_padding: list[int]
    pad_first: list[int] | None  # for F.pad: what the operator's symmetric zero padding cannot express


def _remembered(check: Callable[..., _Geometry]) -> Callable[..., _Geometry]:
    """Checks of shapes and numbers take longer than a small convolution's launch, and repeat in every step."""
    known: dict[tuple[Any, ...], _Geometry] = {}

    def checked(*arguments: Any) -> _Geometry:
        if torch.compiler.is_compiling():
            return check(*arguments)
        try:
            geometry = known.get(arguments)
        except TypeError:  # a list, or a symbolic size
            return check(*arguments)
        if geometry is None:
            if len(known) >= 4096:  # inputs of ever new lengths
                known.clear()
            geometry = known[arguments] = check(*arguments)
        return geometry

    return checked


@_remembered
def _conv_geometry(
    n: int,
    x: tuple[int, ...],
    v: tuple[int, ...],
    stride: Size,
    padding: Size | str,
    dilation: Size,
    groups: int,
    padding_mode: str,
) -> _Geometry:
    where = f"wn_conv{n}d"
    checks.convolution_shapes(where, x, v, n, groups, transposed=False)
    strides = checks.sizes(where, "stride", stride, n, least=1)
    dilations = checks.sizes(where, "dilation", dilation, n, least=1)
    if padding_mode not in checks.PADDING_MODES:
        raise ValueError(f"{where}: padding_mode: expected one of {checks.PADDING_MODES}, got {padding_mode!r}")
    reach = [d * (k - 1) for d, k in zip(dilations, v[2:], strict=True)]
    if padding == "same":
        if any(s != 1 for s in strides):
            raise ValueError(f"{where}: padding: 'same' needs stride 1, got stride={stride}")
        left, right = [r // 2 for r in reach], [r - r // 2 for r in reach]
    else:
        left = [0] * n if padding == "valid" else checks.sizes(where, "padding", padding, n, least=0)
        right = left
    for d in range(n):
        size = x[len(x) - n + d] + left[d] + right[d]
        if size <= reach[d]:
            raise ValueError(
                f"{where}: x: padded size {size} is smaller than the kernel's reach {reach[d] + 1} "
                f"in spatial dimension {d}"
            )
    pad_first = None
    if padding_mode != "zeros" and any(right):
        pad_first, left = _pad_amounts(left, right), [0] * n
    elif left != right:  # an even kernel with "same": one more on the right, as torch does it
        pad_first = _pad_amounts([0] * n, [b - a for a, b in zip(left, right, strict=True)])
    return _Geometry(strides, left, dilations, [0] * n, pad_first)


def _pad_amounts(left: list[int], right: list[int]) -> list[int]:
    return [a for pair in zip(reversed(left), reversed(right), strict=True) for a in pair]  # last dimension first


@_remembered
def _conv_transpose_geometry(
    n: int,
    x: tuple[int, ...],
    v: tuple[int, ...],
    stride: Size,
    padding: Size,
    output_padding: Size,
    groups: int,
    dilation: Size,
) -> _Geometry:
    where = f"wn_conv_transpose{n}d"
    checks.convolution_shapes(where, x, v, n, groups, transposed=True)
    strides = checks.sizes(where, "stride", stride, n, least=1)
    dilations = checks.sizes(where, "dilation", dilation, n, least=1)
    pads = checks.sizes(where, "padding", padding, n, least=0)
    extra = checks.sizes(where, "output_padding", output_padding, n, least=0)
    for d in range(n):
        if extra[d] >= max(strides[d], dilations[d]):
            raise ValueError(
                f"{where}: output_padding: expected less than stride or dilation "
                f"({strides[d]}, {dilations[d]}), got {output_padding}"
            )
        reach = dilations[d] * (v[2 + d] - 1) + 1
        size = (x[len(x) - n + d] - 1) * strides[d] - 2 * pads[d] + reach + extra[d]
        if size < 1:
            raise ValueError(f"{where}: padding: {padding} leaves output size {size} in spatial dimension {d}")
    return _Geometry(strides, pads, dilations, extra, None)


def _conv(
    n: int,
    x: Tensor,
    v: Tensor,
    g: Tensor,
    bias: Tensor | None,
    stride: Size,
    padding: Size | str,
    dilation: Size,
    groups: int,
    padding_mode: str,
    dim: int | None,
    eps: float,
    activation: str | None,
) -> Tensor:
    where = _CONV[n]
    checks.tensors(where, x, v, g, bias)
    geometry = _conv_geometry(n, x.shape, v.shape, stride, padding, dilation, groups, padding_mode)
    checks.gain_and_bias(where, v, g, bias, v.shape[0], dim, eps)
    checks.activation(where, activation)
    x = _under_autocast(x)
    if geometry.pad_first is not None:
        x = F.pad(x, geometry.pad_first, mode="constant" if padding_mode == "zeros" else padding_mode)
    return _convolution(n, x, v, g, bias, geometry, False, groups, dim, eps, activation)


def _conv_transpose(
    n: int,
    x: Tensor,
    v: Tensor,
    g: Tensor,
    bias: Tensor | None,
    stride: Size,
    padding: Size,
    output_padding: Size,
    groups: int,
    dilation: Size,
    dim: int | None,
    eps: float,
    activation: str | None,
) -> Tensor:
    where = _CONV_TRANSPOSE[n]
    checks.tensors(where, x, v, g, bias)
    geometry = _conv_transpose_geometry(n, x.shape, v.shape, stride, padding, output_padding, groups, dilation)
    checks.gain_and_bias(where, v, g, bias, v.shape[1] * groups, dim, eps)
    checks.activation(where, activation)
    return _convolution(n, _under_autocast(x), v, g, bias, geometry, True, groups, dim, eps, activation)


_CONV = ("", "wn_conv1d", "wn_conv2d", "wn_conv3d")
_CONV_TRANSPOSE = ("", "wn_conv_transpose1d", "wn_conv_transpose2d", "wn_conv_transpose3d")


def _convolution(
    n: int,
    x: Tensor,
    v: Tensor,
    g: Tensor,
    bias: Tensor | None,
    geometry: _Geometry,
    transposed: bool,
    groups: int,
    dim: int | None,
    eps: float,
    activation: str | None,
) -> Tensor:
    stride, padding, dilation, output_padding, _ = geometry
    batched = x.ndim == n + 2
    y, _ = ops.convolution(
        x if batched else x[None], v, g, bias, stride, padding, dilation, transposed, output_padding, groups,
        dim, eps, activation == "relu",
    )  # fmt: skip
    return y if batched else y[0]


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
    """``act(F.conv1d(x, g * v / norm(v), bias, …))``, arguments as ``F.conv1d``'s; ``padding_mode`` as ``nn.Conv1d``'s."""
    return _conv(1, x, v, g, bias, stride, padding, dilation, groups, padding_mode, dim, eps, activation)


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
    """``act(F.conv2d(x, g * v / norm(v), bias, …))``, arguments as ``F.conv2d``'s; ``padding_mode`` as ``nn.Conv2d``'s."""
    return _conv(2, x, v, g, bias, stride, padding, dilation, groups, padding_mode, dim, eps, activation)


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
    """``act(F.conv3d(x, g * v / norm(v), bias, …))``, arguments as ``F.conv3d``'s; ``padding_mode`` as ``nn.Conv3d``'s."""
    return _conv(3, x, v, g, bias, stride, padding, dilation, groups, padding_mode, dim, eps, activation)


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
    return _conv_transpose(
        1, x, v, g, bias, stride, padding, output_padding, groups, dilation, dim, eps, activation
    )


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
    return _conv_transpose(
        2, x, v, g, bias, stride, padding, output_padding, groups, dilation, dim, eps, activation
    )


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
    return _conv_transpose(
        3, x, v, g, bias, stride, padding, output_padding, groups, dilation, dim, eps, activation
    )
