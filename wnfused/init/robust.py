"""The paper's initialization: orthogonal directions, zero biases, gains from fan-in, fan-out and the layer's role."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from wnfused.init.directions import check_distribution, check_generator, draw
from wnfused.init.gains import check_gamma, check_variant, gain_parameter
from wnfused.init.layers import Layer, Values, layer_of, layers_of, listed, write
from wnfused.init.padding import check_padding, padding_factors

if TYPE_CHECKING:
    from wnfused.init.roles import Role

Roles = Mapping[str, "Role | float"]


def robust_layer_(
    layer: nn.Module,
    gamma: float,
    *,
    variant: str = "forward",
    distribution: str = "orthogonal",
    generator: torch.Generator | None = None,
) -> None:
    """Initialize one weight-normalized layer, ours or torch's: b = 0 and g = √(gamma · fan_in / fan_out) for every row.

    ``gamma`` is 2 before a ReLU, 1/B for the last layer of each residual branch in a stage of B blocks, and 1
    otherwise. The ``variant`` "backward" sets g = √gamma, which preserves the norm of gradients instead of the norm of
    activations. v has orthogonal rows (a convolution's weight is viewed as a matrix (out, in · taps), group by group);
    with ``distribution="he"`` its entries are independent draws from N(0, 1/fan_in). If ``dim`` is not the output
    dimension, the gains are set to give the same overall scale: see ``wnfused.init.gains``.
    """
    one = layer_of("robust_layer_", layer)
    _check("robust_layer_", variant, distribution, generator)
    check_gamma("robust_layer_", "gamma", gamma)
    write([(one, robust_values(one, gamma, variant, distribution, generator))])


def robust_(
    model: nn.Module,
    example_input: Any = None,
    *,
    roles: Roles | None = None,
    variant: str = "forward",
    distribution: str = "orthogonal",
    padding: str = "ignored",
    generator: torch.Generator | None = None,
) -> None:
    """Initialize every weight-normalized layer of a model with ``robust_layer_`` and the γ of its role.

    ``roles`` maps layer names to a γ or a ``Role``; the roles of other layers are inferred from ``example_input``.
    Layers that the model does not call are left unchanged, with a warning, and so are other layers (a plain last
    layer, batch norms). ``padding="aware"``, which is not in the paper, divides
    the gain of each convolution by its ``padding_factor`` on the maps that ``example_input`` gives it.
    """
    layers = layers_of("robust_", model)
    _check("robust_", variant, distribution, generator)
    check_padding("robust_", padding, example_input)
    found = roles_of("robust_", model, example_input, roles, layers)
    layers = [layer for layer in layers if layer.name in found]
    gammas = [gamma_of("robust_", layer.name, found[layer.name]) for layer in layers]
    factors = padding_factors("robust_", model, example_input, layers, padding)
    plan = [
        (layer, robust_values(layer, gamma, variant, distribution, generator, factors[layer.name]))
        for layer, gamma in zip(layers, gammas, strict=True)
    ]
    write(plan)


def robust_values(
    layer: Layer,
    gamma: float,
    variant: str,
    distribution: str,
    generator: torch.Generator | None,
    padding_factor: float = 1.0,
) -> Values:
    return Values(g=gain_parameter(layer, gamma, variant) / padding_factor, v=draw(layer, distribution, generator))


def roles_of(where: str, model: nn.Module, example_input: Any, roles: Roles | None, layers: list[Layer]) -> Roles:
    """The given roles, and inferred ones for the other layers. Layers that the model does not call have no role."""
    names = {layer.name for layer in layers}
    given: Roles = {} if roles is None else roles
    if not isinstance(given, Mapping):
        raise TypeError(f"{where}: roles: expected a dict from layer names to roles, got {type(roles).__name__}")
    if unknown := [name for name in given if name not in names]:
        raise ValueError(f"{where}: roles: the model has no weight-normalized layer named {listed(unknown)}")
    missing = [layer.name for layer in layers if layer.name not in given]
    if not missing:
        return given
    if example_input is None:
        if roles is None:
            raise ValueError(f"{where}: example_input: expected an input of the model, got None; pass one, or roles=")
        raise ValueError(
            f"{where}: roles: expected a role for every weight-normalized layer, got none for {listed(missing)}; "
            "pass example_input to infer them"
        )
    from wnfused.init.roles import infer_roles  # not needed if roles are given

    inferred = infer_roles(model, example_input)
    return {name: given.get(name, role) for name, role in inferred.items()} | dict(given)


def gamma_of(where: str, name: str, role: Any) -> float:
    gamma = getattr(role, "gamma", role)
    if gamma is None:
        why = getattr(role, "why", "unknown")
        raise ValueError(f"{where}: roles: layer {name!r}: expected a gamma, got None ({why}); pass a number in roles=")
    check_gamma(where, f"roles: layer {name!r}", gamma)
    return float(gamma)


def _check(where: str, variant: str, distribution: str, generator: torch.Generator | None) -> None:
    check_variant(where, variant)
    check_distribution(where, distribution)
    check_generator(where, generator)
