"""Reading a run folder: what was configured, what was measured, how it ended.

A run may still be going, may have been killed while it wrote, or may have diverged. So nothing here trusts a file to be
there or to be whole: what cannot be read is left out and named in ``Record.notes``.
"""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

METRICS = "metrics.jsonl"


class RecordError(Exception):
    """Not a run folder, or one without a single measured epoch; the message is one line."""


@dataclass(frozen=True)
class Epoch:
    """One line of metrics.jsonl; ``values`` holds its finite numbers."""

    number: int
    values: dict[str, float]
    diverged: bool = False

    def get(self, name: str) -> float | None:
        return self.values.get(name)


@dataclass(frozen=True)
class Record:
    """A run as its folder tells it."""

    path: Path
    config: dict[str, Any]
    environment: dict[str, Any]
    epochs: list[Epoch]
    result: dict[str, Any]  # empty until the run has ended
    notes: list[str]  # what was missing or could not be read

    @property
    def status(self) -> str:
        """ "finished", "diverged", "interrupted", or "unfinished" where there is no result yet."""
        if status := self.result.get("status"):
            return str(status)
        return "diverged" if self.epochs[-1].diverged else "unfinished"

    @property
    def diverged(self) -> int | None:
        """The epoch in which the run diverged."""
        return self.epochs[-1].number if self.status == "diverged" else None

    def curve(self, name: str) -> list[tuple[float, float]]:
        """(epoch, value) where there is a value."""
        return [(epoch.number, value) for epoch in self.epochs if (value := epoch.get(name)) is not None]

    def best(self) -> tuple[int, float] | None:
        """The epoch with the best validation accuracy, the first of equals, and that accuracy."""
        curve = self.curve("validation_accuracy")
        if not curve:
            return None
        number, accuracy = max(curve, key=lambda point: point[1])
        return int(number), accuracy


def read(folder: Path) -> Record:
    try:
        there = folder.is_dir()
    except OSError as error:  # a name no file system takes
        raise RecordError(f"{folder}: {error.strerror or error}") from None
    if not there:
        raise RecordError(f"{folder}: no such run folder")
    if not (folder / METRICS).is_file():
        raise RecordError(f"{folder}: no {METRICS} in it, so it is not a run folder, or its first epoch is not over")
    notes: list[str] = []
    epochs = _epochs(folder / METRICS, notes)
    if not epochs:
        raise RecordError(f"{folder}: no readable epoch in its {METRICS}")
    return Record(
        path=folder,
        config=_object(folder / "config.json", notes),
        environment=_object(folder / "environment.json", notes),
        epochs=epochs,
        result=_result(folder, epochs, notes),
        notes=notes,
    )


def find(folders: Iterable[Path]) -> list[Path]:
    """The run folders that are meant: each one itself, or the run folders inside one that is none; no one twice."""
    found: dict[Path, Path] = {}
    for folder in folders:
        for run in _inside(folder) or [folder]:
            found.setdefault(run.resolve(), run)
    return list(found.values())


def _inside(folder: Path) -> list[Path]:
    try:
        return [] if (folder / METRICS).is_file() else sorted(file.parent for file in folder.glob(f"*/{METRICS}"))
    except OSError:  # reading the folder itself will tell
        return []


def _result(folder: Path, epochs: list[Epoch], notes: list[str]) -> dict[str, Any]:
    file = folder / "result.json"
    if file.exists() or file.is_symlink():
        return _object(file, notes)
    if not epochs[-1].diverged:
        notes.append(f"no result.json: the run is still going, or was stopped after epoch {epochs[-1].number}")
    return {}


def _object(file: Path, notes: list[str]) -> dict[str, Any]:
    """The JSON object in a file; empty, with a note, where there is none."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        notes.append(f"no {file.name}")
        return {}
    except OSError as error:
        notes.append(f"{file.name} cannot be read: {error.strerror or error}")
        return {}
    except (ValueError, RecursionError):
        notes.append(f"{file.name} is not readable JSON (cut off, or not written by a run)")
        return {}
    if not isinstance(value, dict):
        notes.append(f"{file.name} holds no JSON object")
        return {}
    return value


def _epochs(file: Path, notes: list[str]) -> list[Epoch]:
    """The epochs in order; of an epoch that was trained again after a stop, the last line counts."""
    try:
        text = file.read_bytes().decode("utf-8", errors="replace")
    except OSError as error:
        raise RecordError(f"{file}: cannot be read: {error.strerror or error}") from None
    epochs: dict[int, Epoch] = {}
    lines = text.split("\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        epoch = _epoch(line)
        if epoch is not None:
            epochs[epoch.number] = epoch
        elif number == len(lines):  # no newline at its end: it was being written
            notes.append(f"the last line of {METRICS} is cut off, as while it is being written: left out")
        else:
            notes.append(f"line {number} of {METRICS} is not an epoch: left out")
    return [epochs[number] for number in sorted(epochs)]


def _epoch(line: str) -> Epoch | None:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict):
        return None
    number = fields.pop("epoch", None)
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        return None
    values = {name: float(value) for name, value in fields.items() if _is_finite(value)}
    return Epoch(number, values, fields.get("diverged") is True)


def _is_finite(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an int beyond float
        return False
