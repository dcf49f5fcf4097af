"""The folder of a run: what lies in it, that two runs never share it, and that nothing in it is ever half written."""

import json
import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from wnfused.train.errors import RunError, WriteError

FILES = ("config.json", "environment.json", "metrics.jsonl", "result.json")
FOLDERS = ("checkpoints", "plots", "tensorboard")


class RunFolder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self._lock: int | None = None

    def exists(self) -> bool:
        """Whether something lies here. A run killed before its first file counts for nothing: empty folders, a lock."""
        if not self.path.is_dir():
            return False
        entries = (entry for entry in self.path.iterdir() if entry.name != ".lock" and entry.suffix != ".tmp")
        return any(entry.name not in FOLDERS or any(entry.iterdir()) for entry in entries)

    def is_run(self) -> bool:
        return (self.path / "config.json").is_file()

    def make(self) -> None:
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"cannot make the run folder {self.path}: {error.strerror}") from None
        if not os.access(self.path, os.W_OK) or not os.access(self.checkpoints, os.W_OK):
            raise RunError(f"cannot write into the run folder {self.path}: permission denied")

    def clear(self) -> None:
        """Remove what an earlier run left, and nothing else."""
        try:
            for name in FILES:
                (self.path / name).unlink(missing_ok=True)
            for name in FOLDERS:
                if (self.path / name).exists():
                    shutil.rmtree(self.path / name)
        except OSError as error:
            raise WriteError(f"cannot clear the run folder {self.path}: {error.filename}: {error.strerror}") from None
        self.make()

    def lock(self) -> None:
        """Held until the process ends, however it ends."""
        try:
            import fcntl
        except ImportError:  # Windows
            return
        try:
            self._lock = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise RunError(f"cannot write into the run folder {self.path}: {error.strerror}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.unlock()
            raise RunError(f"another process is training in {self.path}") from None

    def unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def read(self, name: str) -> Any:
        """The content of a JSON file, or None where there is none."""
        try:
            return json.loads((self.path / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            raise RunError(f"cannot read {self.path / name}: {error}") from None

    def write(self, name: str, content: Any) -> None:
        write_atomically(self.path / name, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())

    def write_metrics(self, lines: Iterable[dict[str, Any]]) -> None:
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        write_atomically(self.path / "metrics.jsonl", text.encode())


def write_atomically(path: Path, content: bytes) -> None:
    with AtomicFile(path) as file:
        file.write(content)


class AtomicFile:
    """A file that appears under its name when it is complete and on the disk, or not at all."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")

    def __enter__(self) -> Any:
        try:
            self.file = self.temporary.open("wb")
        except OSError as error:
            raise WriteError(f"cannot write {self.path}: {error.strerror}") from None
        return self.file

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        try:
            if error is None:
                self.file.flush()
                os.fsync(self.file.fileno())
                self.file.close()
                self.temporary.replace(self.path)
                sync_folder(self.path.parent)
                return
        except OSError as refused:
            error = refused
        self._discard()
        cause = _cause(error)
        if isinstance(cause, OSError):
            raise WriteError(f"cannot write {self.path}: {cause.strerror or cause}") from None
        if cause is not None and cause is not error:
            raise cause from None

    def _discard(self) -> None:
        with suppress(OSError):  # what is still in its buffer goes nowhere either
            self.file.close()
        self.temporary.unlink(missing_ok=True)


def _cause(error: BaseException | None) -> BaseException | None:
    """torch.save turns a full disk, and Ctrl-C, into a RuntimeError with the cause behind it."""
    while error is not None and not isinstance(error, OSError | KeyboardInterrupt):
        error = error.__context__
    return error


def sync_folder(folder: Path) -> None:
    """Make a rename in it last."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # Windows has no such thing
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
