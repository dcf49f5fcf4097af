"""wnfused's operator in place of torch's norm, on modules without a fused counterpart, such as ``nn.LSTM``.

The module, its parameters and torch's machinery stay: only the function that computes the weight is replaced. torch's
own gives NaN for a row of zeros, overflows at norms of 1e20, and its second derivative is wrong.
"""

from typing import Any

from torch import Tensor, nn
from torch.nn.utils.parametrizations import _WeightNorm
from torch.nn.utils.weight_norm import WeightNorm

from wnfused import functional
from wnfused.surgery import torch_norms
from wnfused.surgery.torch_norms import TorchNorm


class HookNorm(WeightNorm):
    """The hook of ``torch.nn.utils.weight_norm``."""

    def compute_weight(self, module: nn.Module) -> Any:
        g, v = getattr(module, self.name + "_g"), getattr(module, self.name + "_v")
        return _normalized(g, v, self.dim)


class ParametrizedNorm(_WeightNorm):
    """The parametrization of ``torch.nn.utils.parametrizations.weight_norm``."""

    def forward(self, weight_g: Tensor, weight_v: Tensor) -> Tensor:
        return _normalized(weight_g, weight_v, self.dim)


_OURS: dict[type, type] = {WeightNorm: HookNorm, _WeightNorm: ParametrizedNorm}
_THEIRS = {ours: theirs for theirs, ours in _OURS.items()}


def _normalized(g: Tensor, v: Tensor, dim: int) -> Tensor:
    return functional.weight_norm(v, g, TorchNorm("hook", "weight", dim).dim_for(v.ndim))


def use_operator(module: nn.Module) -> bool:
    """Use wnfused's operator for all norms of ``module``; returns whether any was torch's."""
    return _exchange(module, _OURS)


def use_torch(module: nn.Module) -> bool:
    """The reverse."""
    return _exchange(module, _THEIRS)


def _exchange(module: nn.Module, classes: dict[type, type]) -> bool:
    norms = [norm for norm in torch_norms.norm_objects(module) if type(norm) in classes]
    for norm in norms:
        norm.__class__ = classes[type(norm)]
    return bool(norms)
