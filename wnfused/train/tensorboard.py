"""Logging for TensorBoard, by a flag: its package is not a dependency."""

from pathlib import Path
from typing import Any

from wnfused.extras import not_installed
from wnfused.train.errors import RunError


def check() -> None:
    """Raise before anything has started."""
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError:
        raise RunError(f"tensorboard: {not_installed('tensorboard')}") from None


class Board:
    def __init__(self, folder: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # What a later part of the run logged before it was stopped is not shown twice.
        self.writer: Any = SummaryWriter(str(folder), purge_step=step)

    def steps(self, first: int, losses: list[float]) -> None:
        for step, loss in enumerate(losses, first):
            self.writer.add_scalar("step/train_loss", loss, step)

    def epoch(self, line: dict[str, Any]) -> None:
        for name, value in line.items():
            if name not in ("epoch", "step", "diverged") and value is not None:
                self.writer.add_scalar(f"epoch/{name}", value, line["step"])
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()
