"""One layer of a network with weight norm, batch norm or no normalization, and optionally a ReLU.

With weight norm the ReLU is fused into the layer. The other two are ``nn.Sequential(layer, …, nn.ReLU())``.
``wnfused.fold`` produces the same layout from a fused layer, so a folded network matches one with ``norm="none"``.
"""

from typing import Any, Literal

from torch import nn

from wnfused.nn.layers import WNConv2d, WNLinear

Norm = Literal["weight", "batch", "none"]
NORMS = ("weight", "batch", "none")


def check_norm(where: str, norm: Any) -> None:
    if norm not in NORMS:
        raise ValueError(f"{where}: norm: expected one of {', '.join(map(repr, NORMS))}, got {norm!r}")


def linear(norm: Norm, inputs: int, outputs: int, *, relu: bool = False) -> nn.Module:
    if norm == "weight":
        return WNLinear(inputs, outputs, activation="relu" if relu else None)
    if norm == "batch":
        return _followed_by(nn.Linear(inputs, outputs, bias=False), nn.BatchNorm1d(outputs), relu)
    return _followed_by(nn.Linear(inputs, outputs), None, relu)


def conv(norm: Norm, inputs: int, outputs: int, size: int, *, stride: int = 1, relu: bool = False) -> nn.Module:
    """A ``size`` × ``size`` convolution, padded so that only ``stride`` changes the resolution."""
    padding = size // 2
    if norm == "weight":
        return WNConv2d(inputs, outputs, size, stride, padding, activation="relu" if relu else None)
    if norm == "batch":  # no bias: batch norm has a shift
        plain = nn.Conv2d(inputs, outputs, size, stride, padding, bias=False)
        return _followed_by(plain, nn.BatchNorm2d(outputs), relu)
    return _followed_by(nn.Conv2d(inputs, outputs, size, stride, padding), None, relu)


def _followed_by(layer: nn.Module, batch_norm: nn.Module | None, relu: bool) -> nn.Module:
    steps = [layer] + ([batch_norm] if batch_norm is not None else []) + ([nn.ReLU()] if relu else [])
    return nn.Sequential(*steps) if len(steps) > 1 else layer
