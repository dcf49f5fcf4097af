"""CIFAR-10 and CIFAR-100 in their official forms: binary or Python files, in a folder or in the archive."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wnfused.data.archives import members
from wnfused.data.pickles import read_pickle
from wnfused.data.splits import DataError, Split, check_labels

PIXELS = 3 * 32 * 32
Batch = tuple[NDArray[np.uint8], NDArray[np.int64]]  # [N, PIXELS], [N]


@dataclass(frozen=True)
class Layout:
    """One official form of a data set."""

    folder: str
    archive: str  # without .tar.gz
    train: tuple[str, ...]
    test: tuple[str, ...]
    read: Callable[[bytes, str], Batch]  # takes a file's content, and its name for errors

    @property
    def files(self) -> tuple[str, ...]:
        return self.train + self.test


def _binary(label_bytes: int) -> Callable[[bytes, str], Batch]:
    """Reader of records of labels (CIFAR-100: coarse, fine) and pixels; the last label is used."""

    def read(data: bytes, where: str) -> Batch:
        record = label_bytes + PIXELS
        if not data or len(data) % record:
            raise DataError(
                f"{where} is corrupt or truncated: {len(data)} bytes, expected a multiple of the record size {record}"
            )
        rows = np.frombuffer(data, np.uint8).reshape(-1, record)
        return rows[:, label_bytes:], rows[:, label_bytes - 1].astype(np.int64)

    return read


def _pickled(key: str) -> Callable[[bytes, str], Batch]:
    def read(data: bytes, where: str) -> Batch:
        found = read_pickle(data, where)
        images = _entry(found, "data", where)
        if images.dtype != np.uint8 or images.ndim != 2 or images.shape[1] != PIXELS or not len(images):
            got = f"{images.dtype} of shape {images.shape}"
            raise DataError(f"{where} is corrupt: data: expected uint8 of shape (N, {PIXELS}), got {got}")
        labels = _entry(found, key, where)
        if labels.shape != (len(images),) or labels.dtype.kind not in "iu":
            got = f"{labels.dtype} of shape {labels.shape}"
            raise DataError(f"{where} is corrupt: {key}: expected {len(images)} integers, got {got}")
        return images, labels.astype(np.int64)

    return read


def _entry(found: dict[str, Any], key: str, where: str) -> NDArray[Any]:
    if key not in found:
        raise DataError(f"{where} has no entry {key!r}")
    try:
        return np.asarray(found[key])
    except (ValueError, OverflowError) as error:
        raise DataError(f"{where} is corrupt: {key}: {error}") from error


_TENS = tuple(f"data_batch_{i}" for i in range(1, 6))
_BINARY_TENS = tuple(f"{name}.bin" for name in _TENS)
LAYOUTS = {
    "cifar10": (
        Layout("cifar-10-batches-bin", "cifar-10-binary", _BINARY_TENS, ("test_batch.bin",), _binary(1)),
        Layout("cifar-10-batches-py", "cifar-10-python", _TENS, ("test_batch",), _pickled("labels")),
    ),
    "cifar100": (
        Layout("cifar-100-binary", "cifar-100-binary", ("train.bin",), ("test.bin",), _binary(2)),
        Layout("cifar-100-python", "cifar-100-python", ("train",), ("test",), _pickled("fine_labels")),
    ),
}
SUFFIXES = (".tar.gz", ".tgz", ".tar")


def find_cifar(name: str, root: Path) -> tuple[Layout, Path]:
    """Find the data set in ``root`` or ``root/name``: the folder with its files or, failing that, the archive.

    ``root`` may also be that folder or archive itself.
    """
    for place in (root / name, root):
        for find in (_folder, _archive):
            for layout in LAYOUTS[name]:
                if found := find(layout, place):
                    return layout, found
    for layout in LAYOUTS[name]:
        for folder in (root / name / layout.folder, root / layout.folder, root):
            if folder.name == layout.folder and folder.is_dir():
                raise DataError(f"{_missing(layout, folder)[0]} is missing from {folder}")
    forms = ", ".join(f"{layout.folder}, {layout.archive}.tar.gz" for layout in LAYOUTS[name])
    raise DataError(f"{root} contains none of {forms}")


def _missing(layout: Layout, folder: Path) -> list[str]:
    return [file for file in layout.files if not (folder / file).is_file()]


def _folder(layout: Layout, place: Path) -> Path | None:
    return next((folder for folder in (place / layout.folder, place) if not _missing(layout, folder)), None)


def _archive(layout: Layout, place: Path) -> Path | None:
    names = [f"{layout.archive}{suffix}" for suffix in SUFFIXES]
    candidates = [place / name for name in names] + [place] * (place.name in names)
    return next((archive for archive in candidates if archive.is_file()), None)


def read_cifar(layout: Layout, place: Path, classes: int) -> tuple[Split, Split]:
    """(train, test) from the folder or archive that ``find_cifar`` found."""
    batches = dict(_batches(layout, place))
    if lacking := [file for file in layout.files if file not in batches]:
        raise DataError(f"{place} does not contain {layout.folder}/{lacking[0]}")
    for file, (_, labels) in batches.items():
        check_labels(torch.from_numpy(labels), classes, place / file)
    return _split([batches[file] for file in layout.train]), _split([batches[file] for file in layout.test])


def _batches(layout: Layout, place: Path) -> Iterator[tuple[str, Batch]]:
    if place.is_file():
        for file, data in members(place, layout.folder, layout.files):
            yield file, layout.read(data, f"{place}: {file}")
        return
    for file in layout.files:
        path = place / file
        try:
            data = path.read_bytes()
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
        yield file, layout.read(data, str(path))


def _split(batches: list[Batch]) -> Split:
    images = np.concatenate([images for images, _ in batches]).reshape(-1, 3, 32, 32)
    labels: Tensor = torch.from_numpy(np.concatenate([labels for _, labels in batches]))
    return Split(torch.from_numpy(images), labels)
