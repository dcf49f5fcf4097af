"""Figures of one style for all experiments."""

from typing import Any

from wnfused.plotting import figure, plain_axes
from wnfused.train import RunError

# The same initialization has the same name and color in every plot.
INITS = {
    "robust": ("proposed", "#1f77b4"),
    "robust_he": ("proposed gains, He directions", "#17becf"),
    "norm_gain": ("paper's default: orthogonal, g = ‖v‖", "#ff7f0e"),
    "norm_gain_he": ("He, g = ‖v‖", "#bcbd22"),
    "torch_default": ("torch's default", "#8c564b"),
    "data_dependent": ("data-dependent", "#d62728"),
    "hanin": ("stage-wise Hanin", "#2ca02c"),
    "he": ("He, g = 1", "#9467bd"),
    "robust_padding": ("proposed, padding-aware", "#e377c2"),
    "batch": ("batch norm", "#7f7f7f"),
    "fixup": ("Fixup", "#637939"),
    "skip_init": ("SkipInit / ReZero", "#ad494a"),
    "scaled_ws": ("scaled weight standardization", "#a55194"),
    "none": ("no normalization", "#393b79"),
}


def label(init: str) -> str:
    return INITS[init][0]


def color(init: str) -> str:
    return INITS[init][1]


def axes(columns: int = 1, width: float = 4.8, height: float = 3.4, **options: Any) -> tuple[Any, list[Any]]:
    """A figure and its panels, side by side."""
    try:
        made = figure(figsize=(width * columns, height), layout="constrained")
    except ImportError as error:
        raise RunError(str(error)) from None
    panels = list(made.subplots(1, columns, squeeze=False, **options)[0])
    for panel in panels:
        plain_axes(panel)
    return made, panels
