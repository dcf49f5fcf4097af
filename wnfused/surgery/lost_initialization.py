"""Finds initializations that had no effect, as in HiFi-GAN and its descendants for years.

``init_weights(m)`` there writes N(0, 0.01²) into ``m.weight.data`` of layers that are already under weight norm, where
``weight`` is computed from gain and direction: the layers keep torch's default. Such a function is recognized by trying
it: it changes a plain layer, but not the weight-normalized one, and the layer still has torch's default weights.
"""

import inspect
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from wnfused.nn.base import WeightNormalized, gain_of
from wnfused.surgery import torch_norms
from wnfused.unchanged import unchanged

NAMES = ("init_weights", "_init_weights", "weights_init", "init_weight", "initialize_weights")
_DIFFERENT = 1.25  # ratio of the weights' scales, above their sampling error


def lost_initializations(model: nn.Module) -> list[str]:
    """One sentence for each initialization function of the model's code that did not reach its layers."""
    layers = {name: module for name, module in model.named_modules() if _has_default_weight(module)}
    notes = []
    for label, function, within in _functions(model) if layers else ():
        concerned = {id(m) for part in within for m in part.modules()}
        lost = [name for name, module in layers.items() if id(module) in concerned and _is_lost(function, module)]
        if lost:
            first = f"{lost[0] or 'the model itself'}{f' and {len(lost) - 1} more' if len(lost) > 1 else ''}"
            notes.append(
                f"{label} writes into the computed weight, which is lost: {first} still have torch's default "
                "initialization; call wnfused.init.normal_ (uniform_, …) on the layer instead"
            )
    return notes


def _gain_and_direction(module: nn.Module) -> tuple[Tensor | None, Tensor | None, int | None]:
    if isinstance(module, WeightNormalized):
        return module._parameters.get("weight_g"), module._parameters.get("weight_v"), module.dim
    norms = torch_norms.norms_on(module)
    if [norm.name for norm in norms] != ["weight"] or not isinstance(module, nn.Linear | nn.modules.conv._ConvNd):
        return None, None, None
    g, v = torch_norms.gain_and_direction(module, norms[0])
    return g, v, None if v is None else norms[0].dim_for(v.ndim)


def _has_default_weight(module: nn.Module) -> bool:
    """Whether v has the distribution of a new torch.nn layer, U(-b, b) with b = 1/√fan_in, and g its norms."""
    g, v, dim = _gain_and_direction(module)
    if g is None or v is None or v.is_meta or v.numel() < 64 or getattr(module, "eps", 0.0) != 0:
        return False
    v = v.detach().float()
    bound = v[0].numel() ** -0.5
    largest, scale = v.abs().max().item(), v.square().mean().sqrt().item()
    uniform = 0.9 * bound < largest <= bound * (1 + 1e-4) and 0.8 < scale * 3**0.5 / bound < 1.2
    return uniform and torch.allclose(g.detach().float(), gain_of(v, dim), rtol=1e-3)


def _functions(model: nn.Module) -> Iterator[tuple[str, Callable[[nn.Module], Any], list[nn.Module]]]:
    """The model's own functions that initialize one module, and the parts of the model whose layers they are for.

    These are methods, and functions visible where the model's classes are. A function that classes of its file call is
    for the layers of those classes: HiFi-GAN's generator calls ``init_weights``, its discriminators do not.
    """
    seen: set[Any] = set()
    for module in model.modules():
        kind = type(module)
        if kind.__module__.startswith(("torch.", "wnfused.")):
            continue
        source = sys.modules.get(kind.__module__)
        for name in NAMES:
            method, function = getattr(module, name, None), getattr(source, name, None)
            for label, found in ((f"{kind.__name__}.{name}", method), (f"{kind.__module__}.{name}", function)):
                key = getattr(found, "__func__", found)
                if callable(found) and key not in seen and _takes_one_module(found):
                    seen.add(key)
                    yield label, found, [model] if found is method else _callers(model, source, name)


def _callers(model: nn.Module, source: Any, name: str) -> list[nn.Module]:
    """The parts of the model whose classes mention the function; the whole model if no class of its file does."""
    kinds = [kind for kind in vars(source).values() if inspect.isclass(kind) and _mentions(kind, name)]
    return [m for m in model.modules() if isinstance(m, tuple(kinds))] if kinds else [model]


def _mentions(kind: type, name: str) -> bool:
    """Whether a method of the class, or a function inside one, uses this global name."""
    codes = [method.__code__ for method in vars(kind).values() if inspect.isfunction(method)]
    for code in codes:
        if name in code.co_names:
            return True
        codes += [constant for constant in code.co_consts if inspect.iscode(constant)]
    return False


def _takes_one_module(function: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    required = [
        p for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    keywords = [p for p in parameters if p.default is p.empty and p.kind is p.KEYWORD_ONLY]
    return len(required) == 1 and not keywords


def _is_lost(function: Callable[[nn.Module], Any], module: nn.Module) -> bool:
    """Whether the function gives a plain layer weights of another scale, and leaves this layer's parameters alone."""
    with unchanged(module), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = _plain_twin(module)
        try:
            before = plain.weight.square().mean().sqrt()
            function(plain)
            ratio = (plain.weight.square().mean().sqrt() / before).item()
        except Exception:  # a function for other modules, or one that needs more than a layer
            return False
        if 1 / _DIFFERENT < ratio < _DIFFERENT:
            return False
        parameters = list(module.parameters())
        values = [p.clone() for p in parameters]
        try:
            function(module)
            changed = any(not torch.equal(p, value) for p, value in zip(parameters, values, strict=True))
        except Exception:
            changed = True
        for parameter, value in zip(parameters, values, strict=True):
            parameter.copy_(value)
    return not changed


def _plain_twin(module: nn.Module) -> Any:
    """A new plain layer of the same geometry, on the CPU."""
    if isinstance(module, nn.Linear):
        return nn.Linear(module.in_features, module.out_features)
    assert isinstance(module, nn.modules.conv._ConvNd)
    kind = next(cls for cls in type(module).__mro__ if cls.__module__ == "torch.nn.modules.conv")
    return kind(module.in_channels, module.out_channels, module.kernel_size, groups=module.groups)
