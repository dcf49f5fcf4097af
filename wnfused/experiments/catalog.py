"""The experiments by name, and how one is run."""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wnfused.experiments.executors import Executor, Local
from wnfused.experiments.ledger import Ledger
from wnfused.experiments.plan import planned
from wnfused.experiments.results import Findings, Results
from wnfused.experiments.sweep import Sweep
from wnfused.files import Locked, locked
from wnfused.suggestions import did_you_mean
from wnfused.train import RunError

SCALES = ("smoke", "small", "paper")
MODULES = {
    "propagation": "propagation",
    "mlp-depth": "mlp_depth",
    "cnn-depth": "cnn_depth",
    "wrn-depth": "wrn_depth",
    "seed-robustness": "seed_robustness",
    "generalization": "generalization",
    "hessian": "hessian",
    "rl": "rl",
    "depth-transfer": "depth_transfer",
}


@dataclass(frozen=True)
class Experiment:
    """``scales`` are its settings: "smoke" takes a minute on embedded data, "paper" is the paper's own."""

    title: str
    shows: str  # one line for the list
    scales: Mapping[str, Any]
    run: Callable[[Any, Sweep], Findings]


def get(name: str) -> Experiment:
    if name not in MODULES:
        raise RunError(f"name: unknown experiment {name!r}, {did_you_mean(name, MODULES)}")
    experiment: Experiment = importlib.import_module(f"wnfused.experiments.{MODULES[name]}").EXPERIMENT
    return experiment


def check(name: str, *, scale: str, out: Path | str, force: bool = False) -> tuple[Experiment, Results]:
    """Raise RunError where ``run`` would refuse; changes nothing."""
    experiment = get(name)
    if scale not in experiment.scales:
        raise RunError(f"scale: unknown {scale!r}, {did_you_mean(scale, experiment.scales)}")
    results = Results(Path(out), name, scale)
    results.check(force)
    return experiment, results


def run(
    name: str,
    *,
    scale: str = "smoke",
    out: Path | str = "results",
    executor: Executor | None = None,
    force: bool = False,
    command: str | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Path:
    """Run an experiment, or continue it, and write its results into ``out/name``; returns the page.

    Whatever was measured before is read from there and not measured again. ``force`` makes the page and plots of a
    finished experiment anew, from the same measurements.
    """
    experiment, results = check(name, scale=scale, out=out, force=force)
    executor = executor or Local()
    results.open(command or f"wnfused.experiments.run({name!r}, scale={scale!r})")
    try:
        with locked(results.path / ".lock", wait=False):
            setting, ledger = experiment.scales[scale], Ledger(results.path)
            sweep = Sweep(ledger, executor, say, planned(experiment.run, setting, ledger))
            return results.write(experiment.title, experiment.run(setting, sweep), ledger)
    except Locked:
        raise RunError(f"out: another process is running this experiment in {results.path}") from None
    finally:
        executor.close()
