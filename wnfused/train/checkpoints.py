"""Checkpoints on disk: whole or not there, the last few kept, and read without running any code in them."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from wnfused.train import digest
from wnfused.train.errors import RunError
from wnfused.train.run_folder import AtomicFile

FORMAT = "wnfused training checkpoint 1"
KEYS = {"format", "config", "model", "optimizer", "ema", "scaler", "position", "meter", "history", "best", "random"}
BEST = "best.pt"
BEST_KEYS = {"format", "model", "epoch", "validation_accuracy"}
NAME = re.compile(r"step-(\d{8,})\.pt")
Payload = dict[str, Any]


def save(payload: Payload, path: Path) -> None:
    """Raises WriteError on a full disk; whatever had the name before is intact then."""
    with AtomicFile(path) as file:
        digest.save({"format": FORMAT, **payload}, file)


def save_step(payload: Payload, folder: Path, step: int, keep: int) -> Path:
    path = folder / f"step-{step:08d}.pt"
    save(payload, path)
    # Not by their numbers alone: after a return to an earlier checkpoint later ones are of another life.
    for other in steps(folder):
        if number(other) > step:
            other.unlink(missing_ok=True)
    for old in steps(folder)[keep:]:
        old.unlink(missing_ok=True)
    return path


def steps(folder: Path) -> list[Path]:
    """The checkpoints, the latest first."""
    found = [path for path in folder.glob("step-*.pt") if NAME.fullmatch(path.name)]
    return sorted(found, key=number, reverse=True)


def number(path: Path) -> int:
    match = NAME.fullmatch(path.name)
    assert match is not None
    return int(match[1])


def latest(folder: Path, say: Callable[[str], None]) -> Payload | None:
    """The latest checkpoint that can be used; ``say`` is told of each that cannot. None where there are none at all."""
    found = steps(folder)
    for path in found:
        try:
            return load(path, KEYS)
        except Unusable as error:
            say(f"skipped checkpoint {path}: {error}")
    if found:
        raise RunError(f"none of the {len(found)} checkpoints in {folder} can be used; --force starts anew")
    return None


class Unusable(Exception):
    """A checkpoint that is damaged or not ours."""


def load(path: Path, keys: set[str] = BEST_KEYS) -> Payload:
    """Raises Unusable for a file that is not, byte for byte, a checkpoint of this format, and nothing else.

    Checkpoints from before there was a digest are refused too: nothing tells a whole one from a damaged one, and the
    version that wrote them can resume its runs.
    """
    try:
        with path.open("rb") as file:  # opened once: what was checked is what is loaded
            digest.check(file)
            payload = torch.load(file, map_location="cpu", weights_only=True)
    except digest.Damaged as error:
        raise Unusable(str(error)) from None
    except OSError as error:
        raise Unusable(f"it cannot be read ({error.strerror or error})") from None
    except Exception as error:  # whatever a foreign file makes torch raise
        raise Unusable(f"torch cannot load it: {str(error).splitlines()[0] if str(error) else error!r}") from None
    if not isinstance(payload, dict) or payload.get("format") != FORMAT:
        raise Unusable("it is of another program or version")
    if missing := keys - payload.keys():
        raise Unusable(f"it lacks {', '.join(sorted(missing))}")
    return payload


def sweep(folder: Path) -> None:
    """Remove the temporary files of a process that was killed while it wrote."""
    for left in folder.glob(".*.tmp"):
        left.unlink(missing_ok=True)


def load_best(folder: Path) -> Payload:
    try:
        return load(folder / BEST)
    except Unusable as error:
        raise RunError(f"the best weights, {folder / BEST}, cannot be used: {error}") from None
