"""Running the jobs of an experiment: those that are done are skipped, the others are passed to an executor."""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Protocol

from wnfused.experiments.executors import Executor
from wnfused.experiments.jobs import Job, Outcome
from wnfused.formatting import duration

# Settings that hardly change how long a job takes.
FREE = ("seed", "lr", "init", "arm", "peer", "norm", "warmup", "warmup_epochs")


class Record(Protocol):
    """Where outcomes are kept: a ``Ledger``."""

    def get(self, job: Job) -> Outcome | None: ...

    def add(self, job: Job, outcome: Outcome) -> None: ...


class Sweep:
    """Runs lists of jobs; the outcomes outlive the process in the ledger.

    An experiment may run several lists and choose later ones by the outcomes of earlier ones. When it is started again,
    it runs the same lists, and outcomes that are in the ledger are read from there. ``planned`` are the jobs of all
    lists, as far as they are known in advance: the progress counts them.
    """

    def __init__(
        self,
        ledger: Record,
        executor: Executor,
        say: Callable[[str], None] = lambda line: None,
        planned: Sequence[Job] = (),
    ) -> None:
        self.ledger, self.executor, self.say = ledger, executor, say
        self._progress = Progress(planned, executor.workers)
        for job in planned:
            if (outcome := ledger.get(job)) is not None:
                self._progress.done(job, outcome)

    def run(self, what: str, jobs: Sequence[Job]) -> list[Outcome]:
        """The outcomes, in the order of ``jobs``; ``what`` names the list on the screen."""
        unique = {job.key: job for job in jobs}
        missing = []
        for job in unique.values():
            if (outcome := self.ledger.get(job)) is None:
                missing.append(job)
            else:
                self._progress.done(job, outcome)
        if missing:
            self._run_missing(what, missing, len(unique))
        return [outcome for job in jobs if (outcome := self.ledger.get(job)) is not None]

    def _run_missing(self, what: str, missing: list[Job], total: int) -> None:
        done = total - len(missing)
        self.say(f"{what}: {total} jobs" + (f", {done} of them done before" if done else ""))
        waiting = {job.key: job for job in missing}
        for count, (job, outcome) in enumerate(self.executor.run(missing), start=1):
            self.ledger.add(job, outcome)
            self._progress.done(job, outcome)
            del waiting[job.key]
            self.say(f"{what}: {done + count}/{total}; {self._progress.line(list(waiting.values()))}")


class Progress:
    """How many jobs are done and left, and the time that those left take, by the kinds of jobs."""

    def __init__(self, planned: Sequence[Job], workers: int) -> None:
        self.workers = workers
        self._planned = Counter(kind(job) for job in planned)
        self._done: dict[str, str] = {}  # key: kind
        self._seconds: dict[str, list[float]] = defaultdict(list)  # by kind

    def done(self, job: Job, outcome: Outcome) -> None:
        if job.key in self._done:
            return
        self._done[job.key] = kind(job)
        if (seconds := outcome.get("seconds")) is not None:
            self._seconds[kind(job)].append(seconds)

    def line(self, waiting: Sequence[Job]) -> str:
        """``waiting`` are jobs that are certain to come; the plan, made before, may not have them."""
        left = (self._planned - Counter(self._done.values())) | Counter(kind(job) for job in waiting)
        counts = f"{len(self._done)} of about {len(self._done) + left.total()} jobs"
        known = [seconds for some in self._seconds.values() for seconds in some]
        if not left or not known:
            return counts
        typical = sum(known) / len(known)  # of a kind that has not run; the deeper networks come last
        time_left = sum(count * _mean(self._seconds.get(name), typical) for name, count in left.items())
        word = "about" if all(name in self._seconds for name in left) else "at least"
        return f"{counts}, {word} {duration(time_left / self.workers)} left"


def kind(job: Job) -> str:
    """Jobs of one kind take about as long as each other."""
    settings = {**job.settings, **job.settings.get("config", {})}
    fixed = {name: value for name, value in settings.items() if name not in (*FREE, "config")}
    return json.dumps([job.function, fixed], sort_keys=True)


def _mean(values: Sequence[float] | None, otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise
