"""Checkpoint files are complete or absent; damaged and foreign ones are skipped with a message."""

import errno
import os
import pickle
import random
import resource
import signal
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.train_cases import config, same, use
from wnfused import files
from wnfused.train import RunError, WriteError, checkpoints, train
from wnfused.train.checkpoints import FORMAT, KEYS, Unusable, latest, load, save, save_step, steps, write_with_digest
from wnfused.train.run_directory import RunDirectory


def payload(number: int = 0) -> dict[str, Any]:
    return {key: None for key in KEYS if key != "format"} | {"model": {"w": torch.full((1000,), float(number))}}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for number in (1, 2, 3):
        save_step(payload(number), tmp_path, number, keep=5)
    return tmp_path


def newest(directory: Path) -> tuple[float, list[str]]:
    messages: list[str] = []
    found = latest(directory, messages.append)
    assert found is not None
    return found["model"]["w"][0].item(), messages


def test_the_last_few_are_kept(tmp_path: Path) -> None:
    for number in range(1, 6):
        save_step(payload(number), tmp_path, 10 * number, keep=2)
    assert [path.name for path in steps(tmp_path)] == ["step-00000050.pt", "step-00000040.pt"]
    assert newest(tmp_path) == (5.0, [])
    # After resuming from an earlier step, later checkpoints belong to an abandoned attempt.
    save_step(payload(9), tmp_path, 45, keep=2)
    assert [path.name for path in steps(tmp_path)] == ["step-00000045.pt", "step-00000040.pt"]


def test_no_checkpoint_is_not_an_error(tmp_path: Path) -> None:
    assert latest(tmp_path, lambda text: None) is None


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


class Harmful:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("harm",)


def sealed(content: Any, path: Path) -> None:
    """Write a foreign file with a digest."""
    with path.open("wb") as file:
        write_with_digest(content, file)


def write_without_digest(path: Path) -> None:
    """Write a checkpoint as versions without a digest did."""
    torch.save({"format": FORMAT, **payload(3)}, path)


