"""Argument checks of the operators, for the fakes and for operators that run from Python.

The public functions check their arguments first and name themselves in errors. Exported graphs and callers of
``torch.ops.wnfused`` call the operator directly. ``kernels/cpu/arguments.cpp`` has the same rules for calls that never
reach Python.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from wnfused.ops.reference import gain_shape, opmath

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
MOST_SIZE = 2**31 - 1  # the largest stride, padding or dilation


class ArgumentValueError(ValueError, RuntimeError):
    """A wrong shape, size or device: a ValueError, and the RuntimeError that torch's own operators raise."""


class ArgumentTypeError(TypeError, RuntimeError):
    """A wrong type or dtype: a TypeError, and the RuntimeError that torch's own operators raise."""


def _floating(where: str, t: Any) -> None:
    if not isinstance(t, Tensor):
        raise ArgumentTypeError(f"{where}: expected a tensor, got {t}")
    if t.dtype not in FLOATS:
        raise ArgumentTypeError(f"{where}: expected a float32, float64, bfloat16 or float16 tensor, got {t.dtype}")
    if t.layout != torch.strided:
        raise ArgumentTypeError(f"{where}: expected a dense (strided) tensor, got {t.layout}")


def _beside_v(where: str, t: Any, v: Tensor) -> None:
    """A floating tensor on v's device. float32 and 16-bit types may be mixed, as under autocast; float64 may not."""
    _floating(where, t)
    if t.device != v.device:
        raise ArgumentValueError(f"{where}: expected device {v.device} like v, got {t.device}")
    if (t.dtype == torch.float64) != (v.dtype == torch.float64):
        raise ArgumentTypeError(f"{where}: expected dtype {v.dtype} like v, got {t.dtype}")


def _shape(where: str, t: Tensor, expected: tuple[int, ...]) -> None:
    if tuple(t.shape) != expected:
        raise ArgumentValueError(f"{where}: expected shape {list(expected)}, got {list(t.shape)}")


def _dtype(where: str, t: Tensor, expected: torch.dtype) -> None:
    if t.dtype != expected:
        raise ArgumentTypeError(f"{where}: expected dtype {expected}, got {t.dtype}")


def _weight(op: str, v: Tensor, g: Tensor, dim: int | None, eps: float) -> None:
    _floating(f"{op}: v", v)
    _beside_v(f"{op}: g", g, v)
    if dim is not None and not 0 <= dim < v.ndim:
        raise ArgumentValueError(f"{op}: dim: expected None or 0 to {v.ndim - 1} for a {v.ndim}-d weight, got {dim}")
    if tuple(g.shape) != gain_shape(tuple(v.shape), dim):
        raise ArgumentValueError(
            f"{op}: g: shape {list(g.shape)} does not fit v of shape {list(v.shape)} and dim={dim}"
        )
    if not 0 <= eps <= torch.finfo(opmath(v.dtype)).max:
        raise ArgumentValueError(f"{op}: eps: expected a finite {opmath(v.dtype)} number >= 0, got {eps}")


def _bias(op: str, bias: Tensor | None, v: Tensor, channels: int) -> None:
    if bias is not None:
        _beside_v(f"{op}: bias", bias, v)
        _shape(f"{op}: bias", bias, (channels,))


def _norms(op: str, norms: Tensor, v: Tensor, g: Tensor) -> None:
    _beside_v(f"{op}: norms", norms, v)
    _dtype(f"{op}: norms", norms, opmath(v.dtype))
    _shape(f"{op}: norms", norms, tuple(g.shape))


def _mask(op: str, mask: Sequence[bool], count: int) -> None:
    """Real calls convert the list to a fixed-size array; fakes get it as it is."""
    if len(mask) != count:
        raise ArgumentValueError(f"{op}: mask: expected {count} booleans, got {list(mask)}")


def _output_side(op: str, dy: Tensor, y: Tensor | None, x: Tensor, shape: tuple[int, ...]) -> None:
    """dy and, with a fused ReLU, the output y. Both have the shape of the forward's output and the dtype of x."""
    for name, t in (("dy", dy), *([("y", y)] if y is not None else [])):
        _beside_v(f"{op}: {name}", t, x)
        _dtype(f"{op}: {name}", t, x.dtype)
        _shape(f"{op}: {name}", t, shape)


