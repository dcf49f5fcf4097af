"""The curves of a run: plots at its end (extra ``train``) and a TensorBoard log (extra ``tensorboard``)."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from wnfused import plotting
from wnfused.extras import not_installed
from wnfused.train.records import Record, read
from wnfused.train.result import RunError

VALIDATION, TRAINING, RATE = plotting.COLOURS[:3]
TITLES = {"loss": "Loss", "accuracy": "Accuracy", "lr": "Learning rate"}


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


def _plot(file: Path, name: str, curves: list[tuple[str, list[tuple[float, float]], str]], run: Record) -> Path:
    figure = plotting.figure(figsize=(5.6, 3.4), dpi=120, layout="constrained")
    panel = figure.subplots()
    for label, points, colour in curves:
        if points:
            x, y = zip(*points, strict=True)
            marker = "o" if len(x) <= 40 else None
            panel.plot(x, y, color=colour, linewidth=1.8, marker=marker, markersize=3.5, label=label)
    values = [y for _, points, _ in curves for _, y in points]
    if name == "accuracy":
        panel.yaxis.set_major_formatter("{x:.0%}" if max(values) - min(values) > 0.05 else "{x:.1%}")
    elif min(values) > 0 and max(values) > 20 * min(values):
        panel.set_yscale("log")
        plotting.log_scale(panel, *panel.get_ylim())
    if len(curves) > 1:
        panel.legend(frameon=False)
    ending = f" (diverged in epoch {run.diverged})" if run.diverged else ""
    panel.set_title(TITLES[name] + ending, loc="left", fontsize=11, weight="bold")
    panel.set_xlabel("epoch")
    plotting.integer_ticks(panel.xaxis)
    plotting.plain_axes(panel)
    figure.savefig(file)
    return file


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
