"""What an activation asks of the gain before it: γ along a network, and at the end of residual branches."""

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
    """γ = 1 / E[φ(z)²] for z ~ N(0, 1): layers with it keep pre-activations of variance 1 from one to the next.

    For φ with φ(cz) = c·φ(z), c > 0 (ReLU and its leaky kin) that holds at any variance: the paper's γ = 2 for ReLU.
    The others have a scale. ELU and tanh come back to their own variance from any start. Behind GELU, SiLU and Mish
    the variance 1 is kept but not stable: docs/initialization.md has figures, and what to do for the first layer.

    Closed forms it agrees with: 2 for ReLU, 2 / (1 + a²) for LeakyReLU of slope a. Others, rounded: ELU 1.55,
    GELU 2.35, SiLU 2.81, SELU 1, tanh 2.54, sigmoid 3.41.
    """
    mean_square = _mean(phi(_Z.clone()).square())
    return 1 / mean_square if mean_square > 0 else math.nan


@cache
def gamma_at_branch_end(phi: Function, blocks: int) -> float | None:
    """γ of a stage's layers whose branches end with φ: x + φ(layer(…)), ``blocks`` times.

    B branches together shall add the mean square of what enters the stage, as γ = 1/B does where nothing follows the
    layer. What a ReLU gives has a mean, though, and B means add up to B times one, not to √B times: γ solves

        B · Var[φ(√γ z)] + B² · E[φ(√γ z)]² = 1,

    for ReLU 2 / (B (1 - 1/π) + B²/π). With 1/B or 2/B the signal grows like e^√B (measured at 40 blocks: 6.6 and 19),
    with this it ends near 1.5 at any depth. None where no γ does it: a sigmoid has a mean however small its input.
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
    """An activation as a model called it, all its arguments but the tensor bound."""

    phi: Function
    gamma: float


RELU = Activation(torch.relu, 2.0)
_KNOWN: dict[str, Activation] = {}  # integrals by the activation's name and arguments


@cache
def leaky(slope: float) -> Activation:
    return Activation(lambda z: F.leaky_relu(z, slope), 2 / (1 + slope**2))


def activation_of_call(op: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Activation | None:
    """The activation that ``func(*args, **kwargs)`` applies, or None if it is not a function of one tensor."""
    if op not in NAMES:
        return None
    if op == "relu":
        return RELU
    rest = {name: value for name, value in kwargs.items() if name != "input"}
    others = [*args[1:], *rest.values()]
    if op == "prelu":  # a slope for each channel: the one with their mean square
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
