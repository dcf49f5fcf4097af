"""Conversion to wnfused's layers: from torch's own weight norms (``convert``) and from plain layers (``apply``).

Both inspect the whole model before they change anything, so an error leaves it unmodified. Both modify the layer
objects (class and parameters) instead of replacing them: the root may itself be such a layer, and hooks, ties,
``training``, ``requires_grad`` and the user's attributes are preserved.
"""

from collections.abc import Callable
from typing import cast

from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils import parametrize

from wnfused import checks
from wnfused.nn.base import WeightNormalized, become, gain_of
from wnfused.nn.layers import (
    WNConv1d,
    WNConv2d,
    WNConv3d,
    WNConvTranspose1d,
    WNConvTranspose2d,
    WNConvTranspose3d,
    WNLinear,
)
from wnfused.nn.subclasses import fused_subclass, why_not_fused
from wnfused.ops.reference import gain_shape
from wnfused.surgery import norm_only, torch_norms
from wnfused.surgery.lost_initialization import lost_initializations
from wnfused.surgery.report import ConvertReport
from wnfused.surgery.torch_norms import TorchNorm

Filter = Callable[[str, nn.Module], bool]

LAYERS: tuple[type[WeightNormalized], ...] = (
    WNLinear,
    WNConv1d,
    WNConv2d,
    WNConv3d,
    WNConvTranspose1d,
    WNConvTranspose2d,
    WNConvTranspose3d,
)
TWINS = tuple(kind.twin for kind in LAYERS)


def convert(model: nn.Module, *, filter: Filter | None = None) -> ConvertReport:
    """Turn every layer under one of torch's weight norms into the corresponding wnfused layer, in place.

    Outputs and gradients stay the same up to rounding. The parameters are the same objects in the same order, so an
    existing optimizer keeps working and its saved states still load. Layers for which ``filter(name, module)`` is false
    are skipped. So are layers without a counterpart: recurrent layers, a norm on a parameter other than ``weight``,
    norms combined with other parametrizations. The report gives the reasons. Recurrent layers (``report.norms_only``)
    keep torch's norm, but wnfused's operator computes it, which is right for rows of zeros and in double backward.

    Your own subclasses of the ``torch.nn`` layers stay instances of their class, with its methods: their
    ``super().forward(x)`` is the fused forward, and ``self.weight`` the normalized weight.

    If the model's own ``init_weights`` was lost, because it writes into the computed weight, ``report.notes`` says so.

    torch's ``remove_weight_norm`` and ``remove_parametrizations``, and model methods that call them, fold a converted
    layer as ``wnfused.fold`` does.
    """
    checks.module("convert", model)
    report, plan = plan_of_convert(model, filter)
    report.notes += lost_initializations(model)
    for module, norm, kind in plan:
        g, v = torch_norms.gain_and_direction(module, norm)
        assert g is not None
        assert v is not None
        torch_norms.take_off(module, norm)
        become(module, kind, g, v, norm.dim_for(v.ndim))
    for name in report.norms_only:
        norm_only.use_operator(model.get_submodule(name))
    return report


def plan_of_convert(
    model: nn.Module, filter: Filter | None = None
) -> tuple[ConvertReport, list[tuple[nn.Module, TorchNorm, type[WeightNormalized]]]]:
    """The report and the list of conversions that ``convert`` would make; nothing is changed."""
    report = ConvertReport()
    plan: list[tuple[nn.Module, TorchNorm, type[WeightNormalized]]] = []
    for name, module in model.named_modules():
        norms = torch_norms.norms_on(module)
        if not norms:
            continue
        reason = _why_not_convert(module, norms) or _filtered(filter, name, module)
        if reason is not None:
            report.skipped[name] = reason
            if _takes_operator(module, norms) and _filtered(filter, name, module) is None:
                report.norms_only.append(name)
            continue
        report.converted.append(name)
        kind = parametrize.type_before_parametrizations(module)
        plan.append((module, norms[0], fused_subclass(kind, _counterpart(kind))))
    return report, plan


