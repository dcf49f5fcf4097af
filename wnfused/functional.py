"""Weight-normalized operations as functions: argument checks, then one operator.

Shared arguments: ``v`` (the direction, shaped like the plain weight), ``g`` (the gain, shaped as torch's ``weight_g``: ones
everywhere except along ``dim``, ``()`` for ``dim=None``), ``bias``, ``dim`` (the dimension that keeps its own norm, torch's
convention), ``eps`` (the norm is ``sqrt(sum(v**2) + eps)``) and ``activation`` (``None`` or ``"relu"``, fused).
A row of zeros (with ``eps=0``) gives a zero weight and zero gradients, never NaN.
"""

from collections.abc import Sequence

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


def _same_padding(v: Tensor, dilation: list[int]) -> tuple[list[int], list[int]]:
    """Padding that keeps the size at stride 1: per dimension the symmetric part, and the one element more on the right."""
    total = [d * (k - 1) for d, k in zip(dilation, v.shape[2:], strict=True)]
    return [t // 2 for t in total], [t % 2 for t in total]


def _pad(x: Tensor, left: list[int], right: list[int], mode: str) -> Tensor:
    amounts = [a for pair in zip(reversed(left), reversed(right), strict=True) for a in pair]  # last dimension first
    return F.pad(x, amounts, mode="constant" if mode == "zeros" else mode)


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
    where = f"wn_conv{n}d"
    checks.tensors(where, x, v, g, bias)
    checks.convolution_input(where, x, v, n, groups, transposed=False)
    checks.gain_and_bias(where, v, g, bias, v.shape[0], dim, eps)
    checks.activation(where, activation)
    strides = checks.sizes(where, "stride", stride, n, least=1)
    dilations = checks.sizes(where, "dilation", dilation, n, least=1)
    if padding_mode not in checks.PADDING_MODES:
        raise ValueError(f"{where}: padding_mode: expected one of {checks.PADDING_MODES}, got {padding_mode!r}")
    extra = [0] * n
    if padding == "same":
        if any(s != 1 for s in strides):
            raise ValueError(f"{where}: padding: 'same' needs stride 1, got stride={stride}")
        pads, extra = _same_padding(v, dilations)
    else:
        pads = [0] * n if padding == "valid" else checks.sizes(where, "padding", padding, n, least=0)
    x = _under_autocast(x)
    if padding_mode != "zeros" and any((*pads, *extra)):
        x, pads = _pad(x, pads, [p + e for p, e in zip(pads, extra, strict=True)], padding_mode), [0] * n
    elif any(extra):
        x = _pad(x, [0] * n, extra, "zeros")
    checks.convolution_output(where, x, v, pads, dilations, x.ndim - n)
    return _convolution(n, x, v, g, bias, strides, pads, dilations, False, [0] * n, groups, dim, eps, activation)


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
    where = f"wn_conv_transpose{n}d"
    checks.tensors(where, x, v, g, bias)
    checks.convolution_input(where, x, v, n, groups, transposed=True)
    checks.gain_and_bias(where, v, g, bias, v.shape[1] * groups, dim, eps)
    checks.activation(where, activation)
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
        reach = dilations[d] * (v.shape[2 + d] - 1) + 1
        size = (x.shape[x.ndim - n + d] - 1) * strides[d] - 2 * pads[d] + reach + extra[d]
        if size < 1:
            raise ValueError(f"{where}: padding: {padding} leaves output size {size} in spatial dimension {d}")
    x = _under_autocast(x)
    return _convolution(n, x, v, g, bias, strides, pads, dilations, True, extra, groups, dim, eps, activation)


def _convolution(
    n: int,
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
    activation: str | None,
) -> Tensor:
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
