"""The tables of the report, as texts: ``page.html`` turns them into HTML."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from wnfused import formatting
from wnfused.checks import is_number
from wnfused.train.records import Record


@dataclass(frozen=True)
class Table:
    """A table of texts. The first column names the row; the others are numbers."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    note: str = ""


@dataclass(frozen=True)
class Cell:
    text: str
    label: str = ""  # of its column, for narrow screens, where a row becomes a list
    marked: bool = False  # the best of its column, or unlike the majority of its row


@dataclass(frozen=True)
class Status:
    kind: str
    mark: str
    text: str


@dataclass(frozen=True)
class Fields:
    """Settings of several runs side by side."""

    title: str
    differing: list[tuple[str, list[Cell]]]
    shared: list[tuple[str, str]]


MARKS = {"finished": "✓", "diverged": "✕", "interrupted": "‖", "unfinished": "…"}
SHOW: dict[str, Callable[[float | None], str]] = {
    "validation": formatting.accuracy,
    "at epoch": formatting.whole,
    "test": formatting.accuracy,
    "training loss": formatting.loss,
    "step": formatting.milliseconds,
    "images/s": formatting.count,
}
BETTER: dict[str, Callable[[list[float]], float]] = {"validation": max, "test": max, "training loss": min}
RESULTS = ("run", "status", "epochs", *SHOW, "time")


def status(run: Record) -> Status:
    kind = run.status if run.status in MARKS else "unknown"
    text = f"diverged in epoch {run.epochs[-1].number}" if kind == "diverged" else run.status
    return Status(kind, MARKS.get(kind, "?"), text)


def results(runs: Sequence[Record]) -> list[list[Cell]]:
    """The numbers of each run; the best of a column is marked if the runs differ."""
    figures = [_figures(run) for run in runs]
    best = {column: _best([f[column] for f in figures], column) for column in SHOW}
    rows = []
    for run, figure in zip(runs, figures, strict=True):
        texts = {column: show(figure[column]) for column, show in SHOW.items()}
        cells = [Cell(text, column, text == best[column]) for column, text in texts.items()]
        seconds = [value for _, value in run.curve("seconds")]
        time = Cell(formatting.duration(sum(seconds) if seconds else None), "time")
        rows.append([Cell(_epochs(run), "epochs"), *cells, time])
    return rows


def _figures(run: Record) -> dict[str, float | None]:
    """What the run reached, from its result or, if there is none, from its epochs."""
    epoch, accuracy = run.best() or (None, None)
    losses = [] if run.epochs[-1].diverged else run.curve("train_loss")
    return {
        "validation": _first(_number(run.result.get("best_validation_accuracy")), accuracy),
        "at epoch": _first(_number(run.result.get("best_epoch")), epoch),
        "test": _number(run.result.get("test_accuracy")),
        "training loss": losses[-1][1] if losses else None,
        "step": _median(run.curve("median_step_seconds")),
        "images/s": _median(run.curve("images_per_second")),
    }


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)


def _median(curve: Sequence[tuple[float, float]]) -> float | None:
    return median(value for _, value in curve) if curve else None


def _best(values: Sequence[float | None], column: str) -> str | None:
    """The best value as text; None if all are equal, and for speeds, which also differ by chance."""
    known = [value for value in values if value is not None]
    if column not in BETTER or len({SHOW[column](value) for value in known}) < 2:
        return None
    return SHOW[column](BETTER[column](known))


def _epochs(run: Record) -> str:
    planned = _number(run.config.get("epochs"))
    done = run.epochs[-1].number
    return f"{done}" if planned is None or planned == done else f"{done} of {planned:.0f}"


TIMES = ("started", "resumed")  # always differ, so they are not marked


def fields(title: str, dictionaries: Sequence[dict[str, Any]]) -> Fields:
    """The fields in which the runs differ, and those they share."""
    every = list(dict.fromkeys(field for dictionary in dictionaries for field in dictionary))
    values = {field: [_value(dictionary, field) for dictionary in dictionaries] for field in every}
    differing = [field for field in every if len(set(values[field])) > 1]
    return Fields(
        title,
        [(field, _compared(values[field], field not in TIMES)) for field in differing],
        [(field, values[field][0]) for field in every if field not in differing],
    )


def _compared(values: Sequence[str], marks: bool) -> list[Cell]:
    """The cells of a row; those unlike the majority are marked."""
    (usual, count), *_ = Counter(values).most_common(1)
    majority = usual if count > len(values) / 2 else None
    return [Cell(value, marked=marks and value != majority) for value in values]


def _value(dictionary: dict[str, Any], field: str) -> str:
    if field not in dictionary:
        return formatting.UNKNOWN
    value = dictionary[field]
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


COLUMNS: dict[str, tuple[str, Callable[[float | None], str]]] = {
    "step": ("step", formatting.whole),
    "lr": ("lr", formatting.rate),
    "train_loss": ("training loss", formatting.loss),
    "train_accuracy": ("accuracy", formatting.accuracy),
    "validation_loss": ("validation loss", formatting.loss),
    "validation_accuracy": ("accuracy", formatting.accuracy),
    "images_per_second": ("images/s", formatting.count),
    "median_step_seconds": ("step time", formatting.milliseconds),
    "seconds": ("time", formatting.duration),
}
EPOCHS = ("epoch", *(label for label, _ in COLUMNS.values()))


def epochs(run: Record) -> list[tuple[int, list[Cell]]]:
    """(number, cells) of every epoch; the best validation accuracy is marked."""
    best = run.best()
    return [
        (
            epoch.number,
            [
                Cell(show(epoch.get(field)), marked=field == "validation_accuracy" and best == _score(epoch))
                for field, (_, show) in COLUMNS.items()
            ],
        )
        for epoch in run.epochs
    ]


def _score(epoch: Any) -> tuple[int, float | None]:
    return epoch.number, epoch.get("validation_accuracy")


def _number(value: Any) -> float | None:
    return float(value) if is_number(value) else None
