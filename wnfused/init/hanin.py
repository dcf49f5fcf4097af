"""Stage-wise Hanin: the paper's initialization with residual branches that shrink geometrically along a stage."""

from typing import Any

import torch
from torch import nn

from wnfused.init.directions import check_generator
from wnfused.init.layers import Layer, Values, layers_of, write
from wnfused.init.robust import Roles, gamma_of, robust_values, roles_of

DECAY = 0.9


def hanin_(
    model: nn.Module,
    example_input: Any = None,
    *,
    roles: Roles | None = None,
    generator: torch.Generator | None = None,
) -> None:
    """Initialize like ``robust_``, except that the last layer of block b has g = 0.9^b, whatever its fans are.

    The blocks of each stage are numbered b = 1, 2, …. This is the paper's formula, literally: in basic blocks, 0.9^b
    replaces the 1/√B of ``robust_``; in a bottleneck, whose last layer has four times as many outputs as inputs, the
    branch has twice the norm that √(fan_in / fan_out) would give it. The authors' code multiplies the gain by 0.9^b,
    which is the same for basic blocks, the only ones it has. ``roles`` must be ``Role`` objects here: the kind
    "residual_end" marks the last layers, and ``block`` is their b. Roles without ``block`` must be in execution order;
    then γ = 1/B means that B consecutive blocks form the stage.
    """
    layers = layers_of("hanin_", model)
    check_generator("hanin_", generator)
    found = roles_of("hanin_", model, example_input, roles, layers)
    layers = [layer for layer in layers if layer.name in found]
    gammas = {layer.name: gamma_of("hanin_", layer.name, found[layer.name]) for layer in layers}
    blocks = _blocks(found, gammas)
    plan = [(layer, _values(layer, gammas[layer.name], blocks.get(layer.name), generator)) for layer in layers]
    write(plan)


def _values(layer: Layer, gamma: float, block: int | None, generator: torch.Generator | None) -> Values:
    """``block`` is None except at the end of a residual branch."""
    if block is None:
        return robust_values(layer, gamma, "forward", "orthogonal", generator)
    return robust_values(layer, DECAY ** (2 * block), "backward", "orthogonal", generator)  # g = √γ, without the fans


def _blocks(roles: Roles, gammas: dict[str, float]) -> dict[str, int]:
    """The block number, counted from 1 in each stage, of every layer that ends a residual branch."""
    for name, role in roles.items():
        if not hasattr(role, "kind"):
            raise ValueError(
                f"hanin_: roles: layer {name!r}: expected a Role, which says where branches end, got {role}"
            )
    ends = [name for name, role in roles.items() if getattr(role, "kind", None) == "residual_end"]
    numbers = {name: getattr(roles[name], "block", None) for name in ends}
    if all(number is not None for number in numbers.values()):
        return {name: int(number) for name, number in numbers.items() if number is not None}
    blocks: dict[str, int] = {}
    while len(blocks) < len(ends):
        start = len(blocks)
        count = round(1 / gammas[ends[start]]) if gammas[ends[start]] else 0
        stage = ends[start : start + count]
        if count < 1 or len(stage) != count or len({gammas[name] for name in stage}) != 1:
            raise ValueError(
                f"hanin_: roles: layer {ends[start]!r} has gamma {gammas[ends[start]]:g}: expected 1/B in B "
                f"consecutive layers, which form a stage; got {[gammas[name] for name in stage]}"
            )
        blocks |= {name: i + 1 for i, name in enumerate(stage)}
    return blocks
