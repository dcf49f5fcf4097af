"""The ``torch.library`` operators: schema, fake, autograd and the choice of backend. Knows nothing of layers."""

import torch

from wnfused.ops import autograd, backends, native, torch_backend, triton  # noqa: F401 - autograd registers the operators

backends.register(
    backends.Backend("triton", why_not=triton.why_not, operators=triton.operators, volunteers=triton.volunteers)
)
backends.register(backends.Backend("native", why_not=native.why_not, operators=native.operators))
backends.register(backends.Backend("torch", why_not=lambda device: None, operators=lambda: torch_backend))
backends.select_from_environment()

# The overloads themselves: looking one up by attribute on every call would cost more than a small layer's checks.
weight_norm = torch.ops.wnfused.weight_norm.default
linear = torch.ops.wnfused.linear.default
convolution = torch.ops.wnfused.convolution.default
