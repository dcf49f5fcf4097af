"""The γ that an activation requires of the layer before it, along a network and at the end of residual branches."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

Function = Callable[[Tensor], Tensor]

NAMES = {
    "relu", "leaky_relu", "prelu", "rrelu", "relu6", "elu", "celu", "selu", "gelu", "silu", "mish", "hardswish",
    "tanh", "sigmoid", "hardtanh", "hardsigmoid", "softplus", "softsign", "logsigmoid", "tanhshrink", "softshrink",
    "hardshrink", "clamp", "sin", "cos",
}  # fmt: skip

# A grid with the usual kinks (0, ±1, 6) among its points.
_Z = torch.linspace(-12, 12, 24_001, dtype=torch.float64)
_DENSITY = torch.exp(-_Z.square() / 2) / math.sqrt(2 * math.pi)


def activation_gamma(phi: Function) -> float:
    """γ = 1 / E[φ(z)²] for z ~ N(0, 1), which keeps the variance of pre-activations at 1 from layer to layer.

    If φ(cz) = c·φ(z) for c > 0 (ReLU, LeakyReLU), this holds at any variance and gives the paper's γ = 2 for ReLU.
    Other activations have a scale. With ELU and tanh the variance converges to a fixed value from any start. With
    GELU, SiLU and Mish a variance of 1 is preserved but unstable: docs/initialization.md has figures and advice on
    the first layer.

    The integral agrees with the closed forms: 2 for ReLU, 2 / (1 + a²) for LeakyReLU of slope a. Other values,
    rounded: ELU 1.55, GELU 2.35, SiLU 2.81, SELU 1, tanh 2.54, sigmoid 3.41.
    """
    mean_square = _mean(phi(_Z.clone()).square())
    return 1 / mean_square if mean_square > 0 else math.nan


@cache
def gamma_at_branch_end(phi: Function, blocks: int) -> float | None:
    """γ of the last layer in a branch that ends with φ, x + φ(layer(…)), in a stage of ``blocks`` blocks.

    The B branches together should add the mean square of the stage's input, as γ = 1/B does for branches that end
    with the layer itself. The output of a ReLU has a nonzero mean, however, and the means of B branches add up to B
    times one mean, not √B times. So γ solves

        B · Var[φ(√γ z)] + B² · E[φ(√γ z)]² = 1,

    which for ReLU is 2 / (B (1 - 1/π) + B²/π). With γ = 1/B or 2/B the signal grows like e^√B (6.6 and 19 times at 40
    blocks, measured); with this γ it ends near 1.5 at any depth. Returns None if no γ solves the equation: a sigmoid
    has a nonzero mean however small its input.
    """

    def sum_of_branches(gamma: float) -> float:
        y = phi(_Z * math.sqrt(gamma))
        square, mean = _mean(y.square()), _mean(y)
        return blocks * (square - mean**2) + (blocks * mean) ** 2

    low, high = 1e-12, activation_gamma(phi)
    if not math.isfinite(high) or sum_of_branches(low) >= 1:
        return None
    if sum_of_branches(high) <= 1:  # an activation that saturates
        return high
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if sum_of_branches(middle) < 1 else (low, middle)
    return high


def _mean(values: Tensor) -> float:
    return torch.trapezoid(values * _DENSITY, _Z).item()


@dataclass(frozen=True)
class Activation:
    """An activation with all arguments bound except the tensor, as the model called it."""

    phi: Function
    gamma: float


RELU = Activation(torch.relu, 2.0)
_KNOWN: dict[str, Activation] = {}  # integrals by the activation's name and arguments


@cache
def leaky(slope: float) -> Activation:
    return Activation(lambda z: F.leaky_relu(z, slope), 2 / (1 + slope**2))


def activation_of_call(op: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Activation | None:
    """The activation that ``func(*args, **kwargs)`` applies, or None if it is not a function of a single tensor."""
    if op not in NAMES:
        return None
    if op == "relu":
        return RELU
    rest = {name: value for name, value in kwargs.items() if name != "input"}
    others = [*args[1:], *rest.values()]
    if op == "prelu":  # one slope per channel: use their root mean square
        return leaky(others[0].detach().double().square().mean().sqrt().item())
    if any(isinstance(other, Tensor) for other in others):
        return None
    if op == "leaky_relu":
        return leaky(float(kwargs.get("negative_slope", args[1] if len(args) > 1 else 0.01)))
    key = f"{op} {others}"
    if key not in _KNOWN:

        def phi(z: Tensor) -> Tensor:
            return func(z.clone(), *args[1:], **rest)

        _KNOWN[key] = Activation(phi, activation_gamma(phi))
    return _KNOWN[key] if math.isfinite(_KNOWN[key].gamma) else None
