"""A convolution's non-tensor arguments, checked against the tensors' shapes; results are cached."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from wnfused import checks

Size = int | Sequence[int]


class Geometry(NamedTuple):
    """A convolution's checked arguments, as the operator takes them."""

    stride: list[int]
    padding: list[int]
    dilation: list[int]
    output_padding: list[int]
    pad_first: list[int] | None  # for F.pad: padding that the operator's symmetric zero padding cannot express


def _remembered(check: Callable[..., Geometry]) -> Callable[..., Geometry]:
    """Cache the result: the checks take longer than launching a small convolution, and repeat in every step."""
    known: dict[tuple[Any, ...], Geometry] = {}

    def checked(*arguments: Any) -> Geometry:
        if torch.compiler.is_compiling():
            return check(*arguments)
        # The types are part of the key because True == 1.0 == 1, and only 1 is valid.
        key = (arguments, *map(type, arguments), *(tuple(map(type, a)) for a in arguments if type(a) is tuple))
        try:
            geometry = known.get(key)
        except TypeError:  # a list, or a symbolic size
            return check(*arguments)
        if geometry is None:
            if len(known) >= 4096:  # bounds the cache for inputs of ever-changing length
                known.clear()
            geometry = known[key] = check(*arguments)
        return geometry

    return checked


@_remembered
def conv_geometry(
    n: int,
    x: tuple[int, ...],
    v: tuple[int, ...],
    g: tuple[int, ...],
    bias: tuple[int, ...] | None,
    stride: Size,
    padding: Size | str,
    dilation: Size,
    groups: int,
    padding_mode: str,
    dim: int | None,
    eps: float,
    activation: str | None,
) -> Geometry:
    """The geometry of ``wn_convNd`` with tensors of these shapes."""
    where = f"wn_conv{n}d"
    checks.convolution_shapes(where, x, v, n, groups, transposed=False)
    checks.gain_and_bias(where, v, g, bias, v[0], dim, eps)
    checks.activation(where, activation)
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
        _check_room(where, padding, padding_mode, x[len(x) - n :], left, right)
        pad_first, left = _pad_amounts(left, right), [0] * n
    elif left != right:  # an even kernel with "same": like torch, pad one more on the right
        pad_first = _pad_amounts([0] * n, [b - a for a, b in zip(left, right, strict=True)])
    return Geometry(strides, left, dilations, [0] * n, pad_first)


def _check_room(where: str, padding: Any, mode: str, sizes: tuple[int, ...], left: list[int], right: list[int]) -> None:
    """Check the padding's limit: reflection excludes the edge itself, circular padding wraps at most once."""
    for size, a, b in zip(sizes, left, right, strict=True):
        most = {"reflect": size - 1, "circular": size}.get(mode, max(a, b))
        if max(a, b) > most:
            raise ValueError(f"{where}: padding: expected at most {most} with padding_mode={mode!r}, got {padding}")


def _pad_amounts(left: list[int], right: list[int]) -> list[int]:
    return [a for pair in zip(reversed(left), reversed(right), strict=True) for a in pair]  # last dimension first


@_remembered
def conv_transpose_geometry(
    n: int,
    x: tuple[int, ...],
    v: tuple[int, ...],
    g: tuple[int, ...],
    bias: tuple[int, ...] | None,
    stride: Size,
    padding: Size,
    output_padding: Size,
    groups: int,
    dilation: Size,
    dim: int | None,
    eps: float,
    activation: str | None,
) -> Geometry:
    """The geometry of ``wn_conv_transposeNd`` with tensors of these shapes."""
    where = f"wn_conv_transpose{n}d"
    checks.convolution_shapes(where, x, v, n, groups, transposed=True)
    checks.gain_and_bias(where, v, g, bias, v[1] * groups, dim, eps)
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
        reach = dilations[d] * (v[2 + d] - 1) + 1
        size = (x[len(x) - n + d] - 1) * strides[d] - 2 * pads[d] + reach + extra[d]
        if size < 1:
            raise ValueError(f"{where}: padding: {padding} gives output size {size} in spatial dimension {d}")
    return Geometry(strides, pads, dilations, extra, None)
