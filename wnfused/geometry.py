"""A convolution's non-tensor arguments, checked against the tensors' shapes; results are cached."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from wnfused import checks

Size = int | Sequence[int]
Shape = tuple[int, ...]


class Geometry(NamedTuple):
    """Checked arguments, as the operator takes them."""

    arguments: tuple[list[int], list[int], list[int], bool, list[int], int]  # stride … groups, in the schema's order
    pad_first: list[int] | None  # for F.pad: padding that the operator's symmetric zero padding cannot express
    relu: bool


class ConvOptions(NamedTuple):
    """The options of one convolution, as its caller wrote them."""

    n: int  # spatial dimensions
    stride: Size
    padding: Size | str
    dilation: Size
    groups: int
    dim: int | None
    eps: float
    activation: str | None
    padding_mode: str = "zeros"
    transposed: bool = False
    output_padding: Size = 0

    @property
    def where(self) -> str:
        """The public function that takes these options."""
        return _FUNCTIONS[self.transposed][self.n]

    def geometry(self, x: Shape, v: Shape, g: Shape, bias: Shape | None) -> Geometry:
        """The checked arguments for tensors of these shapes.

        Checking takes longer than launching a small convolution and repeats in every step, so results are cached.
        """
        if torch.compiler.is_compiling():
            return _check(self, x, v, g, bias)
        # The types are part of the key because True == 1.0 == 1, and only 1 is valid.
        sizes = (self.stride, self.padding, self.dilation, self.output_padding)
        key = (self, x, v, g, bias, *map(type, self), *[tuple(map(type, a)) for a in sizes if type(a) is tuple])
        try:
            geometry = _known.get(key)
        except TypeError:  # a list, or a symbolic size
            geometry = _UNHASHABLE
        if geometry is _UNHASHABLE:
            return _check(self, x, v, g, bias)
        if geometry is None:
            geometry = _check(self, x, v, g, bias)
            if len(_known) >= _MOST_KNOWN:
                _known.clear()
            _known[key] = geometry
        return geometry


class KnownOptions(NamedTuple):
    """The operator's arguments after the tensors, which are the same for every input."""

    stride: list[int]
    padding: list[int]
    dilation: list[int]
    transposed: bool
    output_padding: list[int]
    groups: int
    dim: int | None
    eps: float
    relu: bool


@functools.lru_cache(maxsize=4096)
def known_options(
    n: int, transposed: bool, stride: Size, padding: Size | str, dilation: Size, output_padding: Size, groups: int,
    padding_mode: str, dim: int | None, eps: float, activation: str | None,
) -> KnownOptions | None:  # fmt: skip
    """For the layers, whose options rarely change; None where the arguments depend on the input or are invalid."""
    if isinstance(padding, str) or padding_mode != "zeros" or activation not in checks.ACTIVATIONS:
        return None
    try:
        strides = checks.sizes("", "stride", stride, n, least=1)
        pads = checks.sizes("", "padding", padding, n, least=0)
        dilations = checks.sizes("", "dilation", dilation, n, least=1)
        extra = checks.sizes("", "output_padding", output_padding, n, least=0)
    except ValueError:
        return None
    return KnownOptions(strides, pads, dilations, transposed, extra, groups, dim, eps, activation == "relu")


_FUNCTIONS = (
    ("", "wn_conv1d", "wn_conv2d", "wn_conv3d"),
    ("", "wn_conv_transpose1d", "wn_conv_transpose2d", "wn_conv_transpose3d"),
)
_known: dict[tuple[Any, ...], Geometry] = {}
_UNHASHABLE = Geometry(([], [], [], False, [], 0), None, False)
_MOST_KNOWN = 4096  # bounds the cache for inputs of ever-changing length


