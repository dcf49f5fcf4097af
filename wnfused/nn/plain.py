"""From a weight-normalized layer back to a plain one, in the same object: what ``fold`` and torch's removals do."""

from typing import TYPE_CHECKING

from torch import Tensor, nn

from wnfused import functional
from wnfused.nn.torch_hooks import unmark

if TYPE_CHECKING:
    from wnfused.nn.base import WeightNormalized

_OURS = ("activation", "dim", "eps", "_frozen", "_written")


def folded_weight(layer: "WeightNormalized") -> nn.Parameter:
    g, v = layer.weight_g, layer.weight_v
    weight: Tensor = functional.weight_norm(v.detach(), g.detach(), layer.dim, layer.eps)
    return nn.Parameter(weight, requires_grad=v.requires_grad or g.requires_grad)


def fold_layer(layer: "WeightNormalized", weight: nn.Parameter) -> None:
    """Turn ``layer`` into its plain class with this weight."""
    bare = without_norm(layer)
    bare._parameters = {"weight": weight, **bare._parameters}  # before the bias, as in a plain layer


def without_norm(layer: "WeightNormalized") -> nn.Module:
    """Turn ``layer`` into its plain class, still without a weight; returns the module that needs one."""
    kind, relu = layer.plain_class(), layer.activation == "relu"
    for name in _OURS:
        layer.__dict__.pop(name, None)
    del layer._parameters["weight_g"], layer._parameters["weight_v"]
    unmark(layer)
    layer.__class__ = kind  # type: ignore[assignment]
    return _in_sequential(layer, kind) if relu else layer


def _in_sequential(module: nn.Module, kind: type[nn.Module]) -> nn.Module:
    """Turn the object into a Sequential and move the layer into a new object at its position 0."""
    inner = kind.__new__(kind)
    nn.Module.__init__(inner)
    inner.__dict__.update({key: value for key, value in module.__dict__.items() if key not in inner.__dict__})
    inner._parameters, module._parameters = module._parameters, {}
    inner._modules, module._modules = module._modules, {}
    module.__class__ = nn.Sequential
    module.append(inner)  # type: ignore[operator]
    module.append(nn.ReLU())  # type: ignore[operator]
    module.train(module.training)
    return inner
