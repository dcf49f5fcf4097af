"""What a person sees while a network trains: a live bar on a terminal, plain lines anywhere else."""

import sys
import time
from dataclasses import dataclass
from typing import Any, TextIO

from wnfused.train.result import Result


@dataclass(frozen=True)
class Moment:
    """Where a run stands. Loss and accuracy are those of the epoch so far, None before they are known."""

    epoch: int  # counted from 1
    epochs: int
    batch: int
    batches: int
    step: int
    steps: int
    loss: float | None
    accuracy: float | None
    images_per_second: float | None
    seconds_left: float | None


class Progress:
    """Shows nothing: the base of those that do."""

    every = float("inf")  # seconds between two moments

    def __init__(self) -> None:
        self._shown = time.perf_counter()

    def due(self) -> bool:
        """Asked after each step: it has to be cheap."""
        return time.perf_counter() - self._shown >= self.every

    def moment(self, moment: Moment) -> None:
        self._shown = time.perf_counter()
        self.show(moment)

    def begin(self, title: str) -> None: ...

    def show(self, moment: Moment) -> None: ...

    def epoch(self, line: dict[str, Any], epochs: int) -> None: ...

    def say(self, text: str) -> None: ...

    def end(self, result: Result | None) -> None: ...


class Lines(Progress):
    """A line an epoch, and one every half minute between."""

    every = 30.0

    def __init__(self, file: TextIO | None = None) -> None:
        super().__init__()
        self.file = file

    def begin(self, title: str) -> None:
        self.say(title)

    def show(self, moment: Moment) -> None:
        self.say(f"epoch {moment.epoch}/{moment.epochs}, step {moment.batch}/{moment.batches}: {_details(moment)}")

    def epoch(self, line: dict[str, Any], epochs: int) -> None:
        self._shown = time.perf_counter()
        self.say(epoch_text(line, epochs))

    def say(self, text: str) -> None:
        print(text, file=self.file or sys.stdout, flush=True)


class Live(Progress):
    """A bar of the epoch that moves, with the finished epochs as lines above it. Needs rich."""

    every = 0.1

    def __init__(self) -> None:
        super().__init__()
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bars

        texts = ("[bold]{task.description}", "{task.completed:.0f}/{task.total:.0f}", "{task.fields[details]}")
        name, count, details = (TextColumn(text) for text in texts)
        # The bar takes the room that the figures leave.
        self.bars = Bars(name, BarColumn(bar_width=None), count, details, transient=True, expand=True)
        self.task: Any = None

    def begin(self, title: str) -> None:
        self.bars.start()
        self.say(title)

    def show(self, moment: Moment) -> None:
        if self.task is None:
            self.task = self.bars.add_task("", details="")
        self.bars.update(
            self.task,
            description=f"epoch {moment.epoch}/{moment.epochs}",
            completed=moment.batch,
            total=moment.batches,
            details=_details(moment),
        )

    def epoch(self, line: dict[str, Any], epochs: int) -> None:
        self.say(epoch_text(line, epochs))

    def say(self, text: str) -> None:
        self.bars.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def end(self, result: Result | None) -> None:
        self.bars.stop()


def choose() -> Progress:
    """Live on a terminal where rich is installed."""
    if not sys.stdout.isatty():
        return Lines()
    try:
        return Live()
    except ImportError:
        return Lines()


def epoch_text(line: dict[str, Any], epochs: int) -> str:
    """Short enough for a terminal of 80 columns; the shares in brackets are those of right answers."""
    parts = [f"epoch {line['epoch']:>{len(str(epochs))}}/{epochs}"]
    for name, loss, accuracy in (
        ("train loss", line["train_loss"], line["train_accuracy"]),
        ("validation", line["validation_loss"], line["validation_accuracy"]),
    ):
        if loss is not None:
            parts.append(f"{name} {loss:.3f} ({accuracy:.1%})")
    if line["images_per_second"] is not None:
        parts.append(f"{line['images_per_second']:.0f} images/s")
    parts.append("DIVERGED" if line.get("diverged") else f"{line['seconds']:.1f} s")
    return "  ".join(parts)


def _details(moment: Moment) -> str:
    parts = []
    if moment.loss is not None and moment.accuracy is not None:
        parts.append(f"loss {moment.loss:.3f} accuracy {moment.accuracy:.1%}")
    if moment.images_per_second is not None:
        parts.append(f"{moment.images_per_second:.0f} images/s")
    if moment.seconds_left is not None:
        parts.append(f"{duration(moment.seconds_left)} left")
    return "  ".join(parts)


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
