"""The time of one training step of the same network under each normalization, interleaved."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wnfused.diagnostics.timing import Timing, interleave
from wnfused.train.build import network
from wnfused.train.config import Config

KINDS: dict[str, dict[str, Any]] = {  # the first is the baseline
    "no normalization": {"norm": "none", "init": "robust"},
    "wnfused": {"norm": "weight", "init": "robust"},
    "torch's weight_norm": {"norm": "weight", "init": "robust", "impl": "torch"},
    "batch norm": {"norm": "batch", "init": "he"},
}


def measure(config: Config, images: Tensor, labels: Tensor, rounds: int = 12) -> dict[str, Timing]:
    """Time steps of the network that ``config`` describes on one batch; ratios are to no normalization."""
    classes = int(labels.max()) + 1
    steps = {name: _step(replace(config, **kind), images, labels, classes) for name, kind in KINDS.items()}
    return interleave(steps, rounds=rounds)


def _step(config: Config, images: Tensor, labels: Tensor, classes: int) -> Callable[[], None]:
    channels, height, width = images.shape[1:]
    model: nn.Module = network(config, (channels, height, width), classes, lambda: images)
    # A tiny learning rate keeps every network finite; a step costs the same at any.
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, momentum=config.momentum, weight_decay=config.weight_decay)

    def step() -> None:
        optimizer.zero_grad()
        torch.autograd.backward(F.cross_entropy(model(images), labels))
        optimizer.step()

    return step


def from_dicts(stored: Mapping[str, Mapping[str, float]]) -> dict[str, Timing]:
    return {name: Timing(**times) for name, times in stored.items()}
