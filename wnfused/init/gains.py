"""The gain that keeps a signal's norm: g = √(γ · fan_in / fan_out), and the fans of each kind of layer.

The derivation assumes one gain per row of the weight matrix (one row per output channel, one column per input it
reads). A row of norm g has E[y²] = g² ‖x‖² / fan_in, so fan_out rows give γ ‖x‖². For other values of ``dim`` a gain
belongs to a different slice of the weight: an input channel (torch's default for transposed convolutions), a kernel tap
or the whole weight. Then the overall scale is kept. The squared norm of the weight is the sum of g² over its rows, and
also the sum of the squared gains over its slices. If all slices have the same gain, that gain is

    g · √(rows / slices),

which makes the mean squared row norm g². It equals g if the slices are rows, g · √rows for the single norm of
``dim=None``, and √γ for ``dim=0`` of a transposed convolution without groups, where rows / slices = c_out / c_in.
"""

import math
from typing import Any

from wnfused.checks import is_number
from wnfused.init.layers import Layer

VARIANTS = ("forward", "backward")


def gain(fan_in: float, fan_out: float, gamma: float) -> float:
    """√(gamma · fan_in / fan_out). ``gamma`` is 2 before a ReLU, 1/B at the end of B residual branches, 1 otherwise."""
    for name, fan in (("fan_in", fan_in), ("fan_out", fan_out)):
        if not is_number(fan) or not 0 < fan < math.inf:
            raise ValueError(f"gain: {name}: expected a finite number > 0, got {fan!r}")
    check_gamma("gain", "gamma", gamma)
    return math.sqrt(gamma * fan_in / fan_out)


def fans(layer: Layer) -> tuple[int, int]:
    """(taps · c_in / groups, taps · c_out / groups)."""
    return layer.taps * layer.inputs // layer.groups, layer.taps * layer.outputs // layer.groups


def gain_parameter(layer: Layer, gamma: float, variant: str) -> float:
    """The value of every element of the layer's gain."""
    row_gain = gain(*fans(layer), gamma) if variant == "forward" else math.sqrt(gamma)
    return row_gain * math.sqrt(layer.outputs / layer.g.numel())


def check_gamma(where: str, name: str, gamma: Any) -> None:
    if not is_number(gamma) or not 0 <= gamma < math.inf:
        raise ValueError(f"{where}: {name}: expected a finite number >= 0, got {gamma!r}")


def check_variant(where: str, variant: Any) -> None:
    if variant not in VARIANTS:
        raise ValueError(f"{where}: variant: expected one of {', '.join(map(repr, VARIANTS))}, got {variant!r}")