def _linear_input(op: str, x: Tensor, v: Tensor) -> tuple[int, ...]:
    """The output's shape."""
    if v.ndim != 2:
        raise ArgumentValueError(f"{op}: v: expected 2 dimensions [out, in], got shape {list(v.shape)}")
    _beside_v(f"{op}: x", x, v)
    if x.ndim == 0 or x.shape[-1] != v.shape[1]:
        raise ArgumentValueError(
            f"{op}: x: expected last dimension {v.shape[1]} like v of shape {list(v.shape)}, got shape {list(x.shape)}"
        )
    return (*x.shape[:-1], v.shape[0])


def _sizes(where: str, values: Sequence[int], count: int, least: int) -> None:
    if len(values) != count:
        raise ArgumentValueError(f"{where}: expected {count} integers, got {list(values)}")
    if any(not least <= value <= MOST_SIZE for value in values):
        raise ArgumentValueError(f"{where}: expected integers from {least} to {MOST_SIZE}, got {list(values)}")


def _channels(op: str, x: Tensor, v: Tensor, transposed: bool, groups: int) -> None:
    if not 3 <= v.ndim <= 5 or v.numel() == 0:
        raise ArgumentValueError(f"{op}: v: expected 3 to 5 non-empty dimensions, got shape {list(v.shape)}")
    _beside_v(f"{op}: x", x, v)
    if x.ndim != v.ndim:
        raise ArgumentValueError(f"{op}: x: expected {v.ndim} dimensions like v, got shape {list(x.shape)}")
    if groups < 1 or v.shape[0] % groups:
        raise ArgumentValueError(f"{op}: groups: expected a divisor of v.shape[0] = {v.shape[0]}, got {groups}")
    channels = v.shape[0] if transposed else v.shape[1] * groups
    if x.shape[1] != channels:
        raise ArgumentValueError(
            f"{op}: x: expected {channels} channels for v of shape {list(v.shape)} and groups={groups}, "
            f"got shape {list(x.shape)}"
        )
    if any(size == 0 for size in x.shape[2:]):
        raise ArgumentValueError(f"{op}: x: expected non-empty spatial dimensions, got shape {list(x.shape)}")


