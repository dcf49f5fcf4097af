"""The table of a model's roles and the gains that follow from them."""

import sys
from typing import Any, TextIO

from torch import nn

from wnfused.init.gains import fans, gain_parameter
from wnfused.init.layers import Layer, layers_of
from wnfused.init.robust import Roles, gamma_of, roles_of

COLUMNS = ("layer", "role", "why", "fan_in", "fan_out", "γ", "g")
NUMBERS = COLUMNS[3:]


def explain(
    model: nn.Module, example_input: Any = None, *, roles: Roles | None = None, file: TextIO | None = None
) -> str:
    """Print and return a table of what ``robust_`` would do: each layer's role and its evidence, fans, γ and gain.

    The arguments are those of ``robust_``. The table is written to ``file``, standard output by default.
    """
    layers = {layer.name: layer for layer in layers_of("explain", model)}
    found = roles_of("explain", model, example_input, roles, list(layers.values()))
    text = _table([_row(layers[name], role) for name, role in found.items()])
    (sys.stdout if file is None else file).write(text + "\n")
    return text


def _row(layer: Layer, role: Any) -> tuple[str, ...]:
    gamma = gamma_of("explain", layer.name, role)
    fan_in, fan_out = fans(layer)
    kind, why = getattr(role, "kind", "given"), getattr(role, "why", "given in roles=")
    gain = gain_parameter(layer, gamma, "forward")
    return layer.name or "(the model)", kind, why, str(fan_in), str(fan_out), f"{gamma:.4g}", f"{gain:.4g}"


def _table(rows: list[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(COLUMNS, *rows, strict=True)]
    lines = []
    for row in (COLUMNS, tuple("-" * width for width in widths), *rows):
        cells = zip(COLUMNS, row, widths, strict=True)
        lines.append("  ".join(c.rjust(w) if name in NUMBERS else c.ljust(w) for name, c, w in cells).rstrip())
    return "\n".join(lines)
