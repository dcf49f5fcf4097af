"""Running the jobs of an experiment: those that are done are skipped, the others are passed to an executor."""

import time
from collections.abc import Callable, Sequence

from wnfused.experiments.executors import Executor
from wnfused.experiments.jobs import Job, Outcome
from wnfused.experiments.ledger import Ledger
from wnfused.formatting import duration


class Sweep:
    """Runs lists of jobs; the outcomes outlive the process in the ledger.

    An experiment may run several lists and choose later ones by the outcomes of earlier ones. When it is started again,
    it runs the same lists, and outcomes that are in the ledger are read from there.
    """

    def __init__(self, ledger: Ledger, executor: Executor, say: Callable[[str], None] = lambda line: None) -> None:
        self.ledger, self.executor, self.say = ledger, executor, say

    def run(self, what: str, jobs: Sequence[Job]) -> list[Outcome]:
        """The outcomes, in the order of ``jobs``; ``what`` names the list on the screen."""
        unique = {job.key: job for job in jobs}
        missing = [job for job in unique.values() if self.ledger.get(job) is None]
        if missing:
            self._run_missing(what, missing, len(unique))
        return [outcome for job in jobs if (outcome := self.ledger.get(job)) is not None]

    def _run_missing(self, what: str, missing: list[Job], total: int) -> None:
        done = total - len(missing)
        self.say(f"{what}: {total} jobs" + (f", {done} of them done before" if done else ""))
        start = time.perf_counter()
        for count, (job, outcome) in enumerate(self.executor.run(missing), start=1):
            self.ledger.add(job, outcome)
            left = (time.perf_counter() - start) / count * (len(missing) - count)
            self.say(f"{what}: {done + count}/{total}, about {duration(left)} left")
