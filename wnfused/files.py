"""Files that appear whole or not at all, and locks between processes that die with their holder."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


class Locked(Exception):
    """Another process holds the lock."""


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """A file to write to that takes its name when it is complete and on the disk.

    If the block raises, nothing changes at ``path`` and the temporary file is removed.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)


def write_atomically(path: Path, content: bytes) -> None:
    with atomic_write(path) as file:
        file.write(content)


def _sync_directory(directory: Path) -> None:
    """Makes a rename in it durable."""
    try:
        handle = os.open(directory, os.O_RDONLY)
    except OSError:  # Windows cannot open a directory
        return
    try:
        with suppress(OSError):  # some network file systems cannot sync one
            os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def locked(path: Path, *, wait: bool = True, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Holds an exclusive lock on ``path``, which is created if needed.

    If another process holds it, calls ``on_wait`` once and waits; with ``wait=False`` it raises ``Locked`` instead.
    Windows has no such locks: nothing is locked there.
    """
    with path.open("ab") as handle:
        try:
            import fcntl
        except ImportError:
            yield
            return
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not wait:
                raise Locked(str(path)) from None
            on_wait()
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
