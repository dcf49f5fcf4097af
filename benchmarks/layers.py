"""The speed table: forward + backward of each layer relative to the plain layer. Run by ``make bench``.

python -m benchmarks.layers [--threads 2] [--seconds 4] [--only TEXT] [--json FILE] [--markdown FILE]
"""

import argparse
import json
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn

import wnfused
from wnfused.benchmarks.peers import PEERS, inference, training_step, whole_step, with_weight_norm
from wnfused.diagnostics.timing import Timing, interleave
from wnfused.models import resnet110


@dataclass(frozen=True)
class Case:
    name: str
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    must: float
    aim: float
    kind: str = "training"  # or "whole step", "inference", "frozen"


def _linear(batch: int, inputs: int, outputs: int, must: float, aim: float, kind: str = "training") -> Case:
    prefix = "" if kind == "training" else f"{kind} "
    return Case(
        f"{prefix}Linear {batch},{inputs},{outputs}",
        lambda: nn.Linear(inputs, outputs),
        (batch, inputs),
        must,
        aim,
        kind,
    )


CASES = (
    _linear(128, 512, 512, 1.15, 1.05),
    _linear(32, 512, 512, 1.15, 1.05),
    _linear(128, 1024, 1024, 1.15, 1.05),
    _linear(128, 3072, 3072, 1.15, 1.05),
    _linear(8, 4096, 4096, 1.20, 1.05),
    _linear(1, 512, 512, 1.45, 1.20),
    Case("Conv2d 640→640 3×3 @8², batch 8", lambda: nn.Conv2d(640, 640, 3, padding=1), (8, 640, 8, 8), 1.08, 1.03),
    Case("Conv2d 64→64 3×3 @8², batch 8", lambda: nn.Conv2d(64, 64, 3, padding=1), (8, 64, 8, 8), 1.08, 1.03),
    Case("Conv1d 512→512 k7, length 32, batch 1", lambda: nn.Conv1d(512, 512, 7, padding=3), (1, 512, 32), 1.15, 1.05),
    _linear(8, 4096, 4096, 1.30, 1.05, "inference"),
    _linear(8, 4096, 4096, 1.02, 1.02, "frozen"),
    Case("ResNet-110, batch 8, whole step", lambda: resnet110(norm="none"), (8, 3, 32, 32), 1.05, 1.02, "whole step"),
)


def measure(case: Case, seconds: float) -> dict[str, Timing]:
    torch.manual_seed(0)
    plain, x = case.make(), torch.randn(case.shape)
    models = {peer: with_weight_norm(plain, peer) for peer in PEERS}
    step = {"training": training_step, "whole step": whole_step}.get(case.kind, inference)
    functions = {peer: step(model, x) for peer, model in models.items()}
    if case.kind != "frozen":
        return interleave(functions, seconds=seconds)
    with wnfused.frozen(models["wnfused"]):
        return interleave(functions, seconds=seconds)


def environment(threads: int) -> str:
    cpu = platform.processor() or platform.machine()
    return (
        f"wnfused {wnfused.__version__}, torch {torch.__version__}, Python {platform.python_version()}, "
        f"{cpu} ({torch.backends.cpu.get_cpu_capability()}), {threads} threads"
    )


def row(case: Case, timings: dict[str, Timing]) -> str:
    ratios = [f"{timings[peer].ratio:.2f}" for peer in PEERS[1:]]
    milliseconds = f"{timings['plain'].seconds * 1e3:.3g} ms"
    return f"| {case.name} | {milliseconds} | {' | '.join(ratios[:-1])} | **{ratios[-1]}** | {case.must} | {case.aim} |"


HEADER = "| layer | plain | torch hook | torch parametrized | wnfused | must | aim |\n|---|---|---|---|---|---|---|"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=4.0, help="measuring time per row")
    parser.add_argument("--only", default="", help="measure only rows whose name contains TEXT", metavar="TEXT")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    lines = [f"Ratios to the plain layer, forward + backward, interleaved; {environment(options.threads)}.", "", HEADER]
    print("\n".join(lines), flush=True)
    results = {}
    for case in (c for c in CASES if options.only in c.name):
        timings = measure(case, options.seconds)
        results[case.name] = {peer: asdict(timing) for peer, timing in timings.items()}
        lines.append(row(case, timings))
        print(lines[-1], flush=True)
    if options.json:
        options.json.write_text(json.dumps({"environment": environment(options.threads), "results": results}, indent=1))
    if options.markdown:
        options.markdown.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
