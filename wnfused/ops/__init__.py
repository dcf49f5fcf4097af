"""The ``torch.library`` operators: schema, fake, autograd and the choice of backend. Knows nothing of layers."""

import torch

from wnfused.ops import autograd, backends

__all__ = ["autograd", "backends", "convolution", "linear", "weight_norm"]

# The overloads themselves: looking one up by attribute on every call would cost more than a small layer's checks.
weight_norm = torch.ops.wnfused.weight_norm.default
linear = torch.ops.wnfused.linear.default
convolution = torch.ops.wnfused.convolution.default
