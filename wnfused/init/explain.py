"""The table of a model's roles and the gains that follow from them."""

import sys
from typing import Any, TextIO

from torch import nn

from wnfused.formatting import aligned, fits
from wnfused.init.gains import fans, gain_parameter
from wnfused.init.layers import Layer, layers_of, listed
from wnfused.init.padding import check_padding, padding_factors
from wnfused.init.robust import Roles, gamma_of, roles_of

COLUMNS = ("layer", "role", "why", "fan_in", "fan_out", "γ", "padding", "g")
NUMBERS = COLUMNS[3:]


def explain(
    model: nn.Module,
    example_input: Any = None,
    *,
    roles: Roles | None = None,
    padding: str = "ignored",
    file: TextIO | None = None,
) -> str:
    """Print and return a table of what ``robust_`` would do: each layer's role and its evidence, fans, γ and gain.

    The arguments are those of ``robust_``; with ``padding="aware"`` a column shows the factor that g is divided by.
    The table fits 80 columns: longer evidence is printed below its layer. It is written to ``file``, standard
    output by default.
    """
    layers = {layer.name: layer for layer in layers_of("explain", model)}
    check_padding("explain", padding, example_input)
    found = roles_of("explain", model, example_input, roles, list(layers.values()))
    factors = padding_factors("explain", model, example_input, [layers[name] for name in found], padding)
    rows = [_row(layers[name], role, factors[name]) for name, role in found.items()]
    text = _table(rows, [name for name in COLUMNS if padding == "aware" or name != "padding"])
    if uncalled := [name for name in layers if name not in found]:
        text += f"\nnot called, and left unchanged: {listed(uncalled)}"
    (sys.stdout if file is None else file).write(text + "\n")
    return text


def _row(layer: Layer, role: Any, factor: float) -> dict[str, str]:
    gamma = gamma_of("explain", layer.name, role)
    fan_in, fan_out = fans(layer)
    kind, why = getattr(role, "kind", "given"), getattr(role, "why", "given in roles=")
    numbers = f"{gamma:.4g}", f"{factor:.4g}", f"{gain_parameter(layer, gamma, 'forward') / factor:.4g}"
    cells = (layer.name or "(the model)", kind, why, str(fan_in), str(fan_out), *numbers)
    return dict(zip(COLUMNS, cells, strict=True))


def _table(rows: list[dict[str, str]], columns: list[str]) -> str:
    texts, notes = [[row[name] for name in columns] for row in rows], []
    if not fits(columns, texts):
        columns = [name for name in columns if name != "why"]
        texts, notes = [[row[name] for name in columns] for row in rows], [row["why"] for row in rows]
    left = {i for i, name in enumerate(columns) if name not in NUMBERS}
    return "\n".join(aligned(columns, texts, left=left, notes=notes, rule=True))
