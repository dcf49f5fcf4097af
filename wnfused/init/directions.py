"""Random directions v. Their scale does not matter to the weight (it is normalized away), only to v's learning rate."""

import math
from typing import Any

import torch
from torch import Tensor

from wnfused.init.layers import Layer

DISTRIBUTIONS = ("orthogonal", "he")


def check_distribution(where: str, distribution: Any, argument: str = "distribution") -> None:
    if distribution not in DISTRIBUTIONS:
        options = ", ".join(map(repr, DISTRIBUTIONS))
        raise ValueError(f"{where}: {argument}: expected one of {options}, got {distribution!r}")


def check_generator(where: str, generator: Any) -> None:
    if generator is not None and not isinstance(generator, torch.Generator):
        raise TypeError(f"{where}: generator: expected a torch.Generator or None, got {type(generator).__name__}")


def draw(layer: Layer, distribution: str, generator: torch.Generator | None) -> Tensor:
    """A direction for the layer: orthogonal rows, or independent numbers from N(0, 1/fan_in)."""
    if distribution == "orthogonal":
        return layer.from_matrices(orthogonal(layer, generator))
    return normal(layer, 1 / math.sqrt(layer.matrix_shape[-1]), generator)


def orthogonal(layer: Layer, generator: torch.Generator | None) -> Tensor:
    """[groups, rows, columns] with orthonormal rows; columns, where there are more rows than columns.

    Each group is a matrix of its own. For one group this is ``torch.nn.init.orthogonal_``, number by number.
    """
    gaussian = _normal(layer, layer.matrix_shape, generator)
    _, rows, columns = layer.matrix_shape
    tall = gaussian.mT if rows < columns else gaussian
    q, r = torch.linalg.qr(tall)
    # Without fixing the signs of r's diagonal q would not be uniform among orthogonal matrices.
    q = q * r.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
    return q.mT if rows < columns else q


def normal(layer: Layer, std: float, generator: torch.Generator | None) -> Tensor:
    return _normal(layer, tuple(layer.v.shape), generator).mul_(std)


def _normal(layer: Layer, shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
    device, dtype = source(layer, generator)
    return torch.empty(shape, device=device, dtype=dtype).normal_(generator=generator)


def source(layer: Layer, generator: torch.Generator | None) -> tuple[torch.device, torch.dtype]:
    """Where and in what numbers are drawn: on the generator's device, and wide enough for a decomposition."""
    dtype = layer.v.dtype if layer.v.dtype == torch.float64 else torch.float32
    return (layer.v.device if generator is None else generator.device), dtype
