"""The directory of a run: its files, each written atomically, and a lock that keeps two runs out of one directory."""

import datetime
import json
import os
import platform
import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import torch

import wnfused
from wnfused import files
from wnfused.ops import backends
from wnfused.train.config import Config
from wnfused.train.distributed import World
from wnfused.train.result import RunError, WriteError

FILES = ("config.json", "environment.json", "metrics.jsonl", "result.json")
DIRECTORIES = ("checkpoints", "plots", "tensorboard")


class RunDirectory:
    """As a context manager it releases its lock at the end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self._lock = ExitStack()

    def __enter__(self) -> "RunDirectory":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.unlock()

    def has_content(self) -> bool:
        """False for empty subdirectories, a lock and temporary files: a run was killed before it wrote a file."""
        if not self.path.is_dir():
            return False
        entries = (entry for entry in self.path.iterdir() if entry.name != ".lock" and entry.suffix != ".tmp")
        return any(entry.name not in DIRECTORIES or any(entry.iterdir()) for entry in entries)

    def is_run(self) -> bool:
        return (self.path / "config.json").is_file()

    def create(self) -> None:
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"run_dir: cannot create '{self.path}': {error.strerror}") from None
        if not os.access(self.path, os.W_OK) or not os.access(self.checkpoints, os.W_OK):
            raise RunError(f"run_dir: cannot write to '{self.path}': Permission denied")

    def clear(self) -> None:
        """Remove the files of an earlier run, and nothing else."""
        try:
            for name in FILES:
                (self.path / name).unlink(missing_ok=True)
            for name in DIRECTORIES:
                if (self.path / name).exists():
                    shutil.rmtree(self.path / name)
        except OSError as error:
            raise WriteError(f"run_dir: cannot clear '{self.path}': {error.filename}: {error.strerror}") from None
        self.create()

    def lock(self) -> None:
        """Hold the lock until ``unlock`` or the end of the process, even if it is killed."""
        try:
            self._lock.enter_context(files.locked(self.path / ".lock", wait=False))
        except files.Locked:
            raise RunError(f"run_dir: another process is training in '{self.path}'; choose another directory") from None
        except OSError as error:
            raise RunError(f"run_dir: cannot write to '{self.path}': {error.strerror}") from None

    def unlock(self) -> None:
        self._lock.close()

    def read(self, name: str) -> Any:
        """The content of a JSON file, or None if there is no such file."""
        try:
            return json.loads((self.path / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            raise RunError(f"cannot read {self.path / name}: {error}") from None

    def write(self, name: str, content: Any) -> None:
        write_file(self.path / name, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())

    def write_metrics(self, lines: Iterable[dict[str, Any]]) -> None:
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        write_file(self.path / "metrics.jsonl", text.encode())


def write_file(path: Path, content: bytes) -> None:
    """Write atomically; raises WriteError."""
    with writing(path) as file:
        file.write(content)


@contextmanager
def writing(path: Path) -> Iterator[BinaryIO]:
    """``files.atomic_write`` that raises WriteError for errors of the file system."""
    try:
        with files.atomic_write(path) as file:
            yield file
    except BaseException as error:
        cause = _cause(error)
        if isinstance(cause, OSError):
            raise WriteError(f"cannot write {path}: {cause.strerror or cause}") from None
        if cause is not None and cause is not error:
            raise cause from None
        raise


def _cause(error: BaseException | None) -> BaseException | None:
    """The OSError or KeyboardInterrupt behind an error: torch.save raises a RuntimeError for both."""
    while error is not None and not isinstance(error, OSError | KeyboardInterrupt):
        error = error.__context__
    return error


def describe_environment(config: Config, world: World) -> dict[str, Any]:
    """The content of ``environment.json``."""
    return {
        "wnfused": wnfused.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": cpu_name(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else "cpu",
        "backend": backends.resolve(world.device).name if config.impl == "wnfused" else "torch's weight_norm",
        "world_size": world.size,
        "seed": config.seed,
        "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
