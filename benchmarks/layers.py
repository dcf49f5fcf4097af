"""The speed of single layers (shapes.toml), relative to the plain layer. ``wnfused bench``, ``make bench``.

python -m benchmarks.layers [--full] [--compiled] [--only TEXT] [--threads 2] [--seconds 2] [--json FILE]
    [--compare FILE]
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack

import torch
from torch import nn

import wnfused
from wnfused.benchmarks import suite
from wnfused.benchmarks.cases import Case, layers
from wnfused.benchmarks.peers import PEERS, inference, training_step, verify, with_weight_norm
from wnfused.benchmarks.suite import NOISE, Result, results_of
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
    parser = suite.parser(__doc__, full="all shapes; default: those marked quick", seconds=2.0)
    parser.add_argument("--compiled", action="store_true", help="torch's norm and wnfused under torch.compile, too")
    options = parser.parse_args(argv)
    suite.run(layers(), lambda case: measure(case, options.seconds, options.compiled), options, "the plain layer")


if __name__ == "__main__":
    main()
