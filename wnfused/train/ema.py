"""A running average of the weights, which is validated and kept in the weights' place."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from wnfused.train.sharded import local, part_like, whole_like


class EMA:
    """average ← decay · average + (1 − decay) · weights, after every step; batch norm's statistics alike.

    In the first steps the decay is less, (1 + t) / (10 + t), so that the random start is forgotten.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.averaged = averaged(model)
        self.sources = [local(tensor.detach()) for tensor in self.averaged.values()]
        self.values = [source.clone() for source in self.sources]

    @torch.no_grad()
    def update(self, step: int) -> None:
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(self.values, self.sources, 1 - decay)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The model has the averages as its weights; afterwards, bit for bit, its own again."""
        with torch.no_grad():
            own = [source.clone() for source in self.sources]
            torch._foreach_copy_(self.sources, self.values)
            try:
                yield
            finally:
                torch._foreach_copy_(self.sources, own)

    def state(self) -> dict[str, Tensor]:
        return {n: whole_like(v, t) for (n, t), v in zip(self.averaged.items(), self.values, strict=True)}

    def load(self, state: dict[str, Tensor]) -> None:
        for (name, tensor), value in zip(self.averaged.items(), self.values, strict=True):
            value.copy_(local(part_like(state[name], tensor)))


def averaged(model: nn.Module) -> dict[str, Tensor]:
    entries = [*model.named_parameters(), *model.named_buffers()]
    return {name: tensor for name, tensor in entries if tensor.is_floating_point()}
