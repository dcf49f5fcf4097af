"""Atomic writes and locks."""

import multiprocessing
import sys
from pathlib import Path

import pytest

from wnfused.files import Locked, atomic_write, locked, write_atomically


def names(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir()]


def interrupted_write(path: Path) -> None:
    with atomic_write(path) as file:
        file.write(b"after")
        raise KeyboardInterrupt


def test_a_file_appears_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with atomic_write(path) as file:
        file.write(b"half")
        assert not path.exists()
        file.write(b" and half")
    assert path.read_bytes() == b"half and half" and names(tmp_path) == ["file"]


def test_what_was_there_survives_an_error(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"before")
    with pytest.raises(KeyboardInterrupt):
        interrupted_write(path)
    assert path.read_bytes() == b"before" and names(tmp_path) == ["file"]


def test_errors_of_the_file_system_come_through(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_atomically(tmp_path / "missing" / "file", b"")
    (tmp_path / "directory").mkdir()
    with pytest.raises(OSError, match="directory"):
        write_atomically(tmp_path / "directory", b"")
    assert names(tmp_path) == ["directory"]


def hold(path: Path, held: object, release: object) -> None:
    with locked(path):
        held.set()
        release.wait(60)


def test_a_lock_is_exclusive_and_dies_with_its_holder(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    held, release = context.Event(), context.Event()
    process = context.Process(target=hold, args=(tmp_path / "lock", held, release))
    process.start()
    assert held.wait(60)
    with pytest.raises(Locked), locked(tmp_path / "lock", wait=False):
        pytest.fail("two processes hold the lock")
    waited: list[str] = []
    with locked(tmp_path / "lock", on_wait=lambda: (waited.append("waited"), process.kill())):
        assert waited == ["waited"]
    process.join()


def test_without_fcntl_nothing_is_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with locked(tmp_path / "lock", wait=False), locked(tmp_path / "lock", wait=False):
        assert (tmp_path / "lock").exists()
