"""What the operations of a recorded forward pass mean: their names, which ones a role looks through, activations' γ."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

SUMS = ("add", "sub")
PRODUCTS = ("mul", "div")

_ALIASES = {
    "iadd": "add", "radd": "add", "isub": "sub", "rsub": "sub", "subtract": "sub",
    "imul": "mul", "rmul": "mul", "multiply": "mul",
    "truediv": "div", "itruediv": "div", "idiv": "div", "divide": "div", "true_divide": "div",
    "concat": "cat", "concatenate": "cat", "threshold": "relu", "clamp_min": "relu", "clip": "clamp",
}  # fmt: skip

# Linear, or commuting with ReLU (max pooling): what goes in has the role of what comes out.
_PASSING = {
    "cat", "stack", "chunk", "split", "split_with_sizes", "tensor_split", "unbind", "getitem", "narrow", "select",
    "index_select", "flatten", "unflatten", "view", "view_as", "reshape", "reshape_as", "permute", "transpose", "t",
    "swapaxes", "swapdims", "movedim", "moveaxis", "squeeze", "unsqueeze", "expand", "expand_as", "repeat", "flip",
    "roll", "pad", "contiguous", "clone", "detach", "get", "to", "type", "type_as", "float", "double", "half",
    "bfloat16", "mean", "neg", "interpolate", "upsample", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle",
    "alpha_dropout", "feature_alpha_dropout", "feature_dropout",
}  # fmt: skip
_PASSING_PREFIXES = ("dropout", "avg_pool", "adaptive_avg_pool", "max_pool", "adaptive_max_pool")

_WEIGHTED_PREFIXES = ("conv", "linear", "bilinear", "wn_", "scaled_dot_product", "multi_head_attention")
_WEIGHTED = {"matmul", "rmatmul", "mm", "bmm", "addmm", "baddbmm", "einsum", "lstm", "gru", "rnn_tanh", "rnn_relu"}

NORMALIZATIONS = {
    "batch_norm",
    "layer_norm",
    "group_norm",
    "instance_norm",
    "rms_norm",
    "local_response_norm",
    "normalize",
}

ACTIVATIONS = {
    "relu", "leaky_relu", "prelu", "rrelu", "relu6", "elu", "celu", "selu", "gelu", "silu", "mish", "hardswish",
    "tanh", "sigmoid", "hardtanh", "hardsigmoid", "softplus", "softsign", "logsigmoid", "tanhshrink", "softshrink",
    "hardshrink", "clamp", "sin", "cos",
}  # fmt: skip


def passes(op: str) -> bool:
    return op in _PASSING or op.startswith(_PASSING_PREFIXES)


def weighted(op: str) -> bool:
    """Whether the operation counts as a layer when the lengths of two paths are compared."""
    return op in _WEIGHTED or op.startswith(_WEIGHTED_PREFIXES)


def canonical(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """One name for an operation's spellings: ``relu`` for ``F.relu``, ``Tensor.relu_``, ``clamp(min=0)`` and so on."""
    name = getattr(func, "__name__", type(func).__name__).split(".")[0].strip("_")
    op = _ALIASES.get(name, name)
    numbers = [*args[1:], *(value for key, value in kwargs.items() if key not in ("inplace", "input"))]
    if op == "clamp":
        bounds = (*args[1:], None, None)[:2]
        low, high = kwargs.get("min", bounds[0]), kwargs.get("max", bounds[1])
        return "relu" if _is_zero(low) and high is None else "clamp"
    if name in ("threshold", "clamp_min"):  # ReLUs only at zero
        return "relu" if all(_is_zero(number) for number in numbers) else name
    if op == "hardtanh" and numbers == [0.0, 6.0]:
        return "relu6"
    return op


def _is_zero(value: Any) -> bool:
    return isinstance(value, (int, float)) and value == 0


def activation_gamma(phi: Callable[[Tensor], Tensor]) -> float:
    """γ = 1 / E[φ(z)²] for z ~ N(0, 1): layers with it keep pre-activations of variance 1 from one to the next.

    For φ with φ(cz) = c·φ(z), c > 0 (ReLU and its leaky kin) that holds at any variance: the paper's γ = 2 for ReLU.
    The others have a scale: fed with a signal of mean square 1 instead of φ(z), the first layer's output has variance
    γ, and the layers after it come back to 1 (ELU, tanh) or drift slowly away from it (GELU, SiLU).

    Integrated numerically, on a grid that has the usual kinks (0, ±1, 6) among its points. Closed forms it agrees
    with: 2 for ReLU, 2 / (1 + a²) for LeakyReLU of slope a. Others, rounded: ELU 1.55, GELU 2.35, SiLU 2.81,
    SELU 1, tanh 2.54, sigmoid 3.41.
    """
    z = torch.linspace(-12, 12, 24_001, dtype=torch.float64)
    density = torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi)
    mean_square = torch.trapezoid(phi(z.clone()).square() * density, z).item()
    return 1 / mean_square if mean_square > 0 else math.nan


_GAMMAS: dict[str, float] = {}  # integrals by the activation's name and arguments


def gamma_of_call(op: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float | None:
    """γ of an activation as it was called, or None if the operation is not a function of one tensor."""
    if op not in ACTIVATIONS:
        return None
    if op == "relu":
        return 2.0
    others = [*args[1:], *(value for key, value in kwargs.items() if key != "input")]
    if op == "prelu":
        return 2 / (1 + others[0].detach().double().square().mean().item())
    if any(isinstance(other, Tensor) for other in others):
        return None
    if op == "leaky_relu":
        return 2 / (1 + float(kwargs.get("negative_slope", args[1] if len(args) > 1 else 0.01)) ** 2)
    key = f"{op} {others}"
    if key not in _GAMMAS:
        rest = {name: value for name, value in kwargs.items() if name != "input"}
        _GAMMAS[key] = activation_gamma(lambda z: func(z, *args[1:], **rest))
    return _GAMMAS[key] if math.isfinite(_GAMMAS[key]) else None
