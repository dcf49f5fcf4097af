"""The outcomes of an experiment's jobs, one JSON line each: written when a job ends, never changed.

A process may be killed at any moment. A line that was being written then has no newline at its end and is dropped; all
others are on the disk.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wnfused.experiments.jobs import Job, Outcome
from wnfused.files import write_atomically
from wnfused.train import RunError


class Ledger:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._outcomes: dict[str, Outcome] = {}
        if path.exists():
            self._read()

    def _read(self) -> None:
        content = self.path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        for number, line in enumerate(whole.splitlines(), start=1):
            try:
                entry = json.loads(line)
                self._outcomes[entry["key"]] = entry["outcome"]
            except (ValueError, KeyError, TypeError):
                raise RunError(f"{self.path}: line {number} is not a record of a run; remove it or the file") from None
        if whole != content:
            write_atomically(self.path, whole)

    def __len__(self) -> int:
        return len(self._outcomes)

    def get(self, job: Job) -> Outcome | None:
        return self._outcomes.get(job.key)

    def add(self, job: Job, outcome: Outcome) -> None:
        self._outcomes[job.key] = outcome
        line = json.dumps(_entry(job, outcome), ensure_ascii=False) + "\n"
        with self.path.open("ab") as file:
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())


def _entry(job: Job, outcome: Outcome) -> Mapping[str, Any]:
    return {"key": job.key, "function": job.function, "settings": dict(job.settings), "outcome": outcome}
