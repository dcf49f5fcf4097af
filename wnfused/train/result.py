"""What a run came to."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

Status = Literal["finished", "diverged", "interrupted"]


@dataclass(frozen=True)
class Result:
    """Accuracies are shares from 0 to 1. The test images were seen once, by the weights of the best epoch."""

    status: Status
    epochs: int  # completed
    steps: int
    seconds: float  # of training and validation, over all sessions of the run
    best_epoch: int | None = None  # counted from 1; without held-out images the last
    best_validation_accuracy: float | None = None
    test_accuracy: float | None = None
    test_loss: float | None = None
    parameters: int | None = None
    diverged_step: int | None = None  # the first step whose loss was not acceptable
    reason: str | None = None  # why a run diverged
    stopped_by: str | None = None  # the signal that interrupted it: SIGINT or SIGTERM

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
