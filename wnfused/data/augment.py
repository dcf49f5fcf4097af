"""Augmentation of whole batches: random crop, flip and cutout, on bytes as long as possible, on any device.

What is random is drawn on the CPU, so every device makes the same images of the same draws.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from wnfused.data.splits import check_integer


@dataclass(frozen=True)
class Augmentation:
    """What happens to a training image: each part is off by default.

    ``crop``: the image gets so many black pixels on each side, and a window of its own size is cut out anywhere.
    ``flip``: left and right are exchanged for half of the images.
    ``cutout``: a square of this side, centred on any pixel, is set to the mean; what hangs over the edge is lost.
    """

    crop: int = 0
    flip: bool = False
    cutout: int = 0

    def __post_init__(self) -> None:
        check_integer("Augmentation", "crop", self.crop, 0)
        check_integer("Augmentation", "cutout", self.cutout, 0)
        if not isinstance(self.flip, bool):
            raise TypeError(f"Augmentation: flip: expected True or False, got {self.flip!r}")


class Draws(NamedTuple):
    """The random part of a batch: five numbers for each image, all int64 [B]."""

    top: Tensor  # where the window starts in the padded image, 0 to 2·crop
    left: Tensor
    flipped: Tensor  # 0 or 1
    row: Tensor  # the pixel that cutout's square is centred on
    column: Tensor


def draw(count: int, height: int, width: int, crop: int, source: torch.Generator) -> Draws:
    """All five, also for parts that are switched off: switching one on leaves what the others draw alone."""
    bounds = (2 * crop + 1, 2 * crop + 1, 2, height, width)
    return Draws(*(torch.randint(bound, (count,), generator=source) for bound in bounds))


def move(images: Tensor, augmentation: Augmentation, draws: Draws) -> Tensor:
    """Crop and flip bytes: [B, C, H, W] to the same."""
    if augmentation.crop:
        images = _crop(images, augmentation.crop, draws.top, draws.left)
    if augmentation.flip:
        images = _flip(images, draws.flipped)
    return images


def _crop(images: Tensor, margin: int, top: Tensor, left: Tensor) -> Tensor:
    """A window is a run of its padded image's bytes, with gaps between rows and channels.

    So one copy for each image cuts the runs out, and the gaps stay behind in the strides. That is several times faster
    than to gather pixel by pixel.
    """
    count, channels = images.shape[:2]
    if count == 0:
        return images
    padded = F.pad(images, (margin, margin, margin, margin))  # [B, C, rows, columns]
    rows, columns = padded.shape[2:]
    size = channels * rows * columns
    run = size - 2 * margin * (columns + 1)  # from the first byte of a window to its last
    runs = padded.as_strided((count * size - run + 1, run), (1, 1))  # one that starts at each byte
    starts = torch.arange(count, device=images.device) * size + top * columns + left
    return runs.index_select(0, starts).as_strided(images.shape, (run, rows * columns, columns, 1))


def _flip(images: Tensor, flipped: Tensor) -> Tensor:
    """Each image or its mirror image is picked whole, which is faster than pixel by pixel."""
    both = torch.cat((images, images.flip(3)))  # [2B, C, H, W]
    return both.index_select(0, torch.arange(len(images), device=images.device) + len(images) * flipped)


def cut_out(images: Tensor, side: int, row: Tensor, column: Tensor) -> None:
    """Set a square of each image to zero, in place; of normalized images that is the mean."""
    height, width = images.shape[2:]
    rows = _near(row, height, side)[:, :, None]  # [B, H, 1], 1 inside the square
    columns = _near(column, width, side)[:, None, :]  # [B, 1, W]
    images.mul_(1 - (rows * columns)[:, None])


def _near(centre: Tensor, size: int, side: int) -> Tensor:
    """[B, size]: 1 for the ``side`` positions around each centre, 0 for the others."""
    distance = torch.arange(size, device=centre.device) - (centre - side // 2)[:, None]
    return ((distance >= 0) & (distance < side)).float()
