"""Stage-wise Hanin: the paper's initialization, but with residual branches that shrink geometrically along a stage."""

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
    """As ``robust_``, but the last layer of a stage's block b has g = 0.9^b, b = 1, 2, …, whatever its fans are.

    This is the paper's formula, literally. For basic blocks, whose last layer has as many inputs as outputs, 0.9^b
    stands where ``robust_`` has 1/√B; the last layer of a bottleneck widens by a factor of 4, so its branch carries
    twice the norm that √(fan_in / fan_out) would give it. The authors' code multiplies instead, which for basic blocks
    is the same; it has no bottlenecks. b starts anew in each stage. ``roles`` must be ``Role`` objects here: kind
    "residual_end" marks the layers, ``block`` says which b they have. Roles without ``block`` must come in the order in
    which the model runs; then γ = 1/B says how many blocks in a row make the stage.
    """
    layers = layers_of("hanin_", model)
    check_generator("hanin_", generator)
    found = roles_of("hanin_", model, example_input, roles, layers)
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
    """For each layer that ends a residual branch the number of its block in its stage, counted from 1."""
    for name, role in roles.items():
        if not hasattr(role, "kind"):
            raise ValueError(
                f"hanin_: roles: layer {name!r}: expected a Role, which tells where branches end, got {role}"
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
                f"hanin_: roles: layer {ends[start]!r} has gamma {gammas[ends[start]]:g}: expected 1/B and B such "
                f"layers in a row, which make a stage; got {[gammas[name] for name in stage]}"
            )
        blocks |= {name: i + 1 for i, name in enumerate(stage)}
    return blocks
