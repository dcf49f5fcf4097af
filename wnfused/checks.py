"""Argument checks of the public functions. Each error names the argument, what was expected and what it was.

The checks run on every call, before any kernel, so each is a few attribute reads; messages are built only on failure.
"""

import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor, nn

from wnfused.ops.arguments import FLOATS as FLOATS
from wnfused.ops.arguments import MOST_SIZE
from wnfused.ops.arguments import ArgumentTypeError as ArgumentTypeError
from wnfused.ops.arguments import ArgumentValueError as ArgumentValueError
from wnfused.ops.reference import gain_shape

ACTIVATIONS = (None, "relu")
PADDING_MODES = ("zeros", "reflect", "replicate", "circular")


def shape(t: Tensor) -> tuple[int, ...]:
    return tuple(t.shape)


def floating(where: str, name: str, t: Any) -> None:
    if not isinstance(t, Tensor):
        raise ArgumentTypeError(f"{where}: {name}: expected a tensor, got {type(t).__name__}")
    if t.dtype not in FLOATS:
        kinds = "float32, float64, bfloat16 or float16"
        raise ArgumentTypeError(
            f"{where}: {name}: expected a {kinds} tensor, got {str(t.dtype).removeprefix('torch.')}"
        )
    if t.layout != torch.strided:
        raise ArgumentTypeError(f"{where}: {name}: expected a dense (strided) tensor, got {t.layout}")


def module(where: str, model: Any) -> None:
    if not isinstance(model, nn.Module):
        raise ArgumentTypeError(f"{where}: model: expected a torch.nn.Module, got {type(model).__name__}")


def padding_mode(where: str, mode: Any) -> None:
    if mode not in PADDING_MODES:
        raise ArgumentValueError(f"{where}: padding_mode: expected one of {PADDING_MODES}, got {mode!r}")


def layer_dtype(where: str, dtype: Any) -> None:
    if dtype is not None and dtype not in FLOATS:
        raise ArgumentTypeError(f"{where}: dtype: expected float32, float64, bfloat16 or float16, got {dtype}")


def tensors(where: str, x: Any, v: Any, g: Any, bias: Any) -> None:
    """Check that all are dense floating-point tensors of one dtype on one device; ``bias`` may be None."""
    if isinstance(x, Tensor) and isinstance(v, Tensor) and isinstance(g, Tensor):
        dtype, device, layout = v.dtype, v.device, v.layout
        if (  # fast path: almost every call is valid
            dtype in FLOATS
            and layout == torch.strided
            and x.dtype == dtype
            and g.dtype == dtype
            and x.device == device
            and g.device == device
            and x.layout == layout
            and g.layout == layout
            and (
                bias is None
                or (
                    isinstance(bias, Tensor) and bias.dtype == dtype and bias.device == device and bias.layout == layout
                )
            )
        ):
            return
    floating(where, "v", v)
    for name, t in (("x", x), ("g", g), ("bias", bias)):
        if t is not None or name != "bias":
            floating(where, name, t)
            same_kind(where, name, t, "v", v)


def gain_and_bias(
    where: str,
    v: tuple[int, ...],
    g: tuple[int, ...],
    bias: tuple[int, ...] | None,
    channels: int | None,
    dim: Any,
    eps: Any,
) -> None:
    """Check that g has the shape that v and ``dim`` imply, and bias one element per channel."""
    if dim is not None:
        dimension(where, len(v), dim)
    expected = gain_shape(v, dim)
    if g != expected:
        raise ArgumentValueError(
            f"{where}: g: expected shape {expected} for v of shape {tuple(v)} and dim={dim}, got {tuple(g)}"
        )
    if bias is not None and bias != (channels,):
        raise ArgumentValueError(f"{where}: bias: expected shape ({channels},), got {tuple(bias)}")
    if type(eps) is not float or eps != 0.0:
        epsilon(where, eps)


