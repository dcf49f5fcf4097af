"""An executor that makes outcomes up, to see which jobs an experiment asks for."""

from collections.abc import Iterator, Sequence

from wnfused.experiments.jobs import Job, Outcome
from wnfused.experiments.plan import made_up


class Listing:
    """Notes the jobs instead of running them: everything trains, with an accuracy that falls with the learning rate."""

    workers = 1

    def __init__(self, accuracy: float = 0.5) -> None:
        self.jobs: list[Job] = []
        self.accuracy = accuracy

    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Outcome]]:
        for job in jobs:
            self.jobs.append(job)
            yield job, made_up(job, self.accuracy)

    def close(self) -> None: ...
