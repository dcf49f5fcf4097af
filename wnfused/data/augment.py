"""Augmentation of whole batches on any device: random crop and flip on bytes, cutout on normalized images.

Random numbers are drawn on the CPU, so the images do not depend on the device.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from wnfused.data.splits import check_integer


@dataclass(frozen=True)
class Augmentation:
    """The augmentation of training images; each part is off by default.

    ``crop``: pad the image with this many black pixels on each side, then take a random window of the original size.
    ``flip``: mirror each image left to right with probability 1/2.
    ``cutout``: set a square of this side, centred on a random pixel and clipped at the edges, to the mean.
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
    """The random numbers of a batch: five for each image, all int64 [B]."""

    top: Tensor  # where the window starts in the padded image, 0 to 2·crop
    left: Tensor
    flipped: Tensor  # 0 or 1
    row: Tensor  # the pixel that cutout's square is centred on
    column: Tensor


def draw(count: int, height: int, width: int, crop: int, source: torch.Generator) -> Draws:
    """Draw all five, even for parts that are off, so that enabling one does not change the others' draws."""
    bounds = (2 * crop + 1, 2 * crop + 1, 2, height, width)
    return Draws(*(torch.randint(bound, (count,), generator=source) for bound in bounds))


def move(images: Tensor, augmentation: Augmentation, draws: Draws) -> Tensor:
    """Crop and flip uint8 images [B, C, H, W]; the shape stays the same."""
    if augmentation.crop:
        images = _crop(images, augmentation.crop, draws.top, draws.left)
    if augmentation.flip:
        images = _flip(images, draws.flipped)
    return images


def _crop(images: Tensor, margin: int, top: Tensor, left: Tensor) -> Tensor:
    """Crop a window from each padded image.

    A window is a contiguous run of the padded image's bytes with gaps between rows and channels. One copy per image
    extracts the run, and strides skip the gaps. That is several times faster than gathering pixel by pixel.
    """
    count, channels = images.shape[:2]
    if count == 0:
        return images
    padded = F.pad(images, (margin, margin, margin, margin))  # [B, C, rows, columns]
    rows, columns = padded.shape[2:]
    size = channels * rows * columns
    run = size - 2 * margin * (columns + 1)  # from the first byte of a window to its last
    runs = padded.as_strided((count * size - run + 1, run), (1, 1))  # one run starting at each byte
    starts = torch.arange(count, device=images.device) * size + top * columns + left
    return runs.index_select(0, starts).as_strided(images.shape, (run, rows * columns, columns, 1))


def _flip(images: Tensor, flipped: Tensor) -> Tensor:
    """Select each image or its mirror image as a whole, which is faster than pixel by pixel."""
    both = torch.cat((images, images.flip(3)))  # [2B, C, H, W]
    return both.index_select(0, torch.arange(len(images), device=images.device) + len(images) * flipped)


def cut_out(images: Tensor, side: int, row: Tensor, column: Tensor) -> None:
    """Set a square of each image to zero, in place; zero is the mean of normalized images."""
    height, width = images.shape[2:]
    rows = _near(row, height, side)[:, :, None]  # [B, H, 1], 1 inside the square
    columns = _near(column, width, side)[:, None, :]  # [B, 1, W]
    images.mul_(1 - (rows * columns)[:, None])


def _near(centre: Tensor, size: int, side: int) -> Tensor:
    """[B, size]: 1 for the ``side`` positions around each centre, 0 for the others."""
    distance = torch.arange(size, device=centre.device) - (centre - side // 2)[:, None]
    return ((distance >= 0) & (distance < side)).float()
