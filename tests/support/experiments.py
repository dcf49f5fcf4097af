"""An executor that makes outcomes up, to see which jobs an experiment asks for."""

from collections.abc import Iterator, Sequence

from wnfused.experiments.jobs import Job, Outcome


class Listing:
    """Notes the jobs instead of running them: everything trains, with an accuracy that falls with the learning rate."""

    workers = 1

    def __init__(self, accuracy: float = 0.5) -> None:
        self.jobs: list[Job] = []
        self.accuracy = accuracy

    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Outcome]]:
        for job in jobs:
            self.jobs.append(job)
            yield job, self.outcome(job)

    def outcome(self, job: Job) -> Outcome:
        if job.function == "propagation:measure":
            return {"forward": [[1.0, 0.0]], "backward": [[1.0, 0.0]]}
        if job.function == "hessian:measure":
            return {"log10": 1.0, "converged": True, "seconds": 1.0}
        if job.function == "rl:measure":
            return {"curve": [None, 1.0] * 20, "final_return": 1.0, "started": True, "diverged_step": None}
        accuracy = self.accuracy / (1 + job.settings["config"]["lr"])
        done = {"diverged_step": None, "threshold_step": None, "steps": 10, "losses": [2.0, 1.0], "cpu_seconds": 1.0}
        return {**done, "train_accuracy": accuracy, "test_accuracy": accuracy}

    def close(self) -> None: ...
