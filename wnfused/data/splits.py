"""What a data set is in memory: images as bytes, labels, and the seeded cut into training and validation."""

from dataclasses import dataclass
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from wnfused.data.seeds import generator


class DataError(ValueError):
    """Data that is missing, corrupt or too small; the message says what, where it comes from and how to get it."""


@dataclass(frozen=True, eq=False)
class Split:
    """Images with their labels."""

    images: Tensor  # uint8 [N, C, H, W]
    labels: Tensor  # int64 [N]

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.ndim != 4:
            got = f"{self.images.dtype} of shape {tuple(self.images.shape)}"
            raise ValueError(f"Split: images: expected torch.uint8 of shape (N, C, H, W), got {got}")
        if self.labels.dtype != torch.int64 or tuple(self.labels.shape) != (len(self.images),):
            got = f"{self.labels.dtype} of shape {tuple(self.labels.shape)}"
            raise ValueError(f"Split: labels: expected torch.int64 of shape ({len(self.images)},), got {got}")

    def __len__(self) -> int:
        return len(self.images)


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set: what to train on, what to test on, and the statistics its pixels (0 to 1) are normalized by."""

    name: str
    train: Split
    test: Split
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]


def check_integer(where: str, name: str, value: Any, least: int | None = None) -> None:
    """An int, at least ``least``; True and False are none."""
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise TypeError(f"{where}: {name}: expected an int, got {value!r}")
    if least is not None and value < least:
        raise ValueError(f"{where}: {name}: expected an int >= {least}, got {value}")


def hold_out(split: Split, fraction: float, seed: int) -> tuple[Split, Split]:
    """Cut ``fraction`` of the images off for validation: (training, validation).

    Which images is a function of ``seed`` and the number of images alone; both parts keep the order of ``split``.
    """
    if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 < fraction < 1:
        raise ValueError(f"hold_out: fraction: expected a number between 0 and 1, got {fraction!r}")
    check_integer("hold_out", "seed", seed)
    count = round(len(split) * fraction)
    if not 0 < count < len(split):
        raise DataError(f"hold_out: fraction: {fraction} of {len(split)} images leaves one of the two parts empty")
    order = torch.randperm(len(split), generator=generator("hold out", int(seed)))
    return _take(split, order[count:]), _take(split, order[:count])


def _take(split: Split, chosen: Tensor) -> Split:
    chosen = chosen.sort().values
    return Split(split.images[chosen], split.labels[chosen])


def check_labels(labels: Tensor, classes: int, where: object) -> None:
    """Labels as they were read from the file ``where``."""
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        wrong = low if low < 0 else high
        raise DataError(f"{where} is corrupt: it has the label {wrong}, expected 0 to {classes - 1}")
