"""Argument checks of the public functions: each error names the argument, what it was and what was expected.

They run before any kernel, on every call, so each is a few attribute reads; messages are built only on failure.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from wnfused.ops.reference import gain_shape

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
ACTIVATIONS = (None, "relu")
PADDING_MODES = ("zeros", "reflect", "replicate", "circular")


def shape(t: Tensor) -> tuple[int, ...]:
    return tuple(t.shape)


def floating(where: str, name: str, t: Any) -> None:
    if not isinstance(t, Tensor):
        raise TypeError(f"{where}: {name}: expected a tensor, got {type(t).__name__}")
    if t.dtype not in FLOATS:
        kinds = "float32, float64, bfloat16 or float16"
        raise TypeError(f"{where}: {name}: expected a {kinds} tensor, got {str(t.dtype).removeprefix('torch.')}")


def weight(where: str, v: Any, g: Any, bias: Any, channels: int | None, dim: Any, eps: Any) -> None:
    """v, g, bias, dim and eps belong together; ``channels`` is the size bias must have."""
    floating(where, "v", v)
    floating(where, "g", g)
    if dim is not None:
        dimension(where, v.ndim, dim)
    if tuple(g.shape) != gain_shape(v.shape, dim):
        expected = gain_shape(shape(v), dim)
        raise ValueError(f"{where}: g: expected shape {expected} for v of shape {shape(v)} and dim={dim}, got {shape(g)}")
    same_kind(where, "g", g, "v", v)
    if bias is not None:
        floating(where, "bias", bias)
        if tuple(bias.shape) != (channels,):
            raise ValueError(f"{where}: bias: expected shape ({channels},), got {shape(bias)}")
        same_kind(where, "bias", bias, "v", v)
    epsilon(where, eps)


def dimension(where: str, ndim: int, dim: Any) -> None:
    if not isinstance(dim, int) or isinstance(dim, bool):
        raise TypeError(f"{where}: dim: expected an int or None, got {dim!r}")
    if not 0 <= dim < ndim:
        hint = "; torch's weight_norm reads -1 as one norm over the whole tensor: say dim=None" if dim == -1 else ""
        raise ValueError(f"{where}: dim: expected None or 0 to {ndim - 1} for a {ndim}-d weight, got {dim}{hint}")


def epsilon(where: str, eps: Any) -> None:
    if not isinstance(eps, (int, float)) or not 0 <= eps < math.inf:
        raise ValueError(f"{where}: eps: expected a finite number >= 0, got {eps!r}")


def same_kind(where: str, name: str, t: Tensor, other_name: str, other: Tensor) -> None:
    """Same device; same dtype, except under autocast, which mixes float32 weights with 16-bit activations."""
    if t.device != other.device:
        raise ValueError(f"{where}: {name}: expected device {other.device} like {other_name}, got {t.device}")
    if t.dtype != other.dtype and not (
        torch.is_autocast_enabled(t.device.type) and torch.float64 not in (t.dtype, other.dtype)
    ):
        raise TypeError(
            f"{where}: {name}: expected dtype {other.dtype} like {other_name}, got {t.dtype} (only autocast mixes dtypes)"
        )


def activation(where: str, name: Any) -> None:
    if name not in ACTIVATIONS:
        raise ValueError(f"{where}: activation: expected None or 'relu', got {name!r}")


def sizes(where: str, name: str, value: Any, count: int, least: int) -> list[int]:
    """An int, or ``count`` of them, each at least ``least``."""
    if isinstance(value, int) and not isinstance(value, bool):
        values = [value] * count
    elif isinstance(value, Sequence) and not isinstance(value, str) and len(value) in (1, count):
        values = list(value) * (count if len(value) == 1 else 1)
    else:
        raise ValueError(f"{where}: {name}: expected an int or {count} of them, got {value!r}")
    for v in values:
        if not isinstance(v, int) or v < least:
            raise ValueError(f"{where}: {name}: expected integers >= {least}, got {value!r}")
    return values


def convolution_input(where: str, x: Any, v: Any, n: int, groups: Any, transposed: bool) -> None:
    """Ranks and channel counts of an n-dimensional convolution."""
    floating(where, "x", x)
    floating(where, "v", v)
    if v.ndim != n + 2 or 0 in v.shape:
        raise ValueError(f"{where}: v: expected {n + 2} non-empty dimensions, got shape {shape(v)}")
    if x.ndim not in (n + 1, n + 2):
        raise ValueError(f"{where}: x: expected {n + 1} or {n + 2} dimensions, got shape {shape(x)}")
    if not isinstance(groups, int) or groups < 1:
        raise ValueError(f"{where}: groups: expected an int >= 1, got {groups!r}")
    if v.shape[0] % groups:
        raise ValueError(f"{where}: groups: expected a divisor of v.shape[0] = {v.shape[0]}, got {groups}")
    channels = v.shape[0] if transposed else v.shape[1] * groups
    if x.shape[-n - 1] != channels:
        raise ValueError(
            f"{where}: x: expected {channels} channels for v of shape {shape(v)} and groups={groups}, got shape {shape(x)}"
        )
    if 0 in x.shape[-n:]:
        raise ValueError(f"{where}: x: expected non-empty spatial dimensions, got shape {shape(x)}")
    same_kind(where, "x", x, "v", v)


def convolution_output(
    where: str, x: Tensor, v: Tensor, padding: list[int], dilation: list[int], spatial_from: int
) -> None:
    """The kernel fits into the padded input."""
    for d, (pad, dil) in enumerate(zip(padding, dilation, strict=True)):
        size, reach = x.shape[spatial_from + d] + 2 * pad, dil * (v.shape[2 + d] - 1) + 1
        if size < reach:
            raise ValueError(
                f"{where}: x: padded size {size} is smaller than the kernel's reach {reach} in spatial dimension {d}"
            )