def _geometry(
    op: str,
    x: Tensor,
    v: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> tuple[int, ...]:
    """The output's shape."""
    _channels(op, x, v, transposed, groups)
    n = v.ndim - 2
    _sizes(f"{op}: stride", stride, n, 1)
    _sizes(f"{op}: padding", padding, n, 0)
    _sizes(f"{op}: dilation", dilation, n, 1)
    _sizes(f"{op}: output_padding", output_padding, n, 0)
    shape = [x.shape[0], v.shape[1] * groups if transposed else v.shape[0]]
    for i in range(n):
        most = max(stride[i], dilation[i]) - 1 if transposed else 0
        if output_padding[i] > most:
            raise ArgumentValueError(
                f"{op}: output_padding: expected at most {most} in spatial dimension {i}, got {list(output_padding)}"
            )
        reach = dilation[i] * (v.shape[i + 2] - 1) + 1
        if transposed:
            size = (x.shape[i + 2] - 1) * stride[i] - 2 * padding[i] + reach + output_padding[i]
        else:
            size = (x.shape[i + 2] + 2 * padding[i] - reach) // stride[i] + 1
        if size < 1:
            raise ArgumentValueError(
                f"{op}: x: shape {list(x.shape)} leaves no output in spatial dimension {i} for v of shape "
                f"{list(v.shape)}, padding {list(padding)} and dilation {list(dilation)}"
            )
        shape.append(size)
    return tuple(shape)


def _check_weight_norm(v, g, dim, eps):
    _weight("wnfused::weight_norm", v, g, dim, eps)


def _check_weight_norm_backward(dw, v, g, norms, dim, eps, mask):
    op = "wnfused::weight_norm_backward"
    _weight(op, v, g, dim, eps)
    _beside_v(f"{op}: dw", dw, v)
    _shape(f"{op}: dw", dw, tuple(v.shape))
    _norms(op, norms, v, g)
    _mask(op, mask, 2)


def _check_linear(x, v, g, bias, dim, eps, relu):
    op = "wnfused::linear"
    _weight(op, v, g, dim, eps)
    _linear_input(op, x, v)
    _bias(op, bias, v, v.shape[0])


def _check_linear_backward(dy, x, v, g, norms, y, dim, eps, biased, mask):
    op = "wnfused::linear_backward"
    _weight(op, v, g, dim, eps)
    _norms(op, norms, v, g)
    _output_side(op, dy, y, x, _linear_input(op, x, v))
    _mask(op, mask, 4)


def _check_convolution(x, v, g, bias, stride, padding, dilation, transposed, output_padding, groups, dim, eps, relu):
    op = "wnfused::convolution"
    _weight(op, v, g, dim, eps)
    shape = _geometry(op, x, v, stride, padding, dilation, transposed, output_padding, groups)
    _bias(op, bias, v, shape[1])


def _check_convolution_backward(
    dy, x, v, g, norms, y, stride, padding, dilation, transposed, output_padding, groups, dim, eps, mask
):
    op = "wnfused::convolution_backward"
    _weight(op, v, g, dim, eps)
    _norms(op, norms, v, g)
    shape = _geometry(op, x, v, stride, padding, dilation, transposed, output_padding, groups)
    _output_side(op, dy, y, x, shape)
    _mask(op, mask, 4)


def _check_weights(
    op: str, v: Sequence[Tensor], g: Sequence[Tensor], dims: Sequence[int], eps: Sequence[float]
) -> None:
    if not v:
        raise ArgumentValueError(f"{op}: v: expected at least one weight, got an empty list")
    for name, values in (("g", g), ("dims", dims), ("eps", eps)):
        if len(values) != len(v):
            raise ArgumentValueError(f"{op}: {name}: expected {len(v)} like v, got {len(values)}")
    for i in range(len(v)):
        if _fits_others(v[i], g[i], dims[i], eps[i], v[0], g[0]):
            continue  # the checks below cost more time: they make texts
        _weight(f"{op}: weight {i}", v[i], g[i], None if dims[i] == -1 else dims[i], eps[i])
        for name, t, first in (("v", v[i], v[0]), ("g", g[i], g[0])):
            _dtype(f"{op}: weight {i}: {name}", t, first.dtype)
        if v[i].device != v[0].device:
            raise ArgumentValueError(
                f"{op}: weight {i}: v: expected device {v[0].device} like others, got {v[i].device}"
            )


def _fits_others(v: Tensor, g: Tensor, dim: int, eps: float, first_v: Tensor, first_g: Tensor) -> bool:
    """Whether a weight after the first, which was checked, has the most common form: one gain per first index."""
    return (
        v is not first_v
        and v.dtype == first_v.dtype
        and g.dtype == first_g.dtype
        and v.device == first_v.device == g.device
        and v.layout == g.layout == torch.strided
        and dim == 0 == eps
        and g.ndim == v.ndim > 0 < v.shape[0]
        and g.shape[0] == v.shape[0] == g.numel()
    )


def _check_model_weights(v, g, dims, eps, dtype):
    op = "wnfused::model_weights"
    _check_weights(op, v, g, dims, eps)
    if dtype not in FLOATS or (dtype == torch.float64) != (v[0].dtype == torch.float64):
        raise ArgumentTypeError(f"{op}: dtype: expected a floating dtype that fits v of {v[0].dtype}, got {dtype}")


def _check_model_weights_backward(dw, v, g, norms, dims, eps, want_v, want_g):
    op = "wnfused::model_weights_backward"
    _check_weights(op, v, g, dims, eps)
    for name, values in (("dw", dw), ("want_v", want_v), ("want_g", want_g)):
        if len(values) != len(v):
            raise ArgumentValueError(f"{op}: {name}: expected {len(v)} like v, got {len(values)}")
    for i, t in enumerate(dw):
        like_first = i > 0 and t.dtype == dw[0].dtype and t.layout == torch.strided
        if like_first and t.shape == v[i].shape and t.device == v[i].device:
            continue
        _beside_v(f"{op}: weight {i}: dw", t, v[i])
        _dtype(f"{op}: weight {i}: dw", t, dw[0].dtype)
        _shape(f"{op}: weight {i}: dw", t, tuple(v[i].shape))
    _beside_v(f"{op}: norms", norms, v[0])
    _dtype(f"{op}: norms", norms, opmath(v[0].dtype))
    _shape(f"{op}: norms", norms, (sum(t.numel() for t in g),))


CHECKS: dict[str, Callable[..., None]] = {
    "weight_norm": _check_weight_norm,
    "weight_norm_backward": _check_weight_norm_backward,
    "linear": _check_linear,
    "linear_backward": _check_linear_backward,
    "convolution": _check_convolution,
    "convolution_backward": _check_convolution_backward,
    "model_weights": _check_model_weights,
    "model_weights_backward": _check_model_weights_backward,
}
