"""The images of a run: training, validation and test set, as loaders of batches."""

from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from wnfused import data
from wnfused.data import Augmentation, DataError, Loader, Split
from wnfused.train.config import Config
from wnfused.train.distributed import World
from wnfused.train.result import RunError

EVALUATION_BATCH = 512


@dataclass(frozen=True)
class Images:
    train: Loader
    validation: Loader | None
    test: Loader
    first_batch: Tensor  # [B, C, H, W], of all ranks, for data-dependent initialization
    shape: tuple[int, int, int]
    classes: int


def load(config: Config, world: World) -> Images:
    """Load the data set, downloading it if needed; raises RunError."""
    try:
        if world.size > 1:  # rank 0 downloads; the others read its files
            world.on_rank_0(lambda: _download(config))
        return loaders(config, _read(config), world)
    except DataError as error:
        raise RunError(str(error)) from error


def _download(config: Config) -> None:
    _read(config)


def _read(config: Config) -> data.Dataset:
    directory = None if config.data_dir is None else Path(config.data_dir)
    try:
        return data.load(config.data, data_dir=directory, download=config.download)
    except DataError as error:
        raise RunError(str(error)) from error


def _prepared(config: Config, dataset: data.Dataset) -> data.Dataset:
    """The data set with the number of images, their size and their normalization that the configuration requests."""
    if config.train_images:
        dataset = replace(dataset, train=data.first(dataset.train, config.train_images))
    if config.image_size:
        train, test = (data.shrunk(split, config.image_size) for split in (dataset.train, dataset.test))
        dataset = replace(dataset, train=train, test=test)
    if config.normalization == "authors":
        if config.data not in data.AUTHORS:
            raise RunError(f"normalization: the paper's authors did not use {config.data}; expected 'data'")
        mean, std = data.AUTHORS[config.data]
        dataset = replace(dataset, mean=mean, std=std)
    return dataset


def loaders(config: Config, dataset: data.Dataset, world: World) -> Images:
    dataset = _prepared(config, dataset)
    train, held_out = dataset.train, None
    if config.validation:
        train, held_out = data.hold_out(train, config.validation, config.seed)
    if config.batch_size > len(train):
        raise RunError(
            f"batch_size: expected at most {len(train)}, the training images of {config.data}, got {config.batch_size}"
        )
    augmentation = Augmentation(crop=config.crop or 0, flip=bool(config.flip), cutout=config.cutout)

    def loader(split: Split, size: int, alone: bool = False, training: bool = False) -> Loader:
        return Loader(
            split,
            size,
            mean=dataset.mean,
            std=dataset.std,
            augmentation=augmentation if training else Augmentation(),
            shuffle=training,
            drop_last=training and config.drop_last,
            seed=config.seed,
            rank=0 if alone else world.rank,
            world=1 if alone else world.size,
            device="cpu" if alone else world.device,
            channels_last=config.channels_last,
        )

    size = EVALUATION_BATCH * world.size
    images = Images(
        train=loader(train, config.batch_size, training=True),
        validation=None if held_out is None else loader(held_out, size),
        test=loader(dataset.test, size),
        first_batch=next(loader(train, config.batch_size, alone=True, training=True).epoch(0))[0],
        shape=_shape(dataset.train.images),
        classes=dataset.classes,
    )
    _check_parts(config, images.train, world)
    return images


def _shape(images: Tensor) -> tuple[int, int, int]:
    channels, height, width = images.shape[1:]
    return channels, height, width


def _check_parts(config: Config, loader: Loader, world: World) -> None:
    """Batch norm needs two images in each part of a batch; other networks accept empty parts."""
    least = min(loader.global_size(batch) for batch in (0, len(loader) - 1))
    parts = world.size * config.accumulate
    if config.norm == "batch" and least < 2 * parts:
        raise RunError(
            f"batch_size: {least} images in {parts} parts leave fewer than 2 for batch norm; pass drop_last=True or "
            "another batch_size"
        )