def apply(model: nn.Module, filter: Filter | None = None, *, dim: int | None = 0, eps: float = 0.0) -> ConvertReport:
    """Weight-normalize the plain ``nn.Linear`` and (transposed) convolution layers of a model, in place.

    Each layer's weight becomes its ``weight_v`` (the same parameter), and ``weight_g`` is initialized to its norms, so
    outputs do not change. ``weight_g`` is a new parameter: create the optimizer afterwards. Layers under torch's weight
    norm are skipped (use ``convert``), as are subclasses, lazy layers and weights tied to another module. The report
    gives the reasons.
    """
    checks.module("apply", model)
    checks.epsilon("apply", eps)
    report = ConvertReport()
    owners = _owners(model)
    plan: list[tuple[nn.Module, type[WeightNormalized]]] = []
    for name, module in model.named_modules():
        if not isinstance(module, TWINS):
            continue
        reason = _why_not_apply(name, module, owners) or _filtered(filter, name, module)
        if reason is not None:
            report.skipped[name] = reason
            continue
        if dim is not None:
            checks.dimension(f"apply: layer {name!r}", cast(Tensor, module.weight).ndim, dim)
        report.converted.append(name)
        plan.append((module, _counterpart(type(module))))
    gains = [gain_of(cast(Tensor, module.weight), dim, eps) for module, _ in plan]
    for (module, kind), gain in zip(plan, gains, strict=True):
        v = module._parameters.pop("weight")
        assert v is not None
        torch_norms.drop_renaming_hooks(module)
        become(module, kind, nn.Parameter(gain, requires_grad=v.requires_grad), v, dim, eps)
    return report


def _filtered(filter: Filter | None, name: str, module: nn.Module) -> str | None:
    return None if filter is None or filter(name, module) else "excluded by the filter"


def _counterpart(kind: type[nn.Module]) -> type[WeightNormalized]:
    return next(ours for ours in LAYERS if issubclass(kind, ours.twin))


def _why_not_convert(module: nn.Module, norms: list[TorchNorm]) -> str | None:
    kind = parametrize.type_before_parametrizations(module)
    twin = next((t for t in TWINS if issubclass(kind, t)), None)
    names = [norm.name for norm in norms]
    if twin is None:
        return f"{kind.__name__} has no fused counterpart (weight norm on {', '.join(names)})"
    if len(norms) > 1:
        return f"several weight norms on one module ({', '.join(names)})"
    if names != ["weight"]:
        return f"the norm is on {names[0]!r}, not on 'weight'"
    if others := torch_norms.others_on(module):
        return f"weight norm is combined with {', '.join(others)}"
    return _obstacle(module) or why_not_fused(kind, _counterpart(kind)) or _unfit(module, norms[0])


def _takes_operator(module: nn.Module, norms: list[TorchNorm]) -> bool:
    """Whether wnfused's operator can replace torch's function in a module that keeps torch's norm."""
    return isinstance(module, nn.RNNBase | nn.RNNCellBase) and all(_unfit(module, norm) is None for norm in norms)


def _obstacle(module: nn.Module) -> str | None:
    """What on the instance itself prevents a conversion."""
    if "forward" in module.__dict__:
        return "its forward was replaced on the instance"
    taken = [name for name in ("activation", "dim", "eps") if hasattr(module, name)]
    return f"it has an attribute {taken[0]!r} of its own, which the fused layer needs" if taken else None


def _unfit(module: nn.Module, norm: TorchNorm) -> str | None:
    """Why the operators would not accept this gain and direction."""
    g, v = torch_norms.gain_and_direction(module, norm)
    if g is None or v is None:
        return "its gain and direction are no longer parameters of the module"
    if v.dtype not in checks.FLOATS:
        return f"dtype {v.dtype} is not supported"
    if g.dtype != v.dtype or g.device != v.device:
        return f"gain ({g.dtype}, {g.device}) and direction ({v.dtype}, {v.device}) differ"
    expected = gain_shape(tuple(v.shape), norm.dim_for(v.ndim))
    return None if tuple(g.shape) == expected else f"its gain has shape {tuple(g.shape)}, expected {expected}"


def _owners(model: nn.Module) -> dict[int, list[str]]:
    """The names under which each parameter object is registered, keyed by id; a shared module counts once."""
    owners: dict[int, list[str]] = {}
    for prefix, module in model.named_modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                owners.setdefault(id(parameter), []).append(f"{prefix}.{name}" if prefix else name)
    return owners


def _why_not_apply(name: str, module: nn.Module, owners: dict[int, list[str]]) -> str | None:
    if isinstance(module, WeightNormalized):
        return "already weight-normalized"
    if torch_norms.norms_on(module):
        return "under torch's weight norm: use wnfused.convert"
    if isinstance(module, LazyModuleMixin):
        return "lazy: its weight has no shape before the first forward"
    if parametrize.is_parametrized(module) or torch_norms.others_on(module):
        return f"already parametrized ({', '.join(torch_norms.others_on(module))})"
    if type(module) not in TWINS:
        return f"{type(module).__name__} is a subclass of a torch.nn layer"
    if reason := _obstacle(module):
        return reason
    weight = module._parameters.get("weight")
    if weight is None or hasattr(module, "weight_g") or hasattr(module, "weight_v"):
        return "its weight is not a plain parameter of the module"
    if weight.dtype not in checks.FLOATS:
        return f"dtype {weight.dtype} is not supported"
    own = f"{name}.weight" if name else "weight"
    if others := [owner for owner in owners[id(weight)] if owner != own]:
        return f"its weight is tied to {', '.join(others)}"
    return None
