"""Each measured layer beside what this machine could do at best, and the tables of docs/performance.md.

python -m benchmarks.limits measure [--threads 2] [--json FILE]
    measures the speed of matmuls and, for each layer, the time to copy as many bytes as a step has to move
python -m benchmarks.limits page [--page FILE]
    writes the tables into the page, from the committed results

A step has three products, so its arithmetic takes three times as long as the forward's. It has to read x, v and dy, and
to write y, dx and dv. The limit is the longer of both times; nothing here is added for the norm.
"""

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from wnfused.benchmarks import suite
from wnfused.benchmarks.cases import Case, layers
from wnfused.benchmarks.peers import PEERS
from wnfused.diagnostics.timing import interleave

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"


class Work(NamedTuple):
    products: int  # multiply-adds of one forward
    x: int  # elements
    v: int
    y: int

    def elements(self, mode: str) -> int:
        """What has to be read or written at least once in forward and, in a step, backward."""
        return 3 * self.x + 3 * self.v + 2 * self.y if mode == "step" else self.x + self.v + self.y


def work_of(case: Case) -> Work:
    layer = case.make()
    weight: torch.Tensor = layer.weight  # type: ignore[assignment]
    y = layer.to("meta")(torch.empty(case.shape, device="meta"))
    pixels = math.prod(case.shape if isinstance(layer, nn.ConvTranspose1d) else y.shape)
    channels = layer.in_channels if isinstance(layer, nn.ConvTranspose1d) else weight.shape[0]
    return Work(pixels // channels * weight.numel(), math.prod(case.shape), weight.numel(), y.numel())


def matmul_speed() -> float:
    """Multiply-adds per microsecond of a large matmul, which the layers' products cannot exceed."""
    n = 2048
    a, b, out = torch.randn(n, n), torch.randn(n, n), torch.empty(n, n)
    timing = interleave({"matmul": lambda: torch.mm(a, b, out=out)}, seconds=3.0)["matmul"]
    return n**3 / timing.seconds / 1e6


def copy_time(elements: int) -> float:
    """Microseconds to move so many floats, half of them read and half written, as often as caches allow."""
    source = torch.ones(max(1, elements // 2))
    target = torch.empty_like(source)
    return interleave({"copy": lambda: target.copy_(source)}, seconds=0.3)["copy"].seconds * 1e6


def measure(threads: int) -> dict[str, Any]:
    rows = [
        {"case": case.name, "mode": mode, "copy_microseconds": round(copy_time(work_of(case).elements(mode)), 2)}
        for case in layers()
        for mode in ("step", "inference")
    ]
    return {"environment": suite.environment(threads), "matmul_speed": round(matmul_speed()), "results": rows}


def table(results: Path = RESULTS) -> Iterator[str]:
    """Markdown: times relative to the limit, and ratios to the plain layer."""
    speed = _read(results / "limits.json")
    measured = {(r["case"], r["mode"], r["peer"]): r for r in _read(results / "layers.json")["results"]}
    narrow: dict[Any, Any] = {}
    if (results / "layers-avx2.json").exists():
        rows = _read(results / "layers-avx2.json")["results"]
        narrow = {(r["case"], r["mode"], r["peer"]): r for r in rows}
    copies = {(r["case"], r["mode"]): r["copy_microseconds"] for r in speed["results"]}
    head = ("layer", "", "limit", "plain / limit", "wnfused / limit", "torch", "wnfused", "AVX2: torch", "wnfused")
    yield f"| {' | '.join(head)} |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for case in layers():
        work = work_of(case)
        for mode in ("step", "inference"):
            arithmetic = (3 if mode == "step" else 1) * work.products / speed["matmul_speed"]
            limit = max(arithmetic, copies[case.name, mode])
            plain = measured[case.name, mode, "plain"]["microseconds"]
            torchs, ours = _ratios(measured, case.name, mode)
            bound = "products" if limit == arithmetic else "bytes"
            cells = [f"{limit / 1e3:.3g} ms ({bound})", f"{plain / limit:.2f}", f"{ours * plain / limit:.2f}"]
            cells += [f"{torchs:.2f}", f"**{ours:.2f}**"]
            cells += [f"{r:.2f}" for r in _ratios(narrow, case.name, mode)] if narrow else ["–", "–"]
            yield f"| {case.name} | {mode} | {' | '.join(cells)} |"


def _ratios(measured: dict[Any, Any], case: str, mode: str) -> tuple[float, float]:
    """To the plain layer: the faster of torch's two norms, and wnfused."""
    torchs = min(measured[case, mode, peer]["relative"] for peer in ("torch hook", "torch parametrized"))
    return torchs, measured[case, mode, "wnfused"]["relative"]


def _read(file: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return content


def memory_table(results: Path = RESULTS) -> Iterator[str]:
    yield f"| layer or network | plain, saved / peak | {' | '.join(PEERS[1:])} |"
    yield f"|---|{'---|' * len(PEERS)}"
    rows = {(row["case"], row["peer"]): row for row in _read(results / "memory.json")["results"]}
    for case in dict.fromkeys(case for case, _ in rows):
        plain = rows[case, "plain"]
        cells = [rows[case, peer] for peer in PEERS[1:]]
        ratios = [f"{cell['saved_relative']:.3f} / {cell['peak_relative']:.3f}" for cell in cells]
        yield f"| {case} | {plain['saved'] / 1e6:.3g} / {plain['peak'] / 1e6:.3g} MB | {' | '.join(ratios)} |"


def in_page(text: str) -> str:
    """The page with its tables replaced: each stands between two comments of its name."""
    networks = suite.table(suite.read(RESULTS / "networks.json"))
    for name, rows in {"layers": table(), "networks": networks, "memory": memory_table()}.items():
        begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
        before, _, rest = text.partition(begin)
        text = before + begin + "\n".join(rows) + "\n" + end + rest.partition(end)[2]
    return text


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("action", choices=("measure", "page"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, default=RESULTS / "limits.json")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "performance.md")
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    if options.action == "measure":
        options.json.write_text(json.dumps(measure(options.threads), indent=1, ensure_ascii=False), encoding="utf-8")
    else:
        text = options.page.read_text(encoding="utf-8")
        options.page.write_text(in_page(text), encoding="utf-8")


if __name__ == "__main__":
    main()
