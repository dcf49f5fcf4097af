"""Loss and accuracy of an epoch, kept on the device and read every few steps only: reading waits for a GPU."""

import math
import statistics
import time
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from wnfused.train.distributed import World


@dataclass
class Meter:
    """Sums over the images of all processes, added step by step, so that they do not depend on when they were read."""

    loss: float = 0.0
    correct: int = 0
    images: int = 0
    seconds: float = 0.0
    laps: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._pending: list[tuple[Tensor, Tensor, int]] = []
        self._last = time.perf_counter()
        self._timed = self.images  # how many images ``seconds`` were spent on

    def add(self, loss: Tensor, correct: Tensor, size: int) -> None:
        """One step: sum of losses and number of right answers in this process, images in all of them."""
        self._pending.append((loss, correct, size))

    def lap(self, steps: int = 1) -> None:
        """``steps`` steps have passed since the last lap."""
        now = time.perf_counter()
        self.seconds += now - self._last
        self.laps.append((now - self._last) / steps)
        self._last = now
        self._timed = self.images + sum(size for _, _, size in self._pending)

    def start_clock(self) -> None:
        """What happened since the last lap was no training."""
        self._last = time.perf_counter()

    @property
    def pending(self) -> int:
        return len(self._pending)

    def read(self, world: World) -> list[float]:
        """The mean losses of the steps since the last reading. Every process has to ask."""
        if not self._pending:
            return []
        losses, corrects, sizes = zip(*self._pending, strict=True)
        self._pending = []
        sums = torch.stack([torch.stack(losses).double(), torch.stack(corrects).double()]).cpu()  # [2, steps]
        means = []
        for loss, correct, size in zip(*world.sum(sums).tolist(), sizes, strict=True):
            self.loss += loss
            self.correct += int(correct)
            self.images += size
            means.append(loss / size)
        return means

    def mean_loss(self) -> float | None:
        """None before the first reading, and where it is no number any more."""
        return self.loss / self.images if self.images and math.isfinite(self.loss) else None

    def accuracy(self) -> float | None:
        return self.correct / self.images if self.images else None

    def images_per_second(self) -> float | None:
        return self._timed / self.seconds if self._timed and self.seconds else None

    def median_step_seconds(self) -> float | None:
        return statistics.median(self.laps) if self.laps else None

    def state(self) -> dict[str, Any]:
        return asdict(self)
