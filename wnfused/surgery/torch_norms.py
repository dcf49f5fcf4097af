"""torch's own weight norms on a module: how to find, remove and restore them.

``torch.nn.utils.weight_norm`` ("hook") keeps ``weight_g`` and ``weight_v`` on the module and writes its ``weight`` in a
forward pre-hook. ``torch.nn.utils.parametrizations.weight_norm`` ("parametrizations") keeps them as ``original0`` and
``original1`` of ``module.parametrizations.weight`` and gives the module a class of its own with a ``weight`` property.
"""

from dataclasses import dataclass
from typing import Any, cast

from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune
from torch.nn.utils.parametrizations import _WeightNorm
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm, remove_weight_norm

from wnfused.nn.torch_hooks import FusedNorm


@dataclass(frozen=True)
class TorchNorm:
    """One of torch's weight norms on a module: its API, the parameter, torch's ``dim`` (-1: over all elements)."""

    api: str
    name: str
    dim: int

    def dim_for(self, ndim: int) -> int | None:
        """``dim`` in wnfused's convention. torch reads -1 as None and counts other negative numbers from the end."""
        if self.dim == -1:
            return None
        return self.dim + ndim if self.dim < 0 else self.dim


def norms_on(module: nn.Module) -> list[TorchNorm]:
    found = [
        TorchNorm("hook", hook.name, hook.dim)
        for hook in module._forward_pre_hooks.values()
        if isinstance(hook, WeightNorm) and not isinstance(hook, FusedNorm)
    ]
    for name, steps in _parametrizations(module).items():
        found += [TorchNorm("parametrizations", name, step.dim) for step in steps if isinstance(step, _WeightNorm)]
    return found


def norm_objects(module: nn.Module) -> list[Any]:
    """torch's objects that compute the normalized tensors: hooks and steps of parametrizations."""
    hooks = [
        h for h in module._forward_pre_hooks.values() if isinstance(h, WeightNorm) and not isinstance(h, FusedNorm)
    ]
    steps = [step for list_ in _parametrizations(module).values() for step in list_]
    return hooks + [step for step in steps if isinstance(step, _WeightNorm)]


def others_on(module: nn.Module) -> list[str]:
    """Names of other reparametrizations of the module: spectral norm, pruning, parametrizations of any kind."""
    hooks = [
        type(hook).__name__
        for hook in module._forward_pre_hooks.values()
        if isinstance(hook, (SpectralNorm, prune.BasePruningMethod))
    ]
    steps = [step for list_ in _parametrizations(module).values() for step in list_]
    return hooks + [type(step).__name__ for step in steps if not isinstance(step, _WeightNorm)]


def gain_and_direction(module: nn.Module, norm: TorchNorm) -> tuple[nn.Parameter | None, nn.Parameter | None]:
    """The norm's g and v; None where something other than a parameter has replaced them."""
    if norm.api == "hook":
        return module._parameters.get(f"{norm.name}_g"), module._parameters.get(f"{norm.name}_v")
    originals = _parametrizations(module)[norm.name]._parameters
    return originals.get("original0"), originals.get("original1")


def _parametrizations(module: nn.Module) -> dict[str, Any]:
    own = module._modules.get("parametrizations")  # wnfused's layers only show theirs as an attribute
    return dict(own) if isinstance(own, nn.ModuleDict) else {}


def take_off(module: nn.Module, norm: TorchNorm) -> None:
    """Remove the norm from ``module`` and leave it without a ``weight``; the caller keeps g and v."""
    if norm.api == "hook":
        module.__dict__.pop("weight", None)
        for key, hook in list(module._forward_pre_hooks.items()):
            if isinstance(hook, WeightNorm):
                del module._forward_pre_hooks[key]
                module._forward_pre_hooks_with_kwargs.pop(key, None)
    else:
        module.__class__ = parametrize.type_before_parametrizations(module)
        del module._modules["parametrizations"]
    drop_renaming_hooks(module)


def fold(module: nn.Module, norm: TorchNorm) -> None:
    """Replace the norm by the parameter that it computes, with torch's own functions; any module, any parameter."""
    g, v = gain_and_direction(module, norm)
    trained = any(p is None or p.requires_grad for p in (g, v))
    if norm.api == "hook":
        remove_weight_norm(module, norm.name)
    else:
        parametrize.remove_parametrizations(module, norm.name)
        drop_renaming_hooks(module)
    weight = module._buffers.pop(norm.name, None)  # torch makes a weight that requires no gradient a buffer
    if weight is not None:
        module.register_parameter(norm.name, nn.Parameter(weight, requires_grad=False))
    cast(nn.Parameter, module._parameters[norm.name]).requires_grad_(trained)
    if norm.name == "weight":  # before the bias, as in a plain layer
        module._parameters = {norm.name: module._parameters.pop(norm.name), **module._parameters}


def drop_renaming_hooks(module: nn.Module) -> None:
    """Remove the load hooks with which the parametrized weight norm accepts the older API's keys.

    torch leaves them behind when a parametrization is removed; on wnfused's layers they would rename the layers' keys.
    """
    for key, hook in list(module._load_state_dict_pre_hooks.items()):
        function = getattr(hook, "hook", hook)
        if getattr(function, "__name__", "") == "_weight_norm_compat_hook":
            del module._load_state_dict_pre_hooks[key]


def put_on(module: nn.Module, api: str, g: nn.Parameter, v: nn.Parameter, dim: int | None) -> None:
    """Put torch's weight norm with these parameters on the plain ``module``, which has no ``weight`` now."""
    if api == "hook":
        module.register_parameter("weight_g", g)
        module.register_parameter("weight_v", v)
        norm = WeightNorm("weight", -1 if dim is None else dim)
        module.weight = norm.compute_weight(module)
        module.register_forward_pre_hook(norm, prepend=True)
    else:
        module.register_parameter("weight", v)
        parametrizations.weight_norm(module, "weight", dim)  # type: ignore[arg-type]
        originals = module.parametrizations.weight._parameters  # type: ignore[union-attr]
        originals["original0"], originals["original1"] = g, v
