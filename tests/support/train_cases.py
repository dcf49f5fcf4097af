"""A data set of a few small images that a tiny network can learn, and configurations that train on it in no time."""

from typing import Any

import pytest
import torch
from torch import Tensor

from wnfused import data
from wnfused.data import Dataset, Split
from wnfused.train import Config, run

CLASSES = 3


def split(count: int, seed: int) -> Split:
    """Noise with a bright row that tells the class, uint8 [count, 1, 6, 6]."""
    numbers = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=numbers)
    images = torch.randint(0, 120, (count, 1, 6, 6), generator=numbers, dtype=torch.uint8)
    images[torch.arange(count), 0, 2 * labels] = 220
    return Split(images, labels)


def dataset(train: int = 45, test: int = 21) -> Dataset:
    return Dataset("digits", split(train, 1), split(test, 2), CLASSES, (0.3,), (0.25,))


def use(monkeypatch: pytest.MonkeyPatch, images: Dataset | None = None) -> None:
    """``data.load`` gives the tiny images, and no plots are drawn, which takes longer than these runs."""
    tiny = images or dataset()
    monkeypatch.setattr(data, "load", lambda name, **options: tiny)
    monkeypatch.setattr(run, "_plot", lambda path, progress: None)


def use_for_good() -> None:
    """The same, in a process of its own."""
    use(pytest.MonkeyPatch())


def config(**changes: Any) -> Config:
    """41 training images in 5 batches, of which the last has 5, and 4 to validate with."""
    settings: dict[str, Any] = {
        "model": "mlp-2-12", "epochs": 4, "batch_size": 9, "lr": 0.05, "validation": 0.1, "seed": 3, "crop": 1,
        "flip": True, "device": "cpu",
    }  # fmt: skip
    return Config(**{**settings, **changes})


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    """Bit for bit."""
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
