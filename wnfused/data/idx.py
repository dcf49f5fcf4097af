"""MNIST's file format, idx: a magic number, big-endian sizes, then bytes; optionally compressed with gzip."""

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from wnfused.data.sources import IDX_FILES
from wnfused.data.splits import DataError, Split, check_labels

LARGEST = 1 << 31  # bytes
SUBFOLDERS = {"mnist": ("mnist", "MNIST/raw"), "fashion-mnist": ("fashion-mnist", "FashionMNIST/raw")}


def find_idx(name: str, root: Path) -> list[Path]:
    """The four files, plain or .gz, in ``root`` or in the data set's usual subfolder."""
    lacking = ""
    for folder in (*(root / sub for sub in SUBFOLDERS[name]), root):
        found = [path for file in IDX_FILES if (path := _either(folder / file))]
        if len(found) == len(IDX_FILES):
            return found
        if found:
            missing = next(file for file in IDX_FILES if not _either(folder / file))
            lacking = lacking or f"{missing}[.gz] is missing from {folder}"
    raise DataError(lacking or f"{IDX_FILES[0]}[.gz] and the three files that go with it are not in {root}")


def _either(path: Path) -> Path | None:
    return next((p for p in (path, path.with_name(f"{path.name}.gz")) if p.is_file()), None)


def read_idx_splits(files: list[Path], classes: int) -> tuple[Split, Split]:
    """(train, test) from the files that ``find_idx`` found."""
    train_images, train_labels, test_images, test_labels = files
    return _split(train_images, train_labels, classes), _split(test_images, test_labels, classes)


def _split(image_file: Path, label_file: Path, classes: int) -> Split:
    images, labels = read_idx(image_file, 3), read_idx(label_file, 1)
    if len(images) != len(labels):
        raise DataError(f"{image_file} has {len(images)} images, but {label_file} has {len(labels)} labels")
    check_labels(labels, classes, label_file)
    return Split(images[:, None], labels.long())


def read_idx(path: Path, dimensions: int) -> Tensor:
    """Read one file: a uint8 tensor with this many dimensions."""
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        with gzip.open(path) if packed else path.open("rb") as stream:
            magic = stream.read(4)
            if magic != bytes((0, 0, 8, dimensions)):
                raise DataError(
                    f"{path} is not an idx file of bytes with {dimensions} dimensions: it starts with {magic!r}"
                )
            header = stream.read(4 * dimensions)
            shape = [int.from_bytes(header[i : i + 4], "big") for i in range(0, 4 * dimensions, 4)]
            count = math.prod(shape)
            if not 0 < count < LARGEST:
                raise DataError(f"{path} is corrupt: its header gives the shape {tuple(shape)}")
            data = bytearray(stream.read(count + 1))
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read; it may be truncated ({error})") from error
    if len(data) != count:
        state, got = ("truncated", f"{len(data)}") if len(data) < count else ("too long", "more")
        raise DataError(f"{path} is {state}: expected {count} bytes for shape {tuple(shape)}, got {got}")
    return torch.from_numpy(np.frombuffer(data, np.uint8).reshape(shape))
