"""The ``torch.library`` operators: schema, fake, autograd and the choice of backend. They do not depend on layers."""

import torch

from wnfused.ops import autograd, backends, decompositions

__all__ = ["autograd", "backends", "convolution", "decompositions", "linear", "weight_norm"]

# Resolve the overloads once: an attribute lookup on every call would cost more than the checks of a small layer.
weight_norm = torch.ops.wnfused.weight_norm.default
linear = torch.ops.wnfused.linear.default
convolution = torch.ops.wnfused.convolution.default
