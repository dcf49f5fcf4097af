"""Initializations that need neither roles nor data, to compare with: He with g = 1, and torch's default."""

import math

import torch
from torch import Tensor, nn

from wnfused.init.directions import check_generator, normal, source
from wnfused.init.normalized import Layer, Values, layers_of, write
from wnfused.nn.base import gain_of


def he_(model: nn.Module, *, generator: torch.Generator | None = None) -> None:
    """v from N(0, 2/fan_in), g = 1, b = 0 in every weight-normalized layer: signals halve from ReLU to ReLU."""
    layers = layers_of("he_", model)
    check_generator("he_", generator)
    stds = [math.sqrt(2 / layer.matrix_shape[-1]) for layer in layers]
    write([(layer, Values(g=1.0, v=normal(layer, std, generator))) for layer, std in zip(layers, stds, strict=True)])


def torch_default_(model: nn.Module, *, generator: torch.Generator | None = None) -> None:
    """What a new layer under torch's weight norm has: torch's default weight and bias, g the norms of that weight."""
    layers = layers_of("torch_default_", model)
    check_generator("torch_default_", generator)
    write([(layer, _default(layer, generator)) for layer in layers])


def _default(layer: Layer, generator: torch.Generator | None) -> Values:
    # torch counts the fan-in along dimension 1, for transposed convolutions too, where that is the output's.
    bound = 1 / math.sqrt(layer.v[0].numel())
    v = _uniform(layer, layer.v, bound, generator).to(layer.v.dtype)
    bias = 0.0 if layer.bias is None else _uniform(layer, layer.bias, bound, generator)
    return Values(g=gain_of(v, layer.dim, layer.eps), v=v, bias=bias)


def _uniform(layer: Layer, like: Tensor, bound: float, generator: torch.Generator | None) -> Tensor:
    device, dtype = source(layer, generator)
    return torch.empty(like.shape, device=device, dtype=dtype).uniform_(-bound, bound, generator=generator)
