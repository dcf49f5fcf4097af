"""Baselines that need neither roles nor data: He with g = 1, g = ‖v‖ (the paper's baseline) and torch's default."""

import math

import torch
from torch import Tensor, nn

from wnfused.init.directions import check_distribution, check_generator, draw, normal, source
from wnfused.init.layers import Layer, Values, layers_of, write
from wnfused.nn.base import gain_of


def he_(model: nn.Module, *, generator: torch.Generator | None = None) -> None:
    """v from N(0, 2/fan_in), g = 1, b = 0 in every weight-normalized layer: signals halve from ReLU to ReLU."""
    layers = layers_of("he_", model)
    check_generator("he_", generator)
    stds = [math.sqrt(2 / layer.matrix_shape[-1]) for layer in layers]
    write([(layer, Values(g=1.0, v=normal(layer, std, generator))) for layer, std in zip(layers, stds, strict=True)])


def norm_gain_(model: nn.Module, directions: str = "orthogonal", *, generator: torch.Generator | None = None) -> None:
    """What the paper calls PyTorch's default: orthogonal or He weights, b = 0, and g = ‖v‖ so that w = v.

    ``directions="he"`` draws v from N(0, 2/fan_in). The authors never train torch's own uniform weights, which are
    about 1/√6 of He's scale and behave very differently: those are ``torch_default_``.
    """
    layers = layers_of("norm_gain_", model)
    check_distribution("norm_gain_", directions, argument="directions")
    check_generator("norm_gain_", generator)
    write([(layer, _norm_gain(layer, directions, generator)) for layer in layers])


def _norm_gain(layer: Layer, directions: str, generator: torch.Generator | None) -> Values:
    if directions == "he":
        v = normal(layer, math.sqrt(2 / layer.matrix_shape[-1]), generator)
    else:
        v = draw(layer, "orthogonal", generator)
    v = v.to(layer.v.dtype)
    return Values(g=gain_of(v, layer.dim, layer.eps), v=v)


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
