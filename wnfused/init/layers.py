"""The weight-normalized layers of a model, as the schemes see them: wnfused's, and those under torch's two norms.

A scheme writes gain and direction, because torch's weight norms overwrite ``weight`` at the next forward. All values
are computed before the first one is written, so an error leaves the model unchanged.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.utils import parametrize
from torch.nn.utils.weight_norm import WeightNorm

from wnfused import checks
from wnfused.nn.base import WeightNormalized, gain_of
from wnfused.surgery import torch_norms


@dataclass(frozen=True)
class Layer:
    """One weight-normalized linear or convolution layer: its parameters, and its weight viewed as matrices."""

    name: str
    module: nn.Module
    g: nn.Parameter
    v: nn.Parameter
    dim: int | None
    eps: float

    @property
    def bias(self) -> nn.Parameter | None:
        return self.module._parameters.get("bias")

    @property
    def transposed(self) -> bool:
        return isinstance(self.module, _ConvTransposeNd)

    @property
    def groups(self) -> int:
        return self.module.groups if isinstance(self.module, _ConvNd) else 1

    @property
    def inputs(self) -> int:
        return self.v.shape[0] if self.transposed else self.v.shape[1] * self.groups

    @property
    def outputs(self) -> int:
        return self.v.shape[1] * self.groups if self.transposed else self.v.shape[0]

    @property
    def taps(self) -> int:
        return math.prod(self.v.shape[2:])

    @property
    def matrix_shape(self) -> tuple[int, int, int]:
        """(groups, rows, columns): one matrix per group, with a row per output and a column per input and tap."""
        return self.groups, self.outputs // self.groups, self.inputs // self.groups * self.taps

    @property
    def gain_per_output(self) -> bool:
        """Whether each output has its own gain."""
        return self.dim == (1 if self.transposed else 0) and self.g.numel() == self.outputs

    def from_matrices(self, matrices: Tensor) -> Tensor:
        """Convert [groups, rows, columns] to the weight's layout."""
        if not self.transposed:
            return matrices.reshape(self.v.shape)
        groups, rows, _ = self.matrix_shape
        split = matrices.reshape(groups, rows, self.inputs // groups, *self.v.shape[2:])
        return split.transpose(1, 2).reshape(self.v.shape)

    def to_matrices(self, weight: Tensor) -> Tensor:
        """Convert a weight to [groups, rows, columns]."""
        groups, rows, columns = self.matrix_shape
        if not self.transposed:
            return weight.reshape(groups, rows, columns)
        split = weight.reshape(groups, self.inputs // groups, rows, self.taps)
        return split.transpose(1, 2).reshape(groups, rows, columns)


@dataclass(frozen=True)
class Values:
    """The values that a scheme sets in a layer. A number fills the whole tensor; without a bias ``bias`` is ignored."""

    g: Tensor | float
    v: Tensor
    bias: Tensor | float = 0.0


def normalized_modules(model: nn.Module) -> dict[str, nn.Module]:
    """The weight-normalized linear and convolution layers by their names."""
    return {name: module for name, module in model.named_modules() if _is_layer(module)}


def find_layers(where: str, model: nn.Module) -> tuple[list[Layer], list[str]]:
    """All layers that can be initialized, and the names of the unsupported ones (e.g. LSTM)."""
    checks.module(where, model)
    left = [
        f"{name or '(the model itself)'} ({parametrize.type_before_parametrizations(module).__name__})"
        for name, module in model.named_modules()
        if torch_norms.norms_on(module) and not _is_layer(module)
    ]
    found = [_layer(f"{where}: layer {name!r}", name, module) for name, module in normalized_modules(model).items()]
    if not found:
        others = f"; unsupported layers: {', '.join(left)}" if left else ""
        raise ValueError(
            f"{where}: model: expected weight-normalized layers, found none in {type(model).__name__}{others}"
        )
    return found, left


def layers_of(where: str, model: nn.Module) -> list[Layer]:
    """All layers that can be initialized; a warning names the unsupported ones."""
    found, left = find_layers(where, model)
    if left:
        warnings.warn(f"{where}: unsupported layers were left unchanged: {', '.join(left)}", stacklevel=3)
    return found


def layer_of(where: str, module: nn.Module) -> Layer:
    """``module`` itself as a layer."""
    if not isinstance(module, nn.Module):
        raise TypeError(f"{where}: layer: expected a torch.nn.Module, got {type(module).__name__}")
    if not _is_layer(module):
        raise ValueError(f"{where}: layer: expected a weight-normalized linear or convolution layer, got {module}")
    return _layer(f"{where}: layer", "", module)


def listed(names: Sequence[str]) -> str:
    """The first five names, and how many more there are."""
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(map(repr, names[:5])) + more


def _is_layer(module: nn.Module) -> bool:
    if isinstance(module, WeightNormalized):
        return True
    return isinstance(module, nn.Linear | _ConvNd) and [norm.name for norm in torch_norms.norms_on(module)] == [
        "weight"
    ]


def _layer(where: str, name: str, module: nn.Module) -> Layer:
    g: nn.Parameter | None
    v: nn.Parameter | None
    if isinstance(module, WeightNormalized):
        g, v = module._parameters.get("weight_g"), module._parameters.get("weight_v")
        dim, eps = module.dim, module.eps
    else:
        (norm,) = torch_norms.norms_on(module)
        g, v = torch_norms.gain_and_direction(module, norm)
        dim, eps = None if v is None else norm.dim_for(v.ndim), 0.0
    if g is None or v is None:
        raise ValueError(f"{where}: gain and direction: expected parameters, got computed tensors (pruned?)")
    layer = Layer(name, module, g, v, dim, eps)
    for fan, size in (("fan_in", layer.inputs * layer.taps), ("fan_out", layer.outputs * layer.taps)):
        if size == 0:
            raise ValueError(f"{where}: {fan}: expected > 0, got 0 (weight of shape {tuple(v.shape)})")
    return layer


def write(plan: Sequence[tuple[Layer, Values]]) -> None:
    """Write the values into the parameters, in each parameter's dtype and on its device."""
    with torch.no_grad():
        for layer, values in plan:
            _fill(layer.g, values.g)
            _fill(layer.v, values.v)
            if layer.bias is not None:
                _fill(layer.bias, values.bias)
            _refresh(layer.module)


def write_weight(layer: Layer, weight: Tensor) -> None:
    """Set v to ``weight`` and g to its norms, so that the computed weight is this one; the bias stays."""
    with torch.no_grad():
        _fill(layer.v, weight)
        _fill(layer.g, gain_of(layer.v, layer.dim, layer.eps))
        _refresh(layer.module)


def _fill(parameter: nn.Parameter, value: Tensor | float) -> None:
    if isinstance(value, Tensor):
        parameter.copy_(value.reshape(parameter.shape))
    else:
        parameter.fill_(value)


def _refresh(module: nn.Module) -> None:
    """Recompute ``weight`` under torch's hook, which otherwise updates it only at the next forward."""
    for hook in module._forward_pre_hooks.values():
        if isinstance(hook, WeightNorm) and not isinstance(module, WeightNormalized):
            with torch.set_grad_enabled(getattr(module, hook.name).requires_grad):
                setattr(module, hook.name, hook.compute_weight(module))
