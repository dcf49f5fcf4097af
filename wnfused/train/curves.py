"""The curves of a run: plots at its end (extra ``train``) and a TensorBoard log (extra ``tensorboard``)."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from wnfused.extras import not_installed
from wnfused.train.records import Record, read
from wnfused.train.result import RunError

TRAINING, VALIDATION, RATE = "#d55e00", "#0072b2", "#00835f"  # distinguishable for colour-blind readers


def plot_run(run_dir: Path) -> list[Path]:
    """Write loss.png, accuracy.png and lr.png to ``run_dir``/plots; a plot without data is omitted."""
    run, directory = read(run_dir), run_dir / "plots"
    directory.mkdir(exist_ok=True)
    pairs = [("training", "train_{}", TRAINING), ("validation", "validation_{}", VALIDATION)]
    plots = {
        name: [(label, run.curve(field.format(name)), colour) for label, field, colour in pairs]
        for name in ("loss", "accuracy")
    }
    plots["lr"] = [("", run.curve("lr"), RATE)]
    return [
        _plot(directory / f"{name}.png", name, curves, run)
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
    """A figure that needs no display and does not change matplotlib's global state."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(not_installed("matplotlib"), name="matplotlib") from error
    figure = Figure(layout="constrained", **options)
    FigureCanvasAgg(figure)
    return figure


def require_tensorboard() -> None:
    """Raise RunError if TensorBoard is not installed."""
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError:
        raise RunError(f"tensorboard: {not_installed('tensorboard')}") from None


class Board:
    """A TensorBoard log."""

    def __init__(self, directory: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # Hides what an abandoned attempt logged after the checkpoint at ``step``.
        self.writer: Any = SummaryWriter(str(directory), purge_step=step)

    def steps(self, first: int, losses: list[float]) -> None:
        for step, loss in enumerate(losses, first):
            self.writer.add_scalar("step/train_loss", loss, step)

    def epoch(self, line: dict[str, Any]) -> None:
        for name, value in line.items():
            if name not in ("epoch", "step", "diverged") and value is not None:
                self.writer.add_scalar(f"epoch/{name}", value, line["step"])
        self.writer.flush()


@contextmanager
def open_board(directory: Path, step: int, *, wanted: bool) -> Iterator[Board | None]:
    """A log that starts at ``step``, closed at the end; None unless ``wanted``."""
    if not wanted:
        yield None
        return
    board = Board(directory, step)
    try:
        yield board
    finally:
        board.writer.close()
