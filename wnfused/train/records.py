"""Reading run directories: configuration, environment, metrics and result.

A run may still be running, may have been killed while it wrote, or may have diverged. So every file may be missing or
incomplete: what cannot be read is left out and named in ``Record.notes``.
"""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wnfused.checks import is_integer, is_number

METRICS = "metrics.jsonl"
MOST_EPOCHS = 10**9  # a larger number is damage, and too large to plot


class RecordError(Exception):
    """Not a run directory, or one without any epoch; the message is one line."""


@dataclass(frozen=True)
class Epoch:
    """One line of metrics.jsonl; ``values`` contains its finite numbers."""

    number: int
    values: dict[str, float]
    diverged: bool = False

    def get(self, name: str) -> float | None:
        return self.values.get(name)


@dataclass(frozen=True)
class Record:
    """The content of a run directory."""

    path: Path
    config: dict[str, Any]
    environment: dict[str, Any]
    epochs: list[Epoch]
    result: dict[str, Any]  # empty until the run ends
    notes: list[str]  # missing and unreadable files and lines

    @property
    def status(self) -> str:
        """ "finished", "diverged", "interrupted", or "unfinished" if there is no result."""
        if status := self.result.get("status"):
            return str(status)
        return "diverged" if self.epochs[-1].diverged else "unfinished"

    @property
    def diverged(self) -> int | None:
        """The epoch in which the run diverged."""
        return self.epochs[-1].number if self.status == "diverged" else None

    def curve(self, name: str) -> list[tuple[float, float]]:
        """(epoch, value) for the epochs that have a value."""
        return [(epoch.number, value) for epoch in self.epochs if (value := epoch.get(name)) is not None]

    def best(self) -> tuple[int, float] | None:
        """(epoch, accuracy) of the best validation accuracy; the first epoch of equals."""
        curve = self.curve("validation_accuracy")
        if not curve:
            return None
        number, accuracy = max(curve, key=lambda point: point[1])
        return int(number), accuracy


def read(directory: Path) -> Record:
    """Read a run directory; raises RecordError."""
    try:
        exists = directory.is_dir()
    except OSError as error:  # for example a name that is too long
        raise RecordError(f"{directory}: {error.strerror or error}") from None
    if not exists:
        raise RecordError(f"{directory}: no such directory")
    if not (directory / METRICS).is_file():
        raise RecordError(
            f"{directory}: has no {METRICS}; it is not a run directory, or the first epoch has not finished"
        )
    notes: list[str] = []
    epochs = _epochs(directory / METRICS, notes)
    if not epochs:
        raise RecordError(f"{directory}: {METRICS} has no readable epoch")
    return Record(
        path=directory,
        config=_object(directory / "config.json", notes),
        environment=_object(directory / "environment.json", notes),
        epochs=epochs,
        result=_result(directory, epochs, notes),
        notes=notes,
    )


def find(directories: Iterable[Path]) -> list[Path]:
    """The run directories among ``directories``, and directly inside the others; without duplicates."""
    found: dict[Path, Path] = {}
    for directory in directories:
        for run in _inside(directory) or [directory]:
            found.setdefault(run.resolve(), run)
    return list(found.values())


def _inside(directory: Path) -> list[Path]:
    try:
        return [] if (directory / METRICS).is_file() else sorted(file.parent for file in directory.glob(f"*/{METRICS}"))
    except OSError:  # ``read`` reports it
        return []


def _result(directory: Path, epochs: list[Epoch], notes: list[str]) -> dict[str, Any]:
    file = directory / "result.json"
    if file.exists() or file.is_symlink():
        return _object(file, notes)
    if not epochs[-1].diverged:
        notes.append(f"no result.json: the run is still running, or was stopped after epoch {epochs[-1].number}")
    return {}


def _object(file: Path, notes: list[str]) -> dict[str, Any]:
    """The JSON object in a file; empty, with a note, if there is none."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        notes.append(f"no {file.name}")
        return {}
    except OSError as error:
        notes.append(f"cannot read {file.name}: {error.strerror or error}")
        return {}
    except (ValueError, RecursionError):
        notes.append(f"{file.name} is not valid JSON (truncated, or not written by a run)")
        return {}
    if not isinstance(value, dict):
        notes.append(f"{file.name} is not a JSON object")
        return {}
    return value


def _epochs(file: Path, notes: list[str]) -> list[Epoch]:
    """The epochs in order; the last line counts if an epoch was repeated after an interruption."""
    try:
        text = file.read_bytes().decode("utf-8", errors="replace")
    except OSError as error:
        raise RecordError(f"cannot read {file}: {error.strerror or error}") from None
    epochs: dict[int, Epoch] = {}
    lines = text.split("\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        epoch = _epoch(line)
        if epoch is not None:
            epochs[epoch.number] = epoch
        elif number == len(lines):  # no newline at its end
            notes.append(f"skipped the last line of {METRICS}, which is incomplete")
        else:
            notes.append(f"skipped line {number} of {METRICS}, which is not an epoch")
    return [epochs[number] for number in sorted(epochs)]


def _epoch(line: str) -> Epoch | None:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict):
        return None
    number = fields.pop("epoch", None)
    if not is_integer(number) or not 1 <= number <= MOST_EPOCHS:
        return None
    values = {name: float(value) for name, value in fields.items() if _is_finite(value)}
    return Epoch(number, values, fields.get("diverged") is True)


def _is_finite(value: Any) -> bool:
    if not is_number(value):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an int beyond float
        return False
