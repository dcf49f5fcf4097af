"""The ``torch.library`` operators: schema, fake, autograd and the choice of backend. They do not depend on layers."""

import torch

from wnfused.ops import autograd, autograd_lists, backends, decompositions

__all__ = [
    "autograd",
    "autograd_lists",
    "backends",
    "convolution",
    "decompositions",
    "linear",
    "model_weights",
    "weight_norm",
]

# Resolve the overloads once: an attribute lookup on every call would cost more than the checks of a small layer.
weight_norm = torch.ops.wnfused.weight_norm.default
linear = torch.ops.wnfused.linear.default
convolution = torch.ops.wnfused.convolution.default
model_weights = torch.ops.wnfused.model_weights.default
