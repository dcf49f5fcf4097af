"""Canonical names of recorded operations, and which operations preserve the role of a layer's output."""

from typing import Any

from torch import Tensor

SUMS = ("add", "sub")
PRODUCTS = ("mul", "div")

_ALIASES = {
    "iadd": "add", "radd": "add", "isub": "sub", "rsub": "sub", "subtract": "sub",
    "imul": "mul", "rmul": "mul", "multiply": "mul",
    "truediv": "div", "itruediv": "div", "idiv": "div", "divide": "div", "true_divide": "div",
    "concat": "cat", "concatenate": "cat", "clip": "clamp",
}  # fmt: skip

# Linear operations, and those that commute with ReLU (max pooling): their input has the role of their output.
_PASSING = {
    "cat", "stack", "chunk", "split", "split_with_sizes", "tensor_split", "unbind", "getitem", "narrow", "select",
    "index_select", "flatten", "unflatten", "view", "view_as", "reshape", "reshape_as", "permute", "transpose", "t",
    "swapaxes", "swapdims", "movedim", "moveaxis", "squeeze", "unsqueeze", "expand", "expand_as", "repeat", "flip",
    "roll", "pad", "contiguous", "clone", "detach", "get", "to", "type", "type_as", "float", "double", "half",
    "bfloat16", "mean", "neg", "interpolate", "upsample", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle",
    "alpha_dropout", "feature_alpha_dropout", "feature_dropout", "filter",
}  # fmt: skip
_PASSING_PREFIXES = ("dropout", "avg_pool", "adaptive_avg_pool", "max_pool", "adaptive_max_pool")

_WEIGHTED_PREFIXES = ("conv", "linear", "bilinear", "wn_", "scaled_dot_product", "multi_head_attention")
_WEIGHTED = {"matmul", "rmatmul", "mm", "bmm", "addmm", "baddbmm", "einsum", "lstm", "gru", "rnn_tanh", "rnn_relu"}

NORMALIZATIONS = {
    "batch_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm", "local_response_norm", "normalize",
}  # fmt: skip


def passes(op: str) -> bool:
    return op in _PASSING or op.startswith(_PASSING_PREFIXES)


def weighted(op: str) -> bool:
    """Whether the operation counts as a layer when the lengths of two paths are compared."""
    return op in _WEIGHTED or op.startswith(_WEIGHTED_PREFIXES)


def canonical(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """One name for all spellings of an operation: ``relu`` for ``F.relu``, ``Tensor.relu_``, ``clamp(min=0)``, …"""
    name = getattr(func, "__name__", type(func).__name__).split(".")[0].strip("_")
    op = _ALIASES.get(name, name)
    numbers = [*args[1:], *(value for key, value in kwargs.items() if key not in ("inplace", "input"))]
    if op == "maximum":  # of a tensor and a zero
        return "relu" if any(_is_zero(value) for value in (*args, *kwargs.values())) else op
    if op == "clamp":
        bounds = (*args[1:], None, None)[:2]
        low, high = kwargs.get("min", bounds[0]), kwargs.get("max", bounds[1])
        return "relu" if _is_zero(low) and high is None else "clamp"
    if op in ("threshold", "clamp_min"):  # a ReLU only if the threshold is zero
        return "relu" if all(_is_zero(number) for number in numbers) else op
    if op == "hardtanh" and numbers == [0.0, 6.0]:
        return "relu6"
    return op


def is_filter(op: str, operands: list[Tensor], fixed: bool) -> bool:
    """Whether a convolution resamples each channel by a ``fixed`` filter, as BigVGAN does around its activations."""
    if not (op.startswith("conv") and fixed and len(operands) == 2):
        return False
    x, weight = operands
    return weight.ndim == x.ndim and weight.shape[:2] == (x.shape[1], 1)


def _is_zero(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.ndim == 0 and not value.is_meta and value.item() == 0
    return isinstance(value, (int, float)) and value == 0
