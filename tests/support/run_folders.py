"""Run folders as ``wnfused train`` leaves them, for tests that read them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def epoch(number: int, **changes: Any) -> dict[str, Any]:
    """A line of metrics.jsonl."""
    accuracy = number / (number + 1)
    line = {
        "epoch": number,
        "step": 40 * number,
        "lr": 0.1,
        "train_loss": 2.0 / number,
        "train_accuracy": accuracy,
        "validation_loss": 2.1 / number,
        "validation_accuracy": accuracy - 0.01,
        "seconds": 10.0,
        "images_per_second": 120.0,
        "median_step_seconds": 0.25,
    }
    return line | changes


def diverged(number: int) -> dict[str, Any]:
    lost = dict.fromkeys(("train_loss", "train_accuracy", "validation_loss", "validation_accuracy"))
    return epoch(number, diverged=True, **lost)


def write_run(
    folder: Path, lines: Sequence[dict[str, Any]] | None = None, *, status: str | None = "finished", **config: Any
) -> Path:
    """A run folder; ``status=None`` leaves out result.json, as while the run is going."""
    lines = [epoch(n) for n in (1, 2, 3)] if lines is None else lines
    folder.mkdir(parents=True)
    settings = {"model": "resnet20", "init": "robust", "lr": 0.1, "epochs": 3, "seed": 0} | config
    (folder / "config.json").write_text(json.dumps(settings))
    (folder / "environment.json").write_text(json.dumps({"torch": "2.13.0", "threads": 2}))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if status is not None:
        result = {"status": status, "best_epoch": 3, "best_validation_accuracy": 0.74, "test_accuracy": 0.7321}
        if status == "diverged":
            result |= {"best_epoch": None, "best_validation_accuracy": None, "test_accuracy": None}
        (folder / "result.json").write_text(json.dumps(result))
    return folder