def dimension(where: str, ndim: int, dim: Any) -> None:
    if type(dim) is not int:
        raise ArgumentTypeError(f"{where}: dim: expected an int or None, got {dim!r}")
    if not 0 <= dim < ndim:
        hint = "; for one norm over the whole tensor, torch's dim=-1, pass dim=None" if dim == -1 else ""
        raise ArgumentValueError(
            f"{where}: dim: expected None or 0 to {ndim - 1} for a {ndim}-d weight, got {dim}{hint}"
        )


def epsilon(where: str, eps: Any) -> None:
    if not isinstance(eps, int | float) or not 0 <= eps < math.inf:
        raise ArgumentValueError(f"{where}: eps: expected a finite number >= 0, got {eps!r}")


def same_kind(where: str, name: str, t: Tensor, other_name: str, other: Tensor) -> None:
    """Check for the same device and dtype; autocast may mix float32 weights with 16-bit activations."""
    if t.device != other.device:
        raise ArgumentValueError(f"{where}: {name}: expected device {other.device} like {other_name}, got {t.device}")
    if t.dtype != other.dtype and not (
        torch.is_autocast_enabled(t.device.type) and torch.float64 not in (t.dtype, other.dtype)
    ):
        raise ArgumentTypeError(
            f"{where}: {name}: expected dtype {other.dtype} like {other_name}, got {t.dtype} "
            "(dtypes may differ only under autocast)"
        )


def activation(where: str, name: Any) -> None:
    if name not in ACTIVATIONS:
        raise ArgumentValueError(f"{where}: activation: expected None or 'relu', got {name!r}")


def is_integer(value: Any) -> bool:
    """Whether ``value`` is an int or, as torch accepts too, a NumPy integer; bool is not accepted."""
    return type(value) is int or (isinstance(value, Integral) and not isinstance(value, bool))


def count(where: str, name: str, value: Any, least: int = 1) -> None:
    if not is_integer(value) or value < least:
        raise ArgumentValueError(f"{where}: {name}: expected an int >= {least}, got {value!r}")


def is_number(value: Any) -> bool:
    """Whether ``value`` is a real number, such as an int, a float or a NumPy scalar; bool is not accepted."""
    return isinstance(value, Real) and not isinstance(value, bool)


def sizes(where: str, name: str, value: Any, count: int, least: int) -> list[int]:
    """``value``, an int or a sequence of ``count`` ints, as a list; each must be at least ``least``."""
    if is_integer(value):
        values = [value] * count
    elif isinstance(value, Sequence) and not isinstance(value, str) and len(value) in (1, count):
        values = list(value) if len(value) == count else list(value) * count
    else:
        raise ArgumentValueError(f"{where}: {name}: expected an int or {count} of them, got {value!r}")
    for v in values:
        if not is_integer(v) or v < least:
            raise ArgumentValueError(f"{where}: {name}: expected integers >= {least}, got {value!r}")
        if v > MOST_SIZE:  # sums of larger values overflow 64 bits
            raise ArgumentValueError(f"{where}: {name}: expected integers <= {MOST_SIZE}, got {value!r}")
    return [int(v) for v in values]


def convolution_shapes(
    where: str, x: tuple[int, ...], v: tuple[int, ...], n: int, groups: Any, transposed: bool
) -> None:
    """Check ranks and channel counts of an n-d convolution of an input of shape x with a weight of shape v."""
    if len(v) != n + 2 or 0 in v:
        raise ArgumentValueError(f"{where}: v: expected {n + 2} non-empty dimensions, got shape {tuple(v)}")
    if len(x) not in (n + 1, n + 2):
        raise ArgumentValueError(f"{where}: x: expected {n + 1} or {n + 2} dimensions, got shape {tuple(x)}")
    count(where, "groups", groups)
    if v[0] % groups:
        raise ArgumentValueError(f"{where}: groups: expected a divisor of v.shape[0] = {v[0]}, got {groups}")
    channels = v[0] if transposed else v[1] * groups
    if x[-n - 1] != channels:
        raise ArgumentValueError(
            f"{where}: x: expected {channels} channels for v of shape {tuple(v)} and groups={groups}, "
            f"got shape {tuple(x)}"
        )
    if 0 in x[-n:]:
        raise ArgumentValueError(f"{where}: x: expected non-empty spatial dimensions, got shape {tuple(x)}")
