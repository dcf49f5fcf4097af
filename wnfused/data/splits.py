"""A data set in memory: images as bytes, labels, and the seeded split into training and validation."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from wnfused.checks import is_integer, is_number
from wnfused.data.seeds import generator


class DataError(ValueError):
    """Data is missing, corrupt or too small; the message says what is wrong and how to get the data."""


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
    """A data set: training and test splits, and the mean and std that normalize its pixels (0 to 1)."""

    name: str
    train: Split
    test: Split
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]


def check_integer(where: str, name: str, value: Any, least: int | None = None) -> None:
    """Check for an int of at least ``least``; bool is not accepted."""
    if not is_integer(value):
        raise TypeError(f"{where}: {name}: expected an int, got {value!r}")
    if least is not None and value < least:
        raise ValueError(f"{where}: {name}: expected an int >= {least}, got {value}")


def hold_out(split: Split, fraction: float, seed: int) -> tuple[Split, Split]:
    """Hold out ``fraction`` of the images for validation: (training, validation).

    The choice depends only on ``seed`` and the number of images; both parts keep the order of ``split``.
    """
    if not is_number(fraction) or not 0 < fraction < 1:
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


def first(split: Split, count: int) -> Split:
    """The first ``count`` images."""
    check_integer("first", "count", count, 1)
    if count > len(split):
        raise DataError(f"first: count: expected at most {len(split)}, the number of images, got {count}")
    return Split(split.images[:count], split.labels[:count])


def shrunk(split: Split, size: int) -> Split:
    """Images of ``size`` × ``size`` pixels, each the average of the pixels that it stands for."""
    check_integer("shrunk", "size", size, 1)
    height, width = split.images.shape[2:]
    if height % size or width % size:
        raise DataError(f"shrunk: size: expected a divisor of the images' {height} × {width} pixels, got {size}")
    blocks = (height // size, width // size)
    parts = [F.avg_pool2d(part.float(), blocks).round().byte() for part in torch.split(split.images, 4096)]
    return Split(torch.cat(parts), split.labels)


def check_labels(labels: Tensor, classes: int, where: object) -> None:
    """Check labels that were read from the file ``where``."""
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        wrong = low if low < 0 else high
        raise DataError(f"{where} is corrupt: expected labels 0 to {classes - 1}, got {wrong}")
