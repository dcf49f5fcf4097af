"""Figures of one style for all experiments."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from wnfused.plotting import figure, plain_axes
from wnfused.train import RunError

# The same initialization has the same name, color and marker in every plot.
INITS = {
    "robust": ("proposed", "#1f77b4", "o"),
    "robust_he": ("proposed gains, He directions", "#17becf", "v"),
    "norm_gain": ("paper's default: orthogonal, g = ‖v‖", "#ff7f0e", "s"),
    "norm_gain_he": ("He, g = ‖v‖", "#bcbd22", "P"),
    "torch_default": ("torch's default", "#8c564b", "D"),
    "data_dependent": ("data-dependent", "#d62728", "^"),
    "hanin": ("stage-wise Hanin", "#2ca02c", "X"),
    "he": ("He, g = 1", "#9467bd", "h"),
    "robust_padding": ("proposed, padding-aware", "#e377c2", "*"),
    "batch": ("batch norm", "#7f7f7f", "p"),
    "fixup": ("Fixup", "#637939", "<"),
    "skip_init": ("SkipInit / ReZero", "#e7969c", ">"),
    "scaled_ws": ("scaled weight standardization", "#a55194", "d"),
    "none": ("no normalization", "#393b79", "8"),
}
SPREAD = 0.03  # of a logarithmic axis: the distance between curves that would hide each other


def label(init: str) -> str:
    return INITS[init][0]


def color(init: str) -> str:
    return INITS[init][1]


def marker(init: str) -> str:
    return INITS[init][2]


def beside(values: Sequence[float], index: int, count: int) -> list[float]:
    """``values`` for the curve ``index`` of ``count``, moved along a logarithmic axis so that equal curves all show."""
    low, high = math.log10(min(values)), math.log10(max(values))
    move = 10 ** ((index - (count - 1) / 2) * SPREAD * (high - low) / 2)
    return [value * move for value in values]


def ticks_at(axis: Any, values: Iterable[float]) -> None:
    """Label a logarithmic axis at these values alone: at what was measured."""
    from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

    axis.set_major_locator(FixedLocator(sorted(set(values))))
    axis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    axis.set_minor_locator(NullLocator())


def legend(figure: Any, columns: int = 3) -> None:
    """One for all panels, below them, where it hides no curve."""
    entries: dict[str, Any] = {}
    for panel in figure.axes:
        for handle, name in zip(*panel.get_legend_handles_labels(), strict=True):
            entries.setdefault(name, handle)
    figure.legend(
        list(entries.values()), list(entries), loc="outside lower center", ncols=columns, frameon=False, fontsize=8
    )


def axes(columns: int = 1, rows: int = 1, width: float = 4.8, height: float = 3.8, **options: Any) -> tuple[Any, Any]:
    """A figure and the list of its panels, row by row."""
    try:
        made = figure(figsize=(width * columns, height * rows), layout="constrained")
    except ImportError as error:
        raise RunError(str(error)) from None
    panels = list(made.subplots(rows, columns, squeeze=False, **options).flat)
    for panel in panels:
        plain_axes(panel)
    return made, panels
