"""Checkpoints: the state of a run between two steps, in files that are complete or absent, each with a digest.

A checkpoint holds plain tensors and numbers, so that any number of processes can resume from it, and it is read with
``weights_only=True``: no code in it is run.

The digest covers every byte of the file. The checksums that torch.save writes cover the entries of its zip archive but
not the archive's headers, and torch.load checks none of them: a flipped bit in a header can raise almost any error, or
hide a tensor. The digest is the archive's comment, the last field of a zip file, so plain torch.load still reads the
checkpoint. A separate file could belong to an earlier checkpoint after a crash between two renames.
"""

from __future__ import annotations

import hashlib
import os
import random
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import torch
from torch import Tensor, nn
from torch.optim import SGD

from wnfused.train.distributed import local, part_like, whole
from wnfused.train.metrics import Meter
from wnfused.train.result import RunError
from wnfused.train.run_directory import writing

if TYPE_CHECKING:
    from wnfused.train.loop import Trainer

FORMAT = "wnfused training checkpoint 1"
KEYS = {"format", "config", "model", "optimizer", "ema", "scaler", "position", "meter", "history", "best", "random"}
BEST = "best.pt"
BEST_KEYS = {"format", "model", "epoch", "validation_accuracy"}
NAME = re.compile(r"step-(\d{8,})\.pt")
State = dict[str, Any]


# The state of a run


def capture(run: Trainer) -> State:
    """The content of a checkpoint. All ranks must call it. The learning rate follows from the step."""
    return {
        "config": run.config.as_dict(),
        "model": model_state(run.model),
        "optimizer": optimizer_state(run.model, run.optimizer),
        "ema": run.ema.state() if run.ema is not None else None,
        "scaler": run.scaler.state_dict(),
        "position": {"epoch": run.epoch, "batch": run.batch, "step": run.step, "seconds": run.seconds},
        "meter": run.meter.state(),
        "history": run.history,
        "best": run.best,
        "random": random_state(),
    }


def capture_best(run: Trainer) -> State:
    """The content of ``best.pt``: the weights, and what is needed to build the network. All ranks must call it."""
    return {
        **run.best,
        "model": model_state(run.model),
        "config": run.config.as_dict(),
        "shape": list(run.images.shape),
        "classes": run.images.classes,
    }


def restore(run: Trainer, saved: State) -> None:
    """Restore all but the model's weights, which are loaded before the model is distributed."""
    load_optimizer(run.model, run.optimizer, saved["optimizer"])
    if run.ema is not None:
        run.ema.load(saved["ema"])
    if run.scaler.is_enabled():
        run.scaler.load_state_dict(saved["scaler"])
    position = saved["position"]
    run.epoch, run.batch, run.step = position["epoch"], position["batch"], position["step"]
    run.seconds, run.history, run.best = position["seconds"], saved["history"], saved["best"]
    run.meter = Meter(**saved["meter"])
    load_random(saved["random"])


def model_state(model: nn.Module) -> dict[str, Tensor]:
    return {name: whole(tensor) for name, tensor in model.state_dict().items()}


def load_model(model: nn.Module, state: dict[str, Tensor]) -> None:
    """Load whole tensors in place, also into a sharded model."""
    own = model.state_dict()
    with torch.no_grad():
        for name, tensor in own.items():
            local(tensor).copy_(local(part_like(state[name], tensor)))


def optimizer_state(model: nn.Module, optimizer: SGD) -> dict[str, Tensor]:
    """The momentum buffers by parameter name."""
    state = {name: optimizer.state[parameter] for name, parameter in model.named_parameters()}
    return {
        name: whole(entry["momentum_buffer"])
        for name, entry in state.items()
        if entry.get("momentum_buffer") is not None
    }


def load_optimizer(model: nn.Module, optimizer: SGD, state: dict[str, Tensor]) -> None:
    for name, parameter in model.named_parameters():
        if name in state:
            optimizer.state[parameter]["momentum_buffer"] = part_like(state[name], parameter).clone()


def random_state() -> State:
    """The training loop does not use the global generators; a user's network may (dropout)."""
    version, words, gauss = random.getstate()
    return {
        "python": [version, torch.tensor(words), gauss],  # a list of 625 numbers is slow to write
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def load_random(state: State) -> None:
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words.tolist()), gauss))
    torch.set_rng_state(state["torch"])
    if torch.cuda.is_available() and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])


# Files


def save(state: State, path: Path) -> None:
    """Raises WriteError on a full disk; an earlier file at ``path`` is then intact."""
    with writing(path) as file:
        write_with_digest({"format": FORMAT, **state}, file)


def save_step(state: State, directory: Path, step: int, keep: int) -> Path:
    """Save the checkpoint of a step and delete all but the last ``keep``."""
    path = directory / f"step-{step:08d}.pt"
    save(state, path)
    for other in steps(directory):
        if number(other) > step:  # belongs to an abandoned attempt: this run resumed from an earlier checkpoint
            other.unlink(missing_ok=True)
    for old in steps(directory)[keep:]:
        old.unlink(missing_ok=True)
    return path


