"""Loss and accuracy: of a training epoch, read every few steps only, and of an evaluation."""

import math
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import wnfused
from wnfused.data import Loader
from wnfused.train.distributed import World, reshard


class Diverged(Exception):
    """A loss is NaN, Inf or above ``max_loss``."""

    def __init__(self, step: int, reason: str) -> None:
        super().__init__(reason)
        self.step, self.reason = step, reason


@dataclass
class Meter:
    """Sums over an epoch's images on all ranks.

    Losses stay on the device until they are read, because reading waits for a GPU. They are added step by step, so the
    sums do not depend on when they were read.
    """

    loss: float = 0.0
    correct: int = 0
    images: int = 0
    seconds: float = 0.0
    laps: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._pending: list[tuple[Tensor, Tensor, int]] = []
        self._last = time.perf_counter()
        self._timed = self.images  # the number of images that ``seconds`` were spent on

    def add(self, loss: Tensor, correct: Tensor, size: int) -> None:
        """One step: this rank's sum of losses and number of correct predictions, and the images of all ranks."""
        self._pending.append((loss, correct, size))

    def lap(self, steps: int = 1) -> None:
        """``steps`` steps have passed since the last lap."""
        now = time.perf_counter()
        self.seconds += now - self._last
        self.laps.append((now - self._last) / steps)
        self._last = now
        self._timed = self.images + sum(size for _, _, size in self._pending)

    def start_clock(self) -> None:
        """The time since the last lap was not spent on training."""
        self._last = time.perf_counter()

    @property
    def pending(self) -> int:
        return len(self._pending)

    def read(self, world: World) -> list[float]:
        """The mean losses of the steps since the last call. All ranks must call it."""
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
        """None before the first reading, and if it is not finite."""
        return self.loss / self.images if self.images and math.isfinite(self.loss) else None

    def accuracy(self) -> float | None:
        return self.correct / self.images if self.images else None

    def images_per_second(self) -> float | None:
        return self._timed / self.seconds if self._timed and self.seconds else None

    def median_step_seconds(self) -> float | None:
        return statistics.median(self.laps) if self.laps else None

    def state(self) -> dict[str, Any]:
        return asdict(self)


def evaluate(
    model: nn.Module,
    loader: Loader,
    world: World,
    autocast: Callable[[], AbstractContextManager[Any]],
    *,
    sharded: bool = False,
    between: Callable[[], None] = lambda: None,
) -> tuple[float, float]:
    """(mean loss, accuracy) over all images and ranks; calls ``between`` after every batch."""
    world.share_buffers(model)
    was_training = model.training
    model.eval()
    # Under FSDP weights are gathered for each layer in turn: there is nothing to keep folded.
    keep = nullcontext() if sharded else wnfused.frozen(model)
    loss = torch.zeros((), device=world.device, dtype=torch.float32)
    correct = torch.zeros((), device=world.device, dtype=torch.int64)
    try:
        with torch.no_grad(), keep:
            for images, labels in loader.epoch(0):
                with autocast():
                    logits = model(images)
                loss += F.cross_entropy(logits.float(), labels, reduction="sum")
                correct += (logits.argmax(1) == labels).sum()
                between()
    finally:
        if sharded:
            reshard(model)
        model.train(was_training)
    total_loss, total_correct = world.sum(torch.stack([loss.double(), correct.double()]).cpu()).tolist()
    count = sum(loader.global_size(batch) for batch in range(len(loader)))
    return total_loss / count, total_correct / count
