"""The weight-normalized layers, their base class, and two whole-model contexts: frozen weights, all weights at once."""

from wnfused.nn.base import WeightNormalized
from wnfused.nn.frozen import frozen
from wnfused.nn.layers import (
    WNConv1d,
    WNConv2d,
    WNConv3d,
    WNConvTranspose1d,
    WNConvTranspose2d,
    WNConvTranspose3d,
    WNLinear,
)
from wnfused.nn.model_weights import model_weights
from wnfused.nn.warming import warm_up

__all__ = [
    "WNConv1d",
    "WNConv2d",
    "WNConv3d",
    "WNConvTranspose1d",
    "WNConvTranspose2d",
    "WNConvTranspose3d",
    "WNLinear",
    "WeightNormalized",
    "frozen",
    "model_weights",
    "warm_up",
]
