"""Optimization: the learning-rate schedule, SGD, and a running average of the weights.

The learning rate is a pure function of the step, so a checkpoint needs no scheduler state. The named schedules are
those of the paper's experiments and of its authors' code. They scale with the length of the run: ``resnet`` decays
after 91 and 136 of 182 epochs, and after 50 and 75 of 100. Milestones are rounded up, as in the authors' code (a decay
applies from the first epoch that starts at or after it), and are distinct, so no phase in the middle is skipped: a run
with fewer epochs than phases has the first phases and omits the last ones. Two epochs of ``resnet`` have ``lr`` and
``lr``/10.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import SGD

from wnfused.suggestions import did_you_mean
from wnfused.train.distributed import local, part_like, whole_like
from wnfused.train.result import RunError

if TYPE_CHECKING:
    from wnfused.train.config import Config

# name: (factor, the epochs after which it is applied, in a run of how many epochs)
SCHEDULES: dict[str, tuple[float, tuple[int, ...], int]] = {
    "constant": (1.0, (), 1),
    "third": (0.1, (166,), 500),  # plain CNNs; the paper rounds 500/3 down
    "thirds": (0.1, (1, 2), 3),  # MLPs: epochs 50 and 100 of 150
    "halves": (0.1, (2, 3), 4),
    "resnet": (0.1, (91, 136), 182),  # He et al. (2016): 32k and 48k of 64k steps
    "wrn": (0.2, (60, 120, 160), 200),  # Zagoruyko & Komodakis (2016)
}


def milestones(schedule: str, epochs: int) -> tuple[float, tuple[int, ...]]:
    """(factor, the numbers of completed epochs at which the learning rate is multiplied by it)."""
    if schedule in SCHEDULES:
        factor, marks, length = SCHEDULES[schedule]
        return factor, _distinct(-(-mark * epochs // length) for mark in marks)  # rounded up
    if "@" not in schedule:
        hint = did_you_mean(schedule, [*SCHEDULES, "FACTOR@EPOCH,EPOCH"])
        raise RunError(f"schedule: unknown {schedule!r}, {hint}")
    try:
        factor_text, _, marks_text = schedule.partition("@")
        factor, marks = float(factor_text), tuple(int(mark) for mark in marks_text.split(","))
    except ValueError:
        raise RunError(f"schedule: expected FACTOR@EPOCH,EPOCH as in 0.1@91,136, got {schedule!r}") from None
    if factor <= 0 or min(marks) < 0 or list(marks) != sorted(marks):
        raise RunError(f"schedule: expected a factor above 0 and increasing epochs, got {schedule!r}")
    return factor, marks


def _distinct(marks: Iterable[int]) -> tuple[int, ...]:
    """Increasing marks, at least one epoch apart; those beyond the end of a short run never apply."""
    apart: list[int] = []
    for mark in marks:
        apart.append(max(mark, apart[-1] + 1) if apart else mark)
    return tuple(apart)


def learning_rate(config: Config, step: int, steps_per_epoch: int) -> float:
    """The learning rate of a step, counted from 0."""
    factor, marks = milestones(config.schedule, config.epochs)
    rate = config.lr * factor ** sum(step // steps_per_epoch >= mark for mark in marks)
    warm = round(config.warmup_epochs * steps_per_epoch)
    if step >= warm:
        return rate
    alpha = (step + 1) / warm  # 1 in the last step of the warmup
    share = {"linear": alpha, "quadratic": alpha * alpha, "constant": 0.0}[config.warmup]
    return config.warmup_lr + share * (rate - config.warmup_lr)


def sgd(model: nn.Module, config: Config) -> SGD:
    """SGD with weight decay on all parameters, as in the paper, or with ``decay_all=False`` on weights only."""
    decayed: list[nn.Parameter] = []
    spared: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        (decayed if config.decay_all or is_weight(name, parameter) else spared).append(parameter)
    groups: list[dict[str, Any]] = [{"params": decayed}, {"params": spared, "weight_decay": 0.0}]
    return SGD(
        [group for group in groups if group["params"]],
        lr=config.lr,
        momentum=config.momentum,
        nesterov=config.nesterov,
        weight_decay=config.weight_decay,
        foreach=True,  # a few launches for all parameters instead of a few for each
    )


def is_weight(name: str, parameter: nn.Parameter) -> bool:
    """True for weights and directions; False for gains, biases and the parameters of batch norm."""
    gain = name.endswith(("weight_g", "parametrizations.weight.original0"))
    return parameter.ndim > 1 and not gain


class EMA:
    """average ← decay · average + (1 − decay) · weights, after every step; buffers of batch norm included.

    The decay of step t is at most (1 + t) / (10 + t), so that the random initialization is forgotten.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        entries = [*model.named_parameters(), *model.named_buffers()]
        self.averaged = {name: tensor for name, tensor in entries if tensor.is_floating_point()}
        self.sources = [local(tensor.detach()) for tensor in self.averaged.values()]
        self.values = [source.clone() for source in self.sources]

    @torch.no_grad()
    def update(self, step: int) -> None:
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(self.values, self.sources, 1 - decay)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """A context in which the model has the averages as its weights; restores its own bit for bit."""
        with torch.no_grad():
            own = [source.clone() for source in self.sources]
            torch._foreach_copy_(self.sources, self.values)
            try:
                yield
            finally:
                torch._foreach_copy_(self.sources, own)

    def state(self) -> dict[str, Tensor]:
        """The averages as whole tensors. All ranks must call it."""
        return {n: whole_like(v, t) for (n, t), v in zip(self.averaged.items(), self.values, strict=True)}

    def load(self, state: dict[str, Tensor]) -> None:
        for (name, tensor), value in zip(self.averaged.items(), self.values, strict=True):
            value.copy_(local(part_like(state[name], tensor)))
