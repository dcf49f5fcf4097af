"""How a run ends: with a Result, or with a RunError whose message is one line."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

Status = Literal["finished", "diverged", "interrupted"]


@dataclass(frozen=True)
class Result:
    """Accuracies are fractions from 0 to 1. The test accuracy is measured once, with the weights of the best epoch."""

    status: Status
    epochs: int  # completed
    steps: int
    seconds: float  # of training and validation, over all sessions of the run
    best_epoch: int | None = None  # counted from 1; the last epoch if there is no validation set
    best_validation_accuracy: float | None = None
    test_accuracy: float | None = None
    test_loss: float | None = None
    parameters: int | None = None
    diverged_step: int | None = None  # the first step whose loss was NaN, Inf or above max_loss
    reason: str | None = None  # why a run diverged
    stopped_by: str | None = None  # the signal that interrupted the run: SIGINT or SIGTERM

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class RunError(Exception):
    """The run cannot start, and nothing was changed. ``code`` is the exit code of the command line."""

    code = 2


class WriteError(RunError):
    """A file of the run cannot be written, for example on a full disk; earlier files are intact."""

    code = 1
