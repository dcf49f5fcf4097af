"""The memory of a training step, relative to the plain layer. ``wnfused bench --suite memory``.

python -m benchmarks.memory [--only TEXT] [--threads 2] [--json FILE]

Saved: bytes that the forward keeps for the backward. Peak: the most that a step (forward and backward) holds at once
beyond parameters and input, counted by torch's profiler. Both are exact and the same in every run.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from wnfused.benchmarks.cases import layers
from wnfused.benchmarks.networks import CASES as NETWORKS
from wnfused.benchmarks.peers import PEERS, training_step, with_weight_norm
from wnfused.benchmarks.suite import environment


@dataclass(frozen=True)
class Memory:
    case: str
    peer: str
    saved: int
    peak: int
    saved_relative: float
    peak_relative: float


def saved_bytes(model: nn.Module, x: Tensor) -> int:
    """Bytes kept for the backward, without parameters; a tensor that is saved twice counts once."""
    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, int] = {}

    def pack(t: Tensor) -> Tensor:
        storage = t.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage.nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        y = model(x.detach().requires_grad_())
    del y
    return sum(kept.values())


def peak_bytes(step: Callable[[], None]) -> int:
    step()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        step()
    now = peak = 0
    for event in recorded.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            peak = max(peak, now)
    return peak


def measure(name: str, plain: nn.Module, x: Tensor, dim: int | None = 0) -> list[Memory]:
    found = {}
    for peer in PEERS:
        model = with_weight_norm(plain, peer, dim)
        found[peer] = saved_bytes(model, x), peak_bytes(training_step(model, x))
    base = found["plain"]
    return [
        Memory(name, peer, saved, peak, round(saved / max(1, base[0]), 4), round(peak / max(1, base[1]), 4))
        for peer, (saved, peak) in found.items()
    ]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default="", help="measure only rows whose name contains TEXT", metavar="TEXT")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write the results as JSON")
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    print(f"Bytes of a training step relative to the plain layer, saved / peak; {environment(options.threads)}.\n")
    print(f"| case | plain | {' | '.join(PEERS[1:])} |\n|---|{'---|' * len(PEERS)}", flush=True)
    cases = [(c.name, c.make, c.shape, c.dim) for c in layers()] + [
        (c.name, c.make, c.shape, 0) for c in NETWORKS if c.quick
    ]
    results: list[Memory] = []
    for name, make, shape, dim in cases:
        if options.only in name:
            torch.manual_seed(0)
            rows = measure(name, make(), torch.randn(shape), dim)
            results += rows
            cells = [f"{row.saved_relative:.3f} / {row.peak_relative:.3f}" for row in rows[1:]]
            print(
                f"| {name} | {rows[0].saved / 1e6:.3g} / {rows[0].peak / 1e6:.3g} MB | {' | '.join(cells)} |",
                flush=True,
            )
    if options.json:
        facts = {"environment": environment(options.threads), "results": [asdict(row) for row in results]}
        options.json.write_text(json.dumps(facts, indent=1, ensure_ascii=False), encoding="utf-8")


if __name__ == "__main__":
    main()
