"""The time of one training step under each normalization, measured in turns."""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wnfused.train.build import network
from wnfused.train.config import Config

PLAIN = "no normalization"
KINDS: dict[str, dict[str, Any]] = {
    PLAIN: {"norm": "none", "init": "robust"},
    "wnfused": {"norm": "weight", "init": "robust"},
    "torch's weight_norm": {"norm": "weight", "init": "robust", "impl": "torch"},
    "batch norm": {"norm": "batch", "init": "he"},
}


@dataclass(frozen=True)
class StepTime:
    """One network's share of the measurement."""

    seconds: float  # median time of a step
    ratio: float  # median, over rounds, of its time against that without normalization in the same round

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


def measure(config: Config, images: Tensor, labels: Tensor, rounds: int = 12) -> dict[str, StepTime]:
    """Steps of the Config's network on one batch; all but the first two rounds are timed.

    Every second round goes backwards, so that whatever else the machine does disturbs all of them alike.
    """
    classes = int(labels.max()) + 1
    steps = {name: _step(replace(config, **kind), images, labels, classes) for name, kind in KINDS.items()}
    samples: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(-2, rounds):
        for name in list(steps) if number % 2 else reversed(list(steps)):
            start = time.perf_counter()
            steps[name]()
            if number >= 0:
                samples[name].append(time.perf_counter() - start)
    base = samples[PLAIN]
    return {
        name: StepTime(median(own), median(a / b for a, b in zip(own, base, strict=True)))
        for name, own in samples.items()
    }


def _step(config: Config, images: Tensor, labels: Tensor, classes: int) -> Callable[[], None]:
    channels, height, width = images.shape[1:]
    model: nn.Module = network(config, (channels, height, width), classes, lambda: images)
    # The weights stay near their start, whatever the network: a step costs the same at any learning rate.
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, momentum=config.momentum, weight_decay=config.weight_decay)

    def step() -> None:
        optimizer.zero_grad()
        torch.autograd.backward(F.cross_entropy(model(images), labels))
        optimizer.step()

    return step


def from_dicts(stored: Mapping[str, Mapping[str, float]]) -> dict[str, StepTime]:
    return {name: StepTime(**times) for name, times in stored.items()}
