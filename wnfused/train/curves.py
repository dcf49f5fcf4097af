"""A run's curves as pictures, drawn at its end. They need matplotlib, of the extra ``train``."""

from pathlib import Path
from typing import Any

from wnfused.extras import not_installed
from wnfused.train.records import Record, read

TRAINING, VALIDATION, RATE = "#d55e00", "#0072b2", "#00835f"  # told apart by colour-blind readers too


def plot_run(run_dir: Path) -> list[Path]:
    """Write plots/loss.png, accuracy.png and lr.png of a run folder; a picture with nothing to show is left out."""
    run, folder = read(run_dir), run_dir / "plots"
    folder.mkdir(exist_ok=True)
    pairs = [("training", "train_{}", TRAINING), ("validation", "validation_{}", VALIDATION)]
    plots = {
        name: [(label, run.curve(field.format(name)), colour) for label, field, colour in pairs]
        for name in ("loss", "accuracy")
    }
    plots["lr"] = [("", run.curve("lr"), RATE)]
    return [
        _plot(folder / f"{name}.png", name, curves, run)
        for name, curves in plots.items()
        if any(points for _, points, _ in curves)
    ]


TITLES = {"loss": "Loss", "accuracy": "Accuracy", "lr": "Learning rate"}


def _plot(file: Path, name: str, curves: list[tuple[str, list[tuple[float, float]], str]], run: Record) -> Path:
    figure = _figure(figsize=(5.6, 3.4), dpi=120)
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, PercentFormatter, StrMethodFormatter

    panel = figure.subplots()
    for label, points, colour in curves:
        if points:
            x, y = zip(*points, strict=True)
            marker = "o" if len(x) <= 40 else None
            panel.plot(x, y, color=colour, linewidth=1.8, marker=marker, markersize=3.5, label=label)
    values = [y for _, points, _ in curves for _, y in points]
    if name == "accuracy":
        panel.yaxis.set_major_formatter(PercentFormatter(xmax=1.0))
    elif min(values) > 0 and max(values) > 20 * min(values):
        panel.set_yscale("log")
        panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if max(values) < 1e3 * min(values) else (1,)))
        panel.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        panel.yaxis.set_minor_formatter(NullFormatter())
    if len(curves) > 1:
        panel.legend(frameon=False)
    panel.set_title(TITLES[name] + _ending(run), loc="left", fontsize=11, weight="bold")
    panel.set_xlabel("epoch")
    panel.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    panel.grid(axis="y", color="#dfe3e8", linewidth=0.8)
    panel.set_axisbelow(True)
    panel.spines[["top", "right", "left"]].set_visible(False)
    panel.tick_params(left=False, which="both", colors="#5b646e")
    figure.savefig(file)
    return file


def _ending(run: Record) -> str:
    return f" (diverged in epoch {run.diverged})" if run.diverged else ""


def _figure(**options: Any) -> Any:
    """A figure that needs no display and leaves matplotlib's global state alone."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(not_installed("matplotlib"), name="matplotlib") from error
    figure = Figure(layout="constrained", **options)
    FigureCanvasAgg(figure)
    return figure