def steps(directory: Path) -> list[Path]:
    """The checkpoints, the latest first."""
    found = [path for path in directory.glob("step-*.pt") if NAME.fullmatch(path.name)]
    return sorted(found, key=number, reverse=True)


def number(path: Path) -> int:
    match = NAME.fullmatch(path.name)
    assert match is not None
    return int(match[1])


def latest(directory: Path, say: Callable[[str], None]) -> State | None:
    """The latest usable checkpoint, or None if there is no checkpoint; ``say`` reports each one that is skipped."""
    found = steps(directory)
    for path in found:
        try:
            return load(path, KEYS)
        except Unusable as error:
            say(f"skipped checkpoint {path}: {error}")
    if found:
        raise RunError(
            f"resume: none of the {len(found)} checkpoints in {directory} is usable; pass force=True to start again"
        )
    return None


class Unusable(Exception):
    """A checkpoint that is damaged or was written by another program."""


def load(path: Path, keys: set[str] = BEST_KEYS) -> State:
    """The content of a checkpoint; raises only Unusable.

    Checkpoints of versions that wrote no digest are rejected too: an intact one cannot be told from a damaged one.
    """
    try:
        with path.open("rb") as file:  # opened once, so that the file that is checked is the file that is loaded
            check_digest(file)
            state = torch.load(file, map_location="cpu", weights_only=True)
    except Unusable:
        raise
    except OSError as error:
        raise Unusable(f"it cannot be read ({error.strerror or error})") from None
    except Exception as error:  # torch raises almost anything for a foreign file
        raise Unusable(f"torch cannot load it: {str(error).splitlines()[0] if str(error) else error!r}") from None
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise Unusable("it was written by another program or version")
    if missing := keys - state.keys():
        raise Unusable(f"it lacks {', '.join(sorted(missing))}")
    return state


def delete_temporary_files(directory: Path) -> None:
    """Delete the temporary files of a process that was killed while it wrote."""
    for left in directory.glob(".*.tmp"):
        left.unlink(missing_ok=True)


def load_best(directory: Path) -> State:
    try:
        return load(directory / BEST)
    except Unusable as error:
        raise RunError(f"cannot use the best weights {directory / BEST}: {error}") from None


# The digest

MARK = b"wnfused sha256 "
COMMENT = len(MARK) + 2 * hashlib.sha256().digest_size
NO_COMMENT = b"\0\0"  # the length of the comment in an archive without one: the last two bytes that torch writes
END_SIGNATURE, END_SIZE = b"PK\5\6", 22  # of the record that ends a zip archive, without a comment
TAIL = len(NO_COMMENT) + COMMENT
CHUNK = 1 << 20


def write_with_digest(state: Any, file: BinaryIO) -> None:
    """torch.save, and a digest of all its bytes at the end of the file."""
    writer = _HashingWriter(file)
    torch.save(state, writer)  # type: ignore[arg-type]  # torch only calls write and flush
    if not (writer.end.startswith(END_SIGNATURE) and writer.end.endswith(NO_COMMENT)):
        raise RuntimeError("torch.save: its file does not end as a zip archive without a comment; cannot add a digest")
    file.seek(-len(NO_COMMENT), os.SEEK_END)
    file.write(_tail(writer.digest))


def check_digest(file: BinaryIO) -> None:
    """Raise Unusable unless every byte is what ``write_with_digest`` wrote; leaves the file at its start."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - TAIL))
    tail = file.read()
    if len(tail) < TAIL or not tail[len(NO_COMMENT) :].startswith(MARK):
        if zipfile.is_zipfile(file):
            raise Unusable("it has no digest: another program or version wrote it, or its last bytes are damaged")
        raise Unusable("it is truncated or not a checkpoint")
    digest = hashlib.sha256()
    left = size - TAIL
    file.seek(0)
    while left and (chunk := file.read(min(CHUNK, left))):
        digest.update(chunk)
        left -= len(chunk)
    digest.update(NO_COMMENT)
    if _tail(digest) != tail:
        raise Unusable("it is damaged (its digest does not match)")
    file.seek(0)


def _tail(digest: hashlib._Hash) -> bytes:
    """The last bytes of a file: the length of the comment, and the comment."""
    return COMMENT.to_bytes(2, "little") + MARK + digest.hexdigest().encode()


class _HashingWriter:
    """Hashes what torch writes, which it writes in order."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.digest, self.end = file, hashlib.sha256(), b""

    def write(self, content: Any) -> int:
        self.digest.update(content)
        self.end = (self.end + bytes(content[-END_SIZE:]))[-END_SIZE:]
        return self.file.write(content)

    def flush(self) -> None:
        self.file.flush()