def _check(options: ConvOptions, x: Shape, v: Shape, g: Shape, bias: Shape | None) -> Geometry:
    where, n, groups = options.where, options.n, options.groups
    checks.convolution_shapes(where, x, v, n, groups, options.transposed)
    checks.gain_and_bias(where, v, g, bias, v[1] * groups if options.transposed else v[0], options.dim, options.eps)
    checks.activation(where, options.activation)
    strides = checks.sizes(where, "stride", options.stride, n, least=1)
    dilations = checks.sizes(where, "dilation", options.dilation, n, least=1)
    reach = [d * (k - 1) for d, k in zip(dilations, v[2:], strict=True)]
    sizes = x[len(x) - n :]
    if options.transposed:
        pads, extra = _transposed_padding(options, sizes, strides, dilations, reach)
        pad_first = None
    else:
        pads, pad_first = _padding(options, sizes, strides, reach)
        extra = [0] * n
    arguments = (strides, pads, dilations, options.transposed, extra, int(groups))
    return Geometry(arguments, pad_first, options.activation == "relu")


def _padding(
    options: ConvOptions, sizes: Shape, strides: list[int], reach: list[int]
) -> tuple[list[int], list[int] | None]:
    """The operator's padding, and what has to be padded before it."""
    where, n, padding, mode = options.where, options.n, options.padding, options.padding_mode
    checks.padding_mode(where, mode)
    if padding == "same":
        if any(s != 1 for s in strides):
            raise checks.ArgumentValueError(f"{where}: padding: 'same' needs stride 1, got stride={options.stride}")
        left, right = [r // 2 for r in reach], [r - r // 2 for r in reach]
    else:
        left = [0] * n if padding == "valid" else checks.sizes(where, "padding", padding, n, least=0)
        right = left
    for d in range(n):
        size = sizes[d] + left[d] + right[d]
        if size <= reach[d]:
            raise checks.ArgumentValueError(
                f"{where}: x: padded size {size} is smaller than the kernel's reach {reach[d] + 1} "
                f"in spatial dimension {d}"
            )
    if mode != "zeros" and any(right):
        _check_room(where, padding, mode, sizes, left, right)
        return [0] * n, _pad_amounts(left, right)
    if left != right:  # an even kernel with "same": like torch, pad one more on the right
        return left, _pad_amounts([0] * n, [b - a for a, b in zip(left, right, strict=True)])
    return left, None


def _check_room(where: str, padding: Any, mode: str, sizes: Shape, left: list[int], right: list[int]) -> None:
    """Check the padding's limit: reflection excludes the edge itself, circular padding wraps at most once."""
    for size, a, b in zip(sizes, left, right, strict=True):
        most = {"reflect": size - 1, "circular": size}.get(mode, max(a, b))
        if max(a, b) > most:
            raise checks.ArgumentValueError(
                f"{where}: padding: expected at most {most} with padding_mode={mode!r}, got {padding}"
            )


def _pad_amounts(left: list[int], right: list[int]) -> list[int]:
    return [a for pair in zip(reversed(left), reversed(right), strict=True) for a in pair]  # last dimension first


def _transposed_padding(
    options: ConvOptions, sizes: Shape, strides: list[int], dilations: list[int], reach: list[int]
) -> tuple[list[int], list[int]]:
    """The operator's padding and output padding."""
    where, n = options.where, options.n
    pads = checks.sizes(where, "padding", options.padding, n, least=0)
    extra = checks.sizes(where, "output_padding", options.output_padding, n, least=0)
    for d in range(n):
        if extra[d] >= max(strides[d], dilations[d]):
            raise checks.ArgumentValueError(
                f"{where}: output_padding: expected less than stride or dilation "
                f"({strides[d]}, {dilations[d]}), got {options.output_padding}"
            )
        size = (sizes[d] - 1) * strides[d] - 2 * pads[d] + reach[d] + 1 + extra[d]
        if size < 1:
            raise checks.ArgumentValueError(
                f"{where}: padding: {options.padding} gives output size {size} in spatial dimension {d}"
            )
    return pads, extra
