"""The jobs that an experiment is likely to ask for, which an estimate of the time left needs.

An experiment chooses later jobs by the outcomes of earlier ones. So it runs here with made-up outcomes where there is
no real one yet: everything trains, at every learning rate.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from wnfused.experiments.jobs import Job, Outcome
from wnfused.experiments.ledger import Ledger
from wnfused.experiments.sweep import Sweep


def planned(run: Callable[[Any, Sweep], Any], setting: Any, ledger: Ledger) -> list[Job]:
    """Every job of the experiment once, also those that are done."""
    draft = _Draft(ledger)
    run(setting, Sweep(draft, _Imagination()))
    return list(draft.asked.values())


class _Draft:
    """The ledger with made-up outcomes for what it lacks; they are not written."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.asked: dict[str, Job] = {}
        self._made_up: dict[str, Outcome] = {}

    def get(self, job: Job) -> Outcome | None:
        self.asked[job.key] = job
        return self.ledger.get(job) or self._made_up.get(job.key)

    def add(self, job: Job, outcome: Outcome) -> None:
        self._made_up[job.key] = outcome


class _Imagination:
    workers = 1

    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Outcome]]:
        return ((job, made_up(job)) for job in jobs)

    def close(self) -> None: ...


def made_up(job: Job, accuracy: float = 0.5) -> Outcome:
    """What the job might find. Accuracies fall with the learning rate."""
    if job.function == "propagation:measure":
        return {"forward": [[1.0, 0.0]], "backward": [[1.0, 0.0]]}
    if job.function == "hessian:measure":
        return {"log10": 1.0, "converged": True, "seconds": 1.0}
    if job.function == "rl:measure":
        return {"curve": [None, 1.0] * 20, "final_return": 1.0, "started": True, "diverged_step": None}
    accuracy /= 1 + job.settings["config"]["lr"]
    done = {"diverged_step": None, "threshold_step": None, "steps": 10, "losses": [2.0, 1.0], "cpu_seconds": 1.0}
    return {**done, "train_accuracy": accuracy, "test_accuracy": accuracy}
