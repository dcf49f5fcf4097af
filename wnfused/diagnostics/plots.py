"""Plots of the diagnostics. matplotlib comes with the extra ``wnfused[train]``."""

from pathlib import Path
from typing import Any

Curve = list[tuple[float, float]]  # mean and standard deviation, layer by layer


def _figure(**options: Any) -> Any:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install 'wnfused[train]'") from error
    figure = Figure(layout="constrained", **options)
    FigureCanvasAgg(figure)
    return figure


def _ratio_axis(panel: Any) -> None:
    """A logarithmic axis around 1 that spans at least a factor of 4, with labels at 0.5, 1, 2, 5 if it is short."""
    from matplotlib.ticker import LogFormatterMathtext, LogLocator, NullFormatter, StrMethodFormatter

    panel.set_yscale("log")
    low, high = panel.get_ylim()
    low, high = min(low, 0.5), max(high, 2.0)
    panel.set_ylim(low, high)
    short = high / low < 1e3
    panel.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if short else (1.0,)))
    panel.yaxis.set_major_formatter(StrMethodFormatter("{x:g}") if short else LogFormatterMathtext())
    panel.yaxis.set_minor_formatter(NullFormatter())


def signal(forward: Curve, backward: Curve, path: Path) -> Path:
    """Two panels with norms over depth on a logarithmic axis: activations and gradients."""
    figure = _figure(figsize=(8.0, 3.2), dpi=150)
    panels = figure.subplots(1, 2, sharex=True)
    for panel, curve, title in zip(
        panels, (forward, backward), ("activations  ‖h‖ / ‖x‖", "gradients  ‖dh‖ / ‖dy‖"), strict=True
    ):
        layers = range(1, len(curve) + 1)
        means = [mean for mean, _ in curve]
        panel.plot(layers, means, color="#1f5fa8", linewidth=1.6)
        lower = [max(mean - std, mean * 1e-2) for mean, std in curve]  # above zero, for the logarithmic axis
        panel.fill_between(layers, lower, [mean + std for mean, std in curve], color="#1f5fa8", alpha=0.2, linewidth=0)
        panel.axhline(1.0, color="#888888", linewidth=0.8, linestyle=":")
        panel.set(title=title, xlabel="layer")
        panel.xaxis.get_major_locator().set_params(integer=True)
        _ratio_axis(panel)
        panel.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return path
