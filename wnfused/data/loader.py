"""The batches of an epoch. Order and augmentation depend only on the seed, the epoch and the batch number."""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from wnfused.data.augment import Augmentation, Draws, cut_out, draw, move
from wnfused.data.seeds import generator
from wnfused.data.splits import DataError, Split, check_integer

PLAIN = Augmentation()


class Loader:
    """Augmented and normalized batches of a split, on ``device``; the bytes are copied there once.

    ``batch_size`` counts the images of all ``world`` processes together. Each process gets its slice of every batch, so
    together they see the same batches as a single process. No random state is kept between batches, so an epoch can
    start at any of them.
    """

    def __init__(
        self,
        split: Split,
        batch_size: int,
        *,
        mean: Sequence[float],
        std: Sequence[float],
        augmentation: Augmentation = PLAIN,
        shuffle: bool = True,
        drop_last: bool = False,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
        device: torch.device | str = "cpu",
        channels_last: bool = False,
    ) -> None:
        for name, value, least in (("batch_size", batch_size, 1), ("world", world, 1), ("rank", rank, 0)):
            check_integer("Loader", name, value, least)
        check_integer("Loader", "seed", seed)
        if rank >= world:
            raise ValueError(f"Loader: rank: expected 0 to {world - 1} for world={world}, got {rank}")
        if len(split) == 0:
            raise DataError("Loader: split: expected at least one image, got none")
        # A single smaller batch is fine for evaluation, but in training it would change the recipe.
        if batch_size > len(split) and (shuffle or drop_last):
            raise DataError(
                f"Loader: batch_size: expected at most the number of images, {len(split)}, got {batch_size}"
            )
        self.images, self.labels = split.images.to(device), split.labels.to(device)
        self.scale, self.shift = _normalization(mean, std, split.images.shape[1], self.images.device)
        self.batch_size, self.augmentation, self.seed = int(batch_size), augmentation, int(seed)
        self.shuffle, self.drop_last = shuffle, drop_last
        self.rank, self.world = int(rank), int(world)
        self.memory_format = torch.channels_last if channels_last else torch.contiguous_format

    def __len__(self) -> int:
        """The number of batches per epoch."""
        whole, rest = divmod(len(self.images), self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def global_size(self, batch: int) -> int:
        """The number of images in batch ``batch``, over all processes; only the last may be below ``batch_size``."""
        check_integer("Loader", "batch", batch, 0)
        if batch >= len(self):
            raise ValueError(f"Loader: batch: expected 0 to {len(self) - 1}, got {batch}")
        return min(self.batch_size, len(self.images) - batch * self.batch_size)

    def epoch(self, number: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """This process's (images, labels) of epoch ``number``, starting at batch ``start``.

        Images are float32 [B, C, H, W], labels int64 [B]. In a smaller last batch, some processes may get fewer images
        than others, or none.
        """
        check_integer("Loader", "number", number, 0)
        check_integer("Loader", "start", start, 0)
        if start > len(self):
            raise ValueError(f"Loader: start: expected 0 to {len(self)}, got {start}")
        return self._batches(int(number), int(start))

    def _batches(self, epoch: int, start: int) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.arange(len(self.images))
        if self.shuffle:
            order = torch.randperm(len(self.images), generator=generator("order", self.seed, epoch))
        for batch in range(start, len(self)):
            count = self.global_size(batch)
            first = batch * self.batch_size
            chosen, draws = self._slice(order[first : first + count], self._draw(epoch, batch, count))
            yield self._make(chosen, draws), self.labels.index_select(0, chosen)

    def _draw(self, epoch: int, batch: int, count: int) -> Draws | None:
        if self.augmentation == PLAIN:
            return None
        height, width = self.images.shape[2:]
        source = generator("augmentation", self.seed, epoch, batch)
        return draw(count, height, width, self.augmentation.crop, source)

    def _slice(self, chosen: Tensor, draws: Draws | None) -> tuple[Tensor, Draws | None]:
        """This process's part, moved to the device in one copy."""
        count = len(chosen)
        own = slice(count * self.rank // self.world, count * (self.rank + 1) // self.world)
        packed = torch.stack((chosen, *(draws or ())))[:, own].to(self.images.device, non_blocking=True)
        return packed[0], None if draws is None else Draws(*packed[1:])

    def _make(self, chosen: Tensor, draws: Draws | None) -> Tensor:
        moved = self.images.index_select(0, chosen)  # uint8 [B, C, H, W]
        if draws is not None:
            moved = move(moved, self.augmentation, draws)
        # Two separately rounded operations: a fused multiply-add would differ between devices.
        images = moved.to(torch.float32, memory_format=torch.contiguous_format).mul_(self.scale).add_(self.shift)
        if draws is not None and self.augmentation.cutout:
            cut_out(images, self.augmentation.cutout, draws.row, draws.column)
        return images.contiguous(memory_format=self.memory_format)


def _normalization(
    mean: Sequence[float], std: Sequence[float], channels: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """(scale, shift), each [1, C, 1, 1], that turn bytes into (byte/255 − mean)/std."""
    for name, values in (("mean", mean), ("std", std)):
        if len(values) != channels or not all(math.isfinite(v) for v in values):
            raise ValueError(f"Loader: {name}: expected {channels} numbers, one for each channel, got {tuple(values)}")
    if min(std) <= 0:
        raise ValueError(f"Loader: std: expected numbers > 0, got {tuple(std)}")
    scale = torch.tensor([1 / (255 * s) for s in std], dtype=torch.float32, device=device)
    shift = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)], dtype=torch.float32, device=device)
    return scale.reshape(1, -1, 1, 1), shift.reshape(1, -1, 1, 1)
