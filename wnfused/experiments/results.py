"""The directory of an experiment's results: numbers, a page with tables beside the paper's figures, plots.

about.json     version of this layout, scale, command, machine
runs-1.jsonl   one line per job with its settings and seed, written as jobs end; then runs-2.jsonl and so on
numbers.json   what the page shows, as JSON; written last: with it the experiment is finished
README.md      the page
*.png          its plots
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import wnfused
from wnfused.experiments.ledger import Ledger
from wnfused.files import atomic_write, write_atomically
from wnfused.train import RunError
from wnfused.train.run_directory import cpu_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMAT = 1
FINISHED = "numbers.json"


@dataclass(frozen=True)
class Table:
    head: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        lines = [self.head, ["---"] * len(self.head), *self.rows]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)


@dataclass(frozen=True)
class Findings:
    """What an experiment found. ``paragraphs`` and ``tables`` make the page, in this order after the plots."""

    numbers: Mapping[str, Any]
    tables: Mapping[str, Table]  # by heading
    figures: Mapping[str, "Figure"]  # by file name, without suffix
    paragraphs: Sequence[str] = ()
    deviations: Sequence[str] = field(default=())  # from the paper


class Results:
    """``out/name``; nothing is written before ``open``."""

    def __init__(self, out: Path, name: str, scale: str) -> None:
        self.path, self.name, self.scale = out / name, name, scale

    def check(self, force: bool) -> None:
        """Raise where another experiment's or another version's results would be touched, or finished ones replaced."""
        about = self._about()
        if about is None:
            if self.path.exists() and any(entry.name != ".lock" for entry in self.path.iterdir()):
                raise RunError(f"out: {self.path} holds files but no about.json; name another directory")
            return
        if about.get("format") != FORMAT:
            raise RunError(
                f"out: {self.path} was written by another version of wnfused (format {about.get('format')!r})"
            )
        if about.get("scale") != self.scale:
            raise RunError(f"out: {self.path} holds results of scale {about.get('scale')!r}; name another directory")
        if (self.path / FINISHED).exists() and not force:
            raise RunError(f"out: {self.path} is finished; pass force=True to make its page and plots again")

    def _about(self) -> dict[str, Any] | None:
        file = self.path / "about.json"
        try:
            about = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise RunError(f"out: {file} cannot be read: {error}") from None
        return about if isinstance(about, dict) else {}

    def open(self, command: str) -> None:
        if self._about() is not None:
            return
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._write("about.json", {"format": FORMAT, "scale": self.scale, "command": command, **_machine()})
        except OSError as error:
            raise RunError(f"out: cannot write into {self.path}: {error.strerror or error}") from None

    def write(self, title: str, findings: Findings, ledger: Ledger) -> Path:
        for name, figure in findings.figures.items():
            with atomic_write(self.path / f"{name}.png") as file:
                figure.savefig(file, format="png", dpi=110)
        write_atomically(self.path / "README.md", self._page(title, findings, ledger).encode())
        self._write(FINISHED, findings.numbers)
        return self.path / "README.md"

    def _page(self, title: str, findings: Findings, ledger: Ledger) -> str:
        about = self._about() or {}
        parts = [f"# {title}", *findings.paragraphs]
        parts += [f"![{name.replace('-', ' ')}]({name}.png)" for name in findings.figures]
        for heading, table in findings.tables.items():
            parts += [f"## {heading}", table.markdown()]
        if findings.deviations:
            parts += ["## What differs from the paper", "\n".join(f"- {line}" for line in findings.deviations)]
        made = f"`{about['command']}` on {about['machine']}, torch {about['torch']}, wnfused {about['wnfused']}."
        runs = ", ".join(f"[{name}]({name})" for name in ledger.files)
        parts += ["## Made by", f"{made} {_seeds(ledger.seeds)} Every run with its settings and seed: {runs}."]
        return "\n\n".join(parts) + "\n"

    def _write(self, name: str, content: Any) -> None:
        write_atomically(self.path / name, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())


def _seeds(seeds: set[int]) -> str:
    low, high = min(seeds), max(seeds)
    return f"Seed {low}." if low == high else f"Seeds {low} to {high}."


def _machine() -> dict[str, str]:
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "machine": gpu or cpu_name(),
        "torch": torch.__version__,
        "wnfused": wnfused.__version__,
        "started": time.strftime("%Y-%m-%d"),
    }