DAMAGES = {
    "empty": (lambda path: path.write_bytes(b""), "truncated or not a checkpoint"),
    "truncated": (truncate, "truncated or not a checkpoint"),
    "a text": (lambda path: path.write_text("hello"), "truncated or not a checkpoint"),
    "a flipped bit": (flip_a_bit, "damaged (its digest"),
    "a directory": (lambda path: (path.unlink(), path.mkdir()), "cannot be read (Is a directory)"),
    "no digest": (write_without_digest, "no digest: another program or version wrote it"),
    "other weights": (lambda path: torch.save({"w": torch.zeros(2)}, path), "another program or version"),
    "other weights with a digest": (lambda path: sealed({"w": torch.zeros(2)}, path), "another program or version"),
    "another version": (lambda path: sealed({"format": "wnfused 0"}, path), "another program or version"),
    "half a payload": (lambda path: save({"model": {}}, path), "lacks best, config, ema"),
    "code": (lambda path: sealed({"format": Harmful()}, path), "torch cannot load it"),
    "a pickle": (lambda path: path.write_bytes(pickle.dumps(Harmful())), "truncated or not a checkpoint"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_bad_checkpoint_is_named_and_skipped(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    monkeypatch.chdir(tmp_path)
    spoil, reason = DAMAGES[damage]
    spoil(directory / "step-00000003.pt")
    value, messages = newest(directory)
    assert value == 2.0
    assert (
        len(messages) == 1 and "step-00000003.pt" in messages[0] and reason in messages[0] and "\n" not in messages[0]
    )
    assert not (tmp_path / "harm").exists()


def mutations(content: bytes, count: int) -> Iterator[bytes]:
    """Every bit of the first header and of the last 600 bytes, where the directory, the end record and the digest are;
    then random bits, truncations, missing and repeated ranges.
    """
    places = [8 * byte + bit for byte in (*range(64), *range(len(content) - 600, len(content))) for bit in range(8)]
    chance = random.Random(7)
    places += [chance.randrange(8 * len(content)) for _ in range(count)]
    for place in places:
        yield content[: place // 8] + bytes([content[place // 8] ^ 1 << place % 8]) + content[place // 8 + 1 :]
    for length in (*range(200), *range(len(content) - 200, len(content)), *chance.sample(range(len(content)), 200)):
        yield content[:length]
    for _ in range(100):
        start, stop = sorted(chance.sample(range(len(content) + 1), 2))
        yield content[:start] + content[stop:]
        yield content[:stop] + content[start:]
        yield content[:start] + bytes(stop - start) + content[stop:]
        yield content + content[start:stop]


@pytest.mark.parametrize("name", ["step-00000003.pt", "best.pt"])
def test_any_damage_raises_unusable_and_nothing_else(directory: Path, name: str) -> None:
    path = directory / name
    keys = KEYS if name != "best.pt" else checkpoints.BEST_KEYS
    optimizer = {f"layer.{i}": torch.full((3,), float(i)) for i in range(3)}
    save(payload(3) | {"optimizer": optimizer, "epoch": 1, "validation_accuracy": 0.5}, path)
    whole, reasons = path.read_bytes(), set()
    assert load(path, keys)["epoch"] == 1
    for content in mutations(whole, 2000):
        if content == whole:  # a range of zeros replaced by zeros
            continue
        path.write_bytes(content)
        with pytest.raises(Unusable) as refusal:
            load(path, keys)
        reasons.add(str(refusal.value))
        if name == "best.pt":
            with pytest.raises(RunError, match="cannot use the best weights .*best.pt: it "):
                checkpoints.load_best(directory)
        else:
            messages: list[str] = []
            found = latest(directory, messages.append)
            assert found is not None and found["model"]["w"][0] == 2.0
            assert len(messages) == 1 and path.name in messages[0] and "\n" not in messages[0]
    assert len(reasons) == 3, reasons
    path.write_bytes(whole)
    assert load(path, keys)["optimizer"].keys() == optimizer.keys()


def test_a_checkpoint_is_still_one_file_that_torch_loads(directory: Path) -> None:
    assert sorted(path.name for path in directory.iterdir()) == [f"step-0000000{number}.pt" for number in (1, 2, 3)]
    path = directory / "step-00000003.pt"
    assert torch.load(path, weights_only=True)["model"]["w"][0] == 3.0
    assert torch.load(path, weights_only=True, mmap=True)["model"]["w"][0] == 3.0
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None and archive.comment.startswith(b"wnfused sha256 ")


def test_a_checkpoint_larger_than_a_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for chunk in (7, 1000):
        monkeypatch.setattr(checkpoints, "CHUNK", chunk)
        save(payload(5), tmp_path / "best.pt")
        assert load(tmp_path / "best.pt", KEYS)["model"]["w"][0] == 5.0


def test_another_file_format_of_torch_is_detected_when_saving(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = torch.save

    def with_a_comment(content: Any, file: Any) -> None:
        write(content, file)
        file.write(b"signed")

    monkeypatch.setattr(torch, "save", with_a_comment)
    with pytest.raises(RuntimeError, match="cannot add a digest"):
        save_step(payload(4), directory, 4, keep=5)
    assert newest(directory) == (3.0, [])


def test_if_no_checkpoint_is_usable_resume_fails(directory: Path) -> None:
    for path in steps(directory):
        truncate(path)
    with pytest.raises(
        RunError, match="resume: none of the 3 checkpoints .* is usable; pass force=True to start again"
    ):
        latest(directory, lambda text: None)
    with pytest.raises(Unusable):
        load(steps(directory)[0])


class FullDisk:
    """A file that accepts ``room`` bytes."""

    def __init__(self, file: Any, room: int) -> None:
        self.file, self.room = file, room

    def write(self, content: Any) -> int:
        self.room -= len(content)
        if self.room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self.file.write(content)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


class CtrlC:
    """A file that receives Ctrl-C in its n-th write."""

    def __init__(self, file: Any, at: int) -> None:
        self.file, self.left = file, at

    def write(self, content: Any) -> int:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt(signal.SIGINT)
        return self.file.write(content)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


def through(monkeypatch: pytest.MonkeyPatch, wrap: Callable[[Any], Any]) -> None:
    """Atomic writes go through the file that ``wrap`` makes."""
    original = files.atomic_write

    @contextmanager
    def wrapped(path: Path) -> Iterator[Any]:
        with original(path) as file:
            yield wrap(file)

    monkeypatch.setattr(files, "atomic_write", wrapped)


@pytest.mark.parametrize("at", [1, 2, 5, 9, 20, 40])
def test_ctrl_c_in_the_middle_of_a_checkpoint(directory: Path, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """torch.save raises a RuntimeError for it."""
    through(monkeypatch, lambda file: CtrlC(file, at))
    with pytest.raises(KeyboardInterrupt) as stop:
        save_step(payload(4), directory, 4, keep=1)
    assert stop.value.args == (signal.SIGINT,)
    assert len(list(directory.iterdir())) == 3 and newest(directory) == (3.0, [])


@pytest.mark.parametrize("room", [0, 500, 3000])
def test_a_full_disk_leaves_the_earlier_checkpoint(directory: Path, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    through(monkeypatch, lambda file: FullDisk(file, room))
    before = sorted(path.name for path in directory.iterdir())
    for number in (3, 4):  # a name that is taken, and a new one
        with pytest.raises(WriteError) as refusal:
            save_step(payload(number), directory, number, keep=1)
        assert str(refusal.value) == f"cannot write {directory}/step-0000000{number}.pt: No space left on device"
    assert sorted(path.name for path in directory.iterdir()) == before
    assert newest(directory) == (3.0, [])


def test_an_error_of_the_operating_system(directory: Path) -> None:
    """With a limit on file sizes, writes fail in the kernel as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
    try:
        with pytest.raises(WriteError, match="File too large"):
            save_step(payload(4), directory, 4, keep=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert newest(directory) == (3.0, [])
    assert len(list(directory.iterdir())) == 3


def test_a_run_on_a_full_disk_raises_and_can_be_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch)
    train(config(), tmp_path / "wanted")
    original = checkpoints.save_step

    def full(payload: Any, directory: Path, step: int, keep: int) -> Path:
        if step > 10:
            raise WriteError("cannot write: No space left on device")
        return original(payload, directory, step, keep)

    monkeypatch.setattr(checkpoints, "save_step", full)
    with pytest.raises(WriteError, match="No space left"):
        train(config(), tmp_path / "a")
    monkeypatch.setattr(checkpoints, "save_step", original)
    assert train(config(), tmp_path / "a", resume=True).status == "finished"
    ends = [load(steps(tmp_path / name / "checkpoints")[0], KEYS) for name in ("a", "wanted")]
    assert same(ends[0]["model"], ends[1]["model"])


def test_temporary_files_of_a_killed_process_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch)
    train(config(epochs=1), tmp_path / "a")
    left = tmp_path / "a" / "checkpoints" / ".step-00000009.pt.123.tmp"
    left.write_bytes(b"half")
    train(config(epochs=2), tmp_path / "a", resume=True)
    assert not left.exists()


def test_two_processes_never_train_in_one_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch)
    other = RunDirectory(tmp_path / "a")
    other.create()
    other.lock()
    with pytest.raises(RunError, match="run_dir: another process is training in"):
        train(config(), tmp_path / "a")
    other.unlock()
    assert train(config(epochs=1), tmp_path / "a").status == "finished"
