"""Activations that a model defines as modules, such as Snake and SnakeBeta, recognized by evaluating them.

A module is an activation if it is elementwise (each output depends on one input only) and not linear. It may have
parameters per channel. Its γ is computed from its values on a grid.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from wnfused.init.activations import Activation

_GRID = torch.linspace(-6, 6, 97, dtype=torch.float64)
_DENSITY = torch.exp(-_GRID.square() / 2) / math.sqrt(2 * math.pi)


def activation_of_module(module: nn.Module, example: Tensor) -> Activation | None:
    """The activation that ``module`` applies to a tensor like ``example``; None if it is something else."""
    if not example.is_floating_point() or example.numel() == 0:
        return None
    small = tuple(min(size, 4) if i != 1 else size for i, size in enumerate(example.shape))  # channels in full
    for shape in (small, tuple(example.shape)):
        try:
            return _probe(module, example, shape)
        except Exception:  # it needs the shape, or more arguments
            continue
    return None


def _probe(module: nn.Module, like: Tensor, shape: tuple[int, ...]) -> Activation | None:
    def call(x: Tensor) -> Any:
        return module(x.to(like.device, like.dtype))

    source = torch.Generator().manual_seed(0)
    x, other = (torch.randn(shape, generator=source) for _ in range(2))
    keep = torch.rand(shape, generator=source) < 0.5
    y = call(x)
    if not isinstance(y, Tensor) or y.shape != shape or not torch.equal(call(x), y):
        return None
    elementwise = torch.equal(call(torch.where(keep, x, other))[keep], y[keep])
    zero = call(torch.zeros(shape))
    linear = torch.allclose(call(2 * x) - zero, 2 * (y - zero), rtol=1e-3, atol=1e-5)
    if linear or not elementwise:
        return None
    values = torch.stack([call(torch.full(shape, z)).double().cpu() for z in _GRID.tolist()])  # [97, *shape]
    square, mean = (v.flatten(1).mean(1) for v in (values.square(), values))
    mean_square = torch.trapezoid(square * _DENSITY, _GRID).item()
    return Activation(_Table(mean), 1 / mean_square) if mean_square > 0 and math.isfinite(mean_square) else None


class _Table:
    """The mean of φ over channels, interpolated; beyond the grid it continues as a straight line."""

    def __init__(self, values: Tensor) -> None:
        self.values = values

    def __call__(self, z: Tensor) -> Tensor:
        step = (_GRID[1] - _GRID[0]).item()
        left = ((z - _GRID[0]) / step).floor().clamp(0, len(_GRID) - 2).long()
        weight = (z - _GRID[left]) / step
        return torch.lerp(self.values[left], self.values[left + 1], weight)
