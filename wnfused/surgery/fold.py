"""The ways back to ``torch.nn``: ``fold`` for deployment, ``to_torch`` to continue with torch's own weight norm.

Like ``convert``, they modify the layer objects, after checking every layer. A layer with a fused ReLU becomes
``nn.Sequential(plain, nn.ReLU())``, still the same object, so its hooks see the same values as before. Its parameters
are then named ``layer.0.weight`` and so on; the plain layer's attributes (``kernel_size``, …) stay readable on it.
Such a layer loses ``output_size``, the second argument of transposed convolutions, which a ``Sequential`` cannot pass.
"""

from torch import Tensor, nn

from wnfused import checks, functional
from wnfused.nn.base import SPELLINGS, WeightNormalized
from wnfused.surgery import torch_norms
from wnfused.surgery.convert import LAYERS, Filter, additions

_OURS = ("activation", "dim", "eps", "_frozen")


def fold(model: nn.Module, *, filter: Filter | None = None) -> int:
    """Turn the weight-normalized layers of a model into plain ``torch.nn`` layers, in place; returns their number.

    The new ``weight`` is a parameter with the dtype of ``weight_v``; it requires a gradient if gain or direction did.
    Create a new optimizer for it. Layers that shared both gain and direction share the folded weight.
    A model without weight-normalized layers is left unchanged, and the result is 0.
    """
    layers = _layers("fold", model, filter)
    folded: dict[tuple[int, int, int | None, float], nn.Parameter] = {}
    for layer in layers:  # all weights first: this is the part that can fail
        if _key(layer) not in folded:
            folded[_key(layer)] = _folded(layer)
    weights = [folded[_key(layer)] for layer in layers]
    for layer, weight in zip(layers, weights, strict=True):
        bare = _bare(layer)
        bare._parameters = {"weight": weight, **bare._parameters}  # before the bias, as in a plain layer
    return len(layers)


def to_torch(model: nn.Module, *, api: str = "parametrizations", filter: Filter | None = None) -> int:
    """Put the model's weight-normalized layers under torch's weight norm, in place; returns their number.

    ``api`` is ``"parametrizations"`` (``torch.nn.utils.parametrizations.weight_norm``) or ``"hook"`` (the older
    ``torch.nn.utils.weight_norm``). The parameters stay the same objects. torch supports neither ``eps`` nor the norm
    of an empty weight: such layers raise before anything is changed. Note that torch returns NaN for rows of zeros.
    """
    if api not in SPELLINGS:
        raise ValueError(f"to_torch: api: expected one of {', '.join(map(repr, SPELLINGS))}, got {api!r}")
    layers = _layers("to_torch", model, filter)
    for layer in layers:
        if layer.eps != 0 or layer.weight_v.numel() == 0:
            raise ValueError(f"to_torch: model: torch's weight norm cannot express {layer}; exclude it with filter=")
    for layer in layers:
        g, v, dim = layer.weight_g, layer.weight_v, layer.dim
        torch_norms.put_on(_bare(layer), api, g, v, dim)
    return len(layers)


def _layers(where: str, model: nn.Module, filter: Filter | None) -> list[WeightNormalized]:
    checks.module(where, model)
    found = []
    for name, module in model.named_modules():
        if not isinstance(module, WeightNormalized) or not (filter is None or filter(name, module)):
            continue
        kind = next(cls for cls in type(module).__mro__ if cls in LAYERS)
        if added := additions(type(module), kind):
            raise TypeError(
                f"{where}: layer {name!r} is {type(module).__name__}, a subclass of {kind.__name__} with its own "
                f"{', '.join(added)}, which the torch.nn layer would lose; exclude it with filter="
            )
        if not {"weight_g", "weight_v"} <= module._parameters.keys():
            raise ValueError(f"{where}: layer {name!r}: its gain or direction is not a plain parameter (pruned?)")
        found.append(module)
    return found


def _key(layer: WeightNormalized) -> tuple[int, int, int | None, float]:
    return id(layer.weight_g), id(layer.weight_v), layer.dim, layer.eps


def _folded(layer: WeightNormalized) -> nn.Parameter:
    g, v = layer.weight_g, layer.weight_v
    weight: Tensor = functional.weight_norm(v.detach(), g.detach(), layer.dim, layer.eps)
    return nn.Parameter(weight, requires_grad=v.requires_grad or g.requires_grad)


def _bare(layer: WeightNormalized) -> nn.Module:
    """Turn ``layer`` into its torch.nn twin, still without a weight; returns the module that needs one."""
    twin, relu = layer.twin, layer.activation == "relu"
    for name in _OURS:
        layer.__dict__.pop(name, None)
    del layer._parameters["weight_g"], layer._parameters["weight_v"]
    layer.__class__ = twin  # type: ignore[assignment]
    return _in_sequential(layer, twin) if relu else layer


def _in_sequential(module: nn.Module, twin: type[nn.Module]) -> nn.Module:
    """Turn the object into a Sequential and move the layer into a new object at its position 0."""
    inner = twin.__new__(twin)
    nn.Module.__init__(inner)
    inner.__dict__.update({key: value for key, value in module.__dict__.items() if key not in inner.__dict__})
    inner._parameters, module._parameters = module._parameters, {}
    inner._modules, module._modules = module._modules, {}
    module.__class__ = nn.Sequential
    module.append(inner)  # type: ignore[operator]
    module.append(nn.ReLU())  # type: ignore[operator]
    module.train(module.training)
    return inner
