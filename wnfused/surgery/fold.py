"""The ways back to ``torch.nn``: ``fold`` for deployment, ``to_torch`` to continue with torch's own weight norm.

Like ``convert``, they modify the layer objects, after checking every layer. A layer with a fused ReLU becomes
``nn.Sequential(plain, nn.ReLU())``, still the same object, so its hooks see the same values as before. Its parameters
are then named ``layer.0.weight`` and so on; the plain layer's attributes (``kernel_size``, …) stay readable on it.
Such a layer loses ``output_size``, the second argument of transposed convolutions, which a ``Sequential`` cannot pass.
"""

from torch import nn

from wnfused import checks
from wnfused.nn.base import SPELLINGS, WeightNormalized
from wnfused.nn.plain import fold_layer, folded_weight, without_norm
from wnfused.nn.subclasses import additions
from wnfused.surgery import norm_only, torch_norms
from wnfused.surgery.convert import LAYERS, Filter
from wnfused.surgery.own_removal import silence_own_removal
from wnfused.surgery.report import ConvertReport
from wnfused.surgery.torch_norms import TorchNorm

EXCLUDED = "excluded by the filter"


def fold(model: nn.Module, *, filter: Filter | None = None) -> ConvertReport:
    """Turn the weight-normalized layers of a model into plain layers, in place: wnfused's, and those of torch's norms.

    The new ``weight`` is a parameter with the dtype of the direction; it requires a gradient if gain or direction did.
    Create a new optimizer for it. wnfused layers that shared both gain and direction share the folded weight. torch's
    norms (both APIs) are folded on any module and parameter, recurrent layers included, unless they are combined with
    other parametrizations. A model without weight-normalized layers is left unchanged.

    A model's own ``remove_weight_norm()`` does nothing afterwards, instead of raising that there is no norm.
    """
    report = ConvertReport(action="folded")
    layers = _layers("fold", model, filter, report)
    theirs = _torch_layers(model, filter, report)
    folded: dict[tuple[int, int, int | None, float], nn.Parameter] = {}
    for layer in layers:  # all weights first: this is the part that can fail
        if _key(layer) not in folded:
            folded[_key(layer)] = folded_weight(layer)
    weights = [folded[_key(layer)] for layer in layers]
    for layer, weight in zip(layers, weights, strict=True):
        fold_layer(layer, weight)
    for module, norms in theirs:
        for norm in norms:
            torch_norms.fold(module, norm)
    if report:
        silence_own_removal(model)
    return report


def to_torch(model: nn.Module, *, api: str = "parametrizations", filter: Filter | None = None) -> ConvertReport:
    """Put the model's weight-normalized layers under torch's weight norm, in place.

    ``api`` is ``"parametrizations"`` (``torch.nn.utils.parametrizations.weight_norm``) or ``"hook"`` (the older
    ``torch.nn.utils.weight_norm``). The parameters stay the same objects. torch supports neither ``eps`` nor the norm
    of an empty weight: such layers raise before anything is changed. Note that torch returns NaN for rows of zeros.
    """
    if api not in SPELLINGS:
        raise ValueError(f"to_torch: api: expected one of {', '.join(map(repr, SPELLINGS))}, got {api!r}")
    report = ConvertReport()
    layers = _layers("to_torch", model, filter, report)
    for layer in layers:
        if layer.eps != 0 or layer.weight_v.numel() == 0:
            raise ValueError(f"to_torch: model: torch's weight norm cannot express {layer}; exclude it with filter=")
    for layer in layers:
        g, v, dim = layer.weight_g, layer.weight_v, layer.dim
        torch_norms.put_on(without_norm(layer), api, g, v, dim)
    for name, module in model.named_modules():
        if (filter is None or filter(name, module)) and norm_only.use_torch(module):
            report.converted.append(name)
    return report


def _layers(where: str, model: nn.Module, filter: Filter | None, report: ConvertReport) -> list[WeightNormalized]:
    checks.module(where, model)
    found = []
    for name, module in model.named_modules():
        if not isinstance(module, WeightNormalized):
            continue
        if filter is not None and not filter(name, module):
            report.skipped[name] = EXCLUDED
            continue
        kind = next(cls for cls in type(module).__mro__ if cls in LAYERS)
        combined = "user_class" in vars(type(module))  # convert made this class, and fold returns to the user's
        if not combined and (added := additions(type(module), kind)):
            raise TypeError(
                f"{where}: layer {name!r} is {type(module).__name__}, a subclass of {kind.__name__} with its own "
                f"{', '.join(added)}, which the torch.nn layer would lose; exclude it with filter="
            )
        if not {"weight_g", "weight_v"} <= module._parameters.keys():
            raise ValueError(f"{where}: layer {name!r}: its gain or direction is not a plain parameter (pruned?)")
        report.converted.append(name)
        found.append(module)
    return found


def _torch_layers(
    model: nn.Module, filter: Filter | None, report: ConvertReport
) -> list[tuple[nn.Module, list[TorchNorm]]]:
    """The modules under torch's own norms that can be folded."""
    found = []
    for name, module in model.named_modules():
        norms = torch_norms.norms_on(module)
        if not norms:
            continue
        if others := torch_norms.others_on(module):
            report.skipped[name] = f"weight norm is combined with {', '.join(others)}"
        elif filter is not None and not filter(name, module):
            report.skipped[name] = EXCLUDED
        else:
            report.converted.append(name)
            found.append((module, norms))
    return found


def _key(layer: WeightNormalized) -> tuple[int, int, int | None, float]:
    return id(layer.weight_g), id(layer.weight_v), layer.dim, layer.eps
