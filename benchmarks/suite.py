"""What the suites of ``wnfused bench`` share: results, their files, and the comparison of two files."""

import argparse
import json
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

import wnfused
from wnfused.diagnostics.timing import Timing

NOISE = "plain again"  # a second copy of the baseline: its ratio shows the noise of the machine


@dataclass(frozen=True)
class Result:
    case: str
    mode: str  # "step", "inference", "frozen", "folded"
    peer: str
    microseconds: float
    relative: float  # to the plain layer or network, median
    low: float  # 20th and 80th percentile
    high: float


def results_of(case: str, mode: str, timings: Mapping[str, Timing]) -> list[Result]:
    return [
        Result(case, mode, peer, round(t.seconds * 1e6, 2), *(round(r, 4) for r in (t.ratio, t.low, t.high)))
        for peer, t in timings.items()
    ]


def environment(threads: int) -> str:
    return (
        f"wnfused {wnfused.__version__}, torch {torch.__version__}, Python {platform.python_version()}, "
        f"{_cpu()} ({torch.backends.cpu.get_cpu_capability()}), {threads} threads"
    )


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def write(file: Path, threads: int, results: Sequence[Result], **more: Any) -> None:
    rows = ",\n".join(json.dumps(asdict(result), ensure_ascii=False) for result in results)
    head = {"environment": environment(threads), **more}
    file.write_text(json.dumps(head, indent=1)[:-2] + f',\n "results": [\n{rows}\n]}}\n', encoding="utf-8")


def read(file: Path) -> list[Result]:
    return [Result(**row) for row in json.loads(file.read_text(encoding="utf-8"))["results"]]


def table(results: Sequence[Result]) -> list[str]:
    """Markdown: a row for each case and mode, with the ratio of each peer and its percentiles."""
    peers = list(dict.fromkeys(r.peer for r in results if r.peer != "plain"))
    lines = [f"| case | mode | plain | {' | '.join(peers)} |", f"|{'---|' * (3 + len(peers))}"]
    for case, mode in dict.fromkeys((r.case, r.mode) for r in results):
        row = {r.peer: r for r in results if (r.case, r.mode) == (case, mode)}
        cells = [_cell(row[peer]) if peer in row else "–" for peer in peers]
        lines.append(f"| {case} | {mode} | {_milliseconds(row['plain'])} | {' | '.join(cells)} |")
    return lines


def _milliseconds(result: Result) -> str:
    return f"{result.microseconds / 1e3:.3g} ms"


def _cell(result: Result) -> str:
    text = f"{result.relative:.2f} ({result.low:.2f}–{result.high:.2f})"
    return f"**{text}**" if result.peer == "wnfused" else text


def slower(results: Sequence[Result], limit: float = 1.03) -> list[str]:
    """The rows on which wnfused takes more than ``limit`` times as long as the faster of torch's two norms."""
    lines = []
    for case, mode in dict.fromkeys((r.case, r.mode) for r in results):
        row = {r.peer: r.relative for r in results if (r.case, r.mode) == (case, mode)}
        torchs = [row[peer] for peer in ("torch hook", "torch parametrized") if peer in row]
        if torchs and "wnfused" in row and row["wnfused"] > limit * min(torchs):
            lines.append(f"{case}, {mode}: {row['wnfused']:.2f}, torch {min(torchs):.2f}")
    return lines


def compare(old: Sequence[Result], new: Sequence[Result]) -> list[str]:
    """Markdown: ratios of wnfused in both files, where they differ by more than the spread of either."""
    before = {(r.case, r.mode, r.peer): r for r in old}
    lines = ["| case | mode | before | now |", "|---|---|---|---|"]
    for now in new:
        was = before.get((now.case, now.mode, now.peer))
        if now.peer == "wnfused" and was and (now.low > was.high or now.high < was.low):
            lines.append(f"| {now.case} | {now.mode} | {was.relative:.2f} | {now.relative:.2f} |")
    return lines if len(lines) > 2 else ["no row differs by more than its spread"]


class Row(Protocol):
    """A layer or a network."""

    @property
    def name(self) -> str: ...

    @property
    def quick(self) -> bool: ...


AnyRow = TypeVar("AnyRow", bound=Row)


def parser(about: str | None, *, full: str, seconds: float) -> argparse.ArgumentParser:
    """The options of the suites that ``run`` measures."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0] if about else None)
    parser.add_argument("--full", action="store_true", help=full)
    parser.add_argument("--only", default="", help="measure only rows whose name contains TEXT", metavar="TEXT")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=seconds, help="measuring time per row and mode")
    parser.add_argument("--json", type=Path, help="write the results as JSON")
    parser.add_argument("--compare", type=Path, help="show what changed since the results of this file")
    return parser


def run(
    cases: Iterable[AnyRow], measure: Callable[[AnyRow], Sequence[Result]], options: argparse.Namespace, baseline: str
) -> None:
    """Measure the selected rows, print a table of each, and compare and write the results as the options say."""
    torch.set_num_threads(options.threads)
    print(f"Ratios to {baseline} (20th–80th percentile), interleaved; {environment(options.threads)}.\n", flush=True)
    results: list[Result] = []
    for case in cases:
        if options.only in case.name and (options.full or options.only or case.quick):
            rows = measure(case)
            print("\n".join(table(rows)), flush=True)
            results += rows
    for line in slower(results):
        print(f"slower than torch's weight norm: {line}")
    if options.compare:
        print("\n".join(["", *compare(read(options.compare), results)]))
    if options.json:
        write(options.json, options.threads, results)
