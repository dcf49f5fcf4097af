"""The outcomes of an experiment's jobs, one JSON line each: written when a job ends, never changed.

A process may be killed at any moment. A line that was being written then has no newline at its end and is dropped; all
others are on the disk. The lines fill runs-1.jsonl, runs-2.jsonl and so on, each small enough for a repository.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wnfused.experiments.jobs import Job, Outcome
from wnfused.files import write_atomically
from wnfused.train import RunError

MOST_BYTES = 250_000  # of a file


class Ledger:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._outcomes: dict[str, Outcome] = {}
        self.seeds: set[int] = set()  # of all jobs
        self._number = 1
        while self._file.exists():
            self._read()
            self._number += 1
        self._number = max(1, self._number - 1)

    @property
    def files(self) -> list[str]:
        """Their names, in order."""
        return [f"runs-{number}.jsonl" for number in range(1, self._number + 1)]

    @property
    def _file(self) -> Path:
        return self.directory / f"runs-{self._number}.jsonl"

    def _read(self) -> None:
        content = self._file.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        for number, line in enumerate(whole.splitlines(), start=1):
            try:
                entry = json.loads(line)
                self._outcomes[entry["key"]] = entry["outcome"]
                self._note_seed(entry["settings"])
            except (ValueError, KeyError, TypeError):
                raise RunError(f"{self._file}: line {number} is not the record of a job; remove it") from None
        if whole != content:
            write_atomically(self._file, whole)

    def __len__(self) -> int:
        return len(self._outcomes)

    def get(self, job: Job) -> Outcome | None:
        return self._outcomes.get(job.key)

    def add(self, job: Job, outcome: Outcome) -> None:
        self._outcomes[job.key] = outcome
        self._note_seed(job.settings)
        entry = {"key": job.key, "function": job.function, "settings": dict(job.settings), "outcome": outcome}
        line = (json.dumps(entry, ensure_ascii=False, separators=(",", ":")) + "\n").encode()
        if self._file.exists() and self._file.stat().st_size + len(line) > MOST_BYTES:
            self._number += 1
        with self._file.open("ab") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())

    def _note_seed(self, settings: Mapping[str, Any]) -> None:
        seed = settings.get("config", settings).get("seed")
        if seed is not None:
            self.seeds.add(seed)
