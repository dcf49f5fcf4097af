"""The learning rate of each step: a pure function of the step, so that resuming needs nothing but the step's number.

The names are the schedules of the paper's experiments and of its authors' code. They scale with the length of the run:
``resnet`` means 91 and 136 of 182 epochs, and 50 and 75 of 100. Marks are rounded up, as in the authors' code (a decay
comes with the first epoch that starts at or after it), and no two are the same. So no phase in the middle is skipped: a
run with too few epochs for all phases has the first ones and leaves out the last. One epoch has ``lr``; two epochs of
``resnet`` have ``lr`` and ``lr``/10.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from wnfused.train.errors import RunError, nearest

if TYPE_CHECKING:
    from wnfused.train.config import Config

# name: (factor, the epochs after which it is applied, of how many)
NAMES: dict[str, tuple[float, tuple[int, ...], int]] = {
    "constant": (1.0, (), 1),
    "third": (0.1, (166,), 500),  # plain CNNs; the paper rounds 500/3 down
    "thirds": (0.1, (1, 2), 3),  # MLPs: epochs 50 and 100 of 150
    "halves": (0.1, (2, 3), 4),
    "resnet": (0.1, (91, 136), 182),  # He et al. (2016): 32k and 48k of 64k steps
    "wrn": (0.2, (60, 120, 160), 200),  # Zagoruyko & Komodakis (2016)
}


def milestones(schedule: str, epochs: int) -> tuple[float, tuple[int, ...]]:
    """(factor, the numbers of completed epochs at which the learning rate is multiplied by it)."""
    if schedule in NAMES:
        factor, marks, length = NAMES[schedule]
        return factor, _distinct(-(-mark * epochs // length) for mark in marks)  # rounded up
    if "@" not in schedule:
        raise RunError(f"schedule: unknown {schedule!r}, {nearest(schedule, [*NAMES, 'FACTOR@EPOCH,EPOCH'])}")
    try:
        factor_text, _, marks_text = schedule.partition("@")
        factor, marks = float(factor_text), tuple(int(mark) for mark in marks_text.split(","))
    except ValueError:
        raise RunError(f"schedule: expected FACTOR@EPOCH,EPOCH as in 0.1@91,136, got {schedule!r}") from None
    if factor <= 0 or min(marks) < 0 or list(marks) != sorted(marks):
        raise RunError(f"schedule: expected a factor above 0 and rising epochs, got {schedule!r}")
    return factor, marks


def _distinct(marks: Iterable[int]) -> tuple[int, ...]:
    """Rising marks, at least one epoch apart; those pushed past the end of a short run never come."""
    apart: list[int] = []
    for mark in marks:
        apart.append(max(mark, apart[-1] + 1) if apart else mark)
    return tuple(apart)


def learning_rate(config: Config, step: int, steps_per_epoch: int) -> float:
    """The learning rate of step 0, 1, …"""
    factor, marks = milestones(config.schedule, config.epochs)
    rate = config.lr * factor ** sum(step // steps_per_epoch >= mark for mark in marks)
    warm = round(config.warmup_epochs * steps_per_epoch)
    if step >= warm:
        return rate
    alpha = (step + 1) / warm  # the last step of the warmup has the full rate
    share = {"linear": alpha, "quadratic": alpha * alpha, "constant": 0.0}[config.warmup]
    return config.warmup_lr + share * (rate - config.warmup_lr)
