"""The speed of single layers (shapes.toml), relative to the plain layer. ``wnfused bench``, ``make bench``.

python -m benchmarks.layers [--full] [--compiled] [--only TEXT] [--threads 2] [--seconds 2] [--json FILE]
    [--compare FILE]
"""

import argparse
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import torch
from torch import nn

import wnfused
from wnfused.benchmarks.cases import Case, layers
from wnfused.benchmarks.peers import PEERS, inference, training_step, verify, with_weight_norm
from wnfused.benchmarks.suite import NOISE, Result, compare, environment, read, results_of, slower, table, write
from wnfused.diagnostics.timing import interleave


def measure(case: Case, seconds: float, compiled: bool = False) -> list[Result]:
    """Time a training step and inference of every peer. Raises ``Disagreement`` if one computes something else."""
    torch.manual_seed(0)
    plain, x = case.make(), torch.randn(case.shape)
    models = {peer: with_weight_norm(plain, peer, case.dim) for peer in PEERS}
    verify(models, x)
    models[NOISE] = with_weight_norm(plain, "plain")
    if compiled:
        models |= {f"{peer} compiled": _compiled(models[peer]) for peer in ("torch parametrized", "wnfused")}
    steps: dict[str, Callable[[], None]] = {peer: training_step(model, x) for peer, model in models.items()}
    results = results_of(case.name, "step", interleave(steps, seconds=seconds))
    with ExitStack() as stack:
        models["wnfused frozen"] = frozen = with_weight_norm(plain, "wnfused", case.dim)
        stack.enter_context(wnfused.frozen(frozen))
        folded = nn.Sequential(with_weight_norm(plain, "wnfused", case.dim))
        wnfused.fold(folded)
        models["wnfused folded"] = folded[0]
        calls = {peer: inference(model, x) for peer, model in models.items()}
        return results + results_of(case.name, "inference", interleave(calls, seconds=seconds))


def _compiled(model: nn.Module) -> nn.Module:
    torch.compiler.reset()
    return torch.compile(model, dynamic=False)  # type: ignore[return-value]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--full", action="store_true", help="all shapes; default: those marked quick")
    parser.add_argument("--compiled", action="store_true", help="torch's norm and wnfused under torch.compile, too")
    parser.add_argument("--only", default="", help="measure only rows whose name contains TEXT", metavar="TEXT")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=2.0, help="measuring time per row and mode")
    parser.add_argument("--json", type=Path, help="write the results as JSON")
    parser.add_argument("--compare", type=Path, help="show what changed since the results of this file")
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    print(
        f"Ratios to the plain layer (20th–80th percentile), interleaved; {environment(options.threads)}.\n", flush=True
    )
    results: list[Result] = []
    for case in layers():
        if options.only in case.name and (options.full or options.only or case.quick):
            rows = measure(case, options.seconds, options.compiled)
            print("\n".join(table(rows)[0 if not results else 2 :]), flush=True)
            results += rows
    for line in slower(results):
        print(f"slower than torch's weight norm: {line}")
    if options.compare:
        print("\n".join(["", *compare(read(options.compare), results)]))
    if options.json:
        write(options.json, options.threads, results)


if __name__ == "__main__":
    main()
