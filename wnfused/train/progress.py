"""Progress of a run: a live bar on a terminal, plain lines elsewhere."""

import shutil
import sys
import textwrap
import time
from dataclasses import dataclass
from typing import Any, TextIO

from wnfused.formatting import COLUMNS, duration
from wnfused.train.result import Result


@dataclass(frozen=True)
class Moment:
    """The position of a run. Loss and accuracy are those of the epoch so far, None before they are known."""

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
    """Shows nothing; the base class of Lines and Live."""

    every = float("inf")  # seconds between two calls of ``show``

    def __init__(self) -> None:
        self._shown = time.perf_counter()

    def due(self) -> bool:
        """Whether it is time for a ``moment``. Called after every step, so it must be cheap."""
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
    """One line per epoch, and one every 30 seconds within an epoch."""

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
        file = self.file or sys.stdout
        if file.isatty():
            width = shutil.get_terminal_size().columns
            text = "\n".join(textwrap.fill(line, width, break_on_hyphens=False) for line in text.splitlines())
        print(text, file=file, flush=True)


class Live(Progress):
    """A live bar for the current epoch below one line per finished epoch. Needs rich."""

    every = 0.1

    def __init__(self) -> None:
        super().__init__()
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bars

        texts = ("[bold]{task.description}", "{task.completed:.0f}/{task.total:.0f}", "{task.fields[details]}")
        name, count, details = (TextColumn(text) for text in texts)
        # The bar takes the width that the numbers leave.
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
        self.bars.console.print(text, highlight=False, markup=False)  # wraps between words

    def end(self, result: Result | None) -> None:
        self.bars.stop()


def choose() -> Progress:
    """Live on a terminal if rich is installed, otherwise Lines."""
    if not sys.stdout.isatty():
        return Lines()
    try:
        return Live()
    except ImportError:
        return Lines()


def epoch_text(line: dict[str, Any], epochs: int) -> str:
    """One line: losses, with accuracies in parentheses. Images per second are shown if they fit 80 columns."""
    parts = [f"epoch {line['epoch']:>{len(str(epochs))}}/{epochs}"]
    for name, loss, accuracy in (
        ("loss", line["train_loss"], line["train_accuracy"]),
        ("validation", line["validation_loss"], line["validation_accuracy"]),
    ):
        if loss is not None:
            parts.append(f"{name} {loss:.3f} ({accuracy:.1%})")
    parts.append("DIVERGED" if line.get("diverged") else f"{line['seconds']:.1f} s")
    if line["images_per_second"] is not None:
        speed = f"{line['images_per_second']:.0f} images/s"
        if len("  ".join([*parts, speed])) <= COLUMNS:
            parts.insert(-1, speed)
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
