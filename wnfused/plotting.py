"""What all plots share: figures, axes and colours of matplotlib, which the extra ``train`` installs.

matplotlib is imported when a figure is made. Neither a display nor matplotlib's global state is used.
"""

from typing import Any

from wnfused.extras import not_installed

COLOURS = ("#0072b2", "#d55e00", "#00835f", "#b0548a", "#a87400", "#3d8fbf", "#555b61")  # safe for colour-blind readers
QUIET, RULE = "#5b646e", "#dfe3e8"  # text and ticks; grid lines


def figure(**options: Any) -> Any:
    """A matplotlib figure; raises ImportError that names the extra if matplotlib is not installed."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(not_installed("matplotlib"), name="matplotlib") from error
    made = Figure(**options)
    FigureCanvasAgg(made)
    return made


def plain_axes(panel: Any) -> None:
    """Only horizontal grid lines and the x axis."""
    panel.grid(axis="y", color=RULE, linewidth=0.8)
    panel.set_axisbelow(True)
    panel.spines[["top", "right", "left"]].set_visible(False)
    panel.spines["bottom"].set_color(QUIET)
    panel.tick_params(axis="y", left=False, which="both")
    panel.tick_params(which="both", colors=QUIET)
    panel.xaxis.label.set_color(QUIET)


def integer_ticks(axis: Any, count: int = 8) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True, nbins=count))


def log_scale(panel: Any, low: float, high: float) -> None:
    """A logarithmic y axis from ``low`` to ``high`` with labels like 0.5, 1, 2, and powers of ten on a long one."""
    from matplotlib.ticker import LogFormatterMathtext, LogLocator, NullFormatter, StrMethodFormatter

    panel.set_yscale("log")
    panel.set_ylim(low, high)
    short = high / low < 1e3
    panel.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if short else (1.0,)))
    plain = short or (low >= 1e-4 and high < 1e5)
    panel.yaxis.set_major_formatter(StrMethodFormatter("{x:g}") if plain else LogFormatterMathtext())
    panel.yaxis.set_minor_formatter(NullFormatter())
