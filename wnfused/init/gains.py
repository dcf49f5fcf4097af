"""The gain that keeps a signal's norm: g = √(γ · fan_in / fan_out), and the fans of each kind of layer.

The derivation is for a gain per output row of the weight's matrix (one row for each output channel, one column for
each number it reads). A row of norm g has E[y²] = g² ‖x‖² / fan_in, so fan_out rows give γ ‖x‖². Where ``dim`` makes a
gain belong to something else than a row (the input channels of a transposed convolution by torch's default, a kernel
tap, the whole weight), the same overall scale is kept: the squared norm of the weight is the sum over its rows of g²,
and equally the sum over its slices, one for each gain, of the gain squared. One gain for all slices is therefore

    g · √(rows / slices),

which makes the mean squared row norm g². Along rows it is g itself; for the one norm of ``dim=None`` it is g · √rows;
for ``dim=0`` of a transposed convolution without groups, where rows / slices = c_out / c_in, it is √γ.
"""

import math
from numbers import Real
from typing import Any

from wnfused.init.layers import Layer

VARIANTS = ("forward", "backward")


def gain(fan_in: float, fan_out: float, gamma: float) -> float:
    """√(gamma · fan_in / fan_out): 2 for ``gamma`` before a ReLU, 1 otherwise, 1/B where B residual branches end."""
    for name, fan in (("fan_in", fan_in), ("fan_out", fan_out)):
        if not _is_number(fan) or not 0 < fan < math.inf:
            raise ValueError(f"gain: {name}: expected a finite number > 0, got {fan!r}")
    check_gamma("gain", "gamma", gamma)
    return math.sqrt(gamma * fan_in / fan_out)


def fans(layer: Layer) -> tuple[int, int]:
    """(taps · c_in / groups, taps · c_out / groups)."""
    return layer.taps * layer.inputs // layer.groups, layer.taps * layer.outputs // layer.groups


def gain_parameter(layer: Layer, gamma: float, variant: str) -> float:
    """What every element of the layer's gain is set to."""
    row_gain = gain(*fans(layer), gamma) if variant == "forward" else math.sqrt(gamma)
    return row_gain * math.sqrt(layer.outputs / layer.g.numel())


def check_gamma(where: str, name: str, gamma: Any) -> None:
    if not _is_number(gamma) or not 0 <= gamma < math.inf:
        raise ValueError(f"{where}: {name}: expected a finite number >= 0, got {gamma!r}")


def check_variant(where: str, variant: Any) -> None:
    if variant not in VARIANTS:
        raise ValueError(f"{where}: variant: expected one of {', '.join(map(repr, VARIANTS))}, got {variant!r}")


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)  # numpy's numbers too
