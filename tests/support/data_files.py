"""Small data sets in every official form, made up for the tests."""

import gzip
import io
import pickle
import tarfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from wnfused.data.sources import IDX_FILES

Batches = dict[str, tuple[np.ndarray, np.ndarray]]  # file: (bytes [N, 3072], labels [N])
TENS = [f"data_batch_{i}" for i in range(1, 6)]
BINARY_TENS = [f"{name}.bin" for name in TENS]
CIFAR = {  # folder, archive, files of the training and of the test set
    ("cifar10", "binary"): ("cifar-10-batches-bin", "cifar-10-binary.tar.gz", BINARY_TENS, ["test_batch.bin"]),
    ("cifar10", "python"): ("cifar-10-batches-py", "cifar-10-python.tar.gz", TENS, ["test_batch"]),
    ("cifar100", "binary"): ("cifar-100-binary", "cifar-100-binary.tar.gz", ["train.bin"], ["test.bin"]),
    ("cifar100", "python"): ("cifar-100-python", "cifar-100-python.tar.gz", ["train"], ["test"]),
}


def idx(array: np.ndarray) -> bytes:
    return bytes((0, 0, 8, array.ndim)) + np.array(array.shape, ">u4").tobytes() + array.astype(np.uint8).tobytes()


def mnist(train: int = 7, test: int = 3) -> dict[str, np.ndarray]:
    """The arrays of the four idx files."""
    random = np.random.default_rng(0)
    arrays = []
    for count in (train, test):
        arrays += [random.integers(0, 256, (count, 28, 28), np.uint8), random.integers(0, 10, count, np.uint8)]
    return dict(zip(IDX_FILES, arrays, strict=True))


def write_mnist(folder: Path, arrays: Mapping[str, np.ndarray], *, packed: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in arrays.items():
        data = idx(array)
        (folder / (f"{name}.gz" if packed else name)).write_bytes(gzip.compress(data) if packed else data)


def cifar(name: str, form: str, count: int = 3) -> Batches:
    _, _, train, test = CIFAR[name, form]
    random = np.random.default_rng(1)
    classes = 10 if name == "cifar10" else 100
    return {
        file: (random.integers(0, 256, (count, 3072), np.uint8), random.integers(0, classes, count))
        for file in train + test
    }


def cifar_files(name: str, form: str, batches: Batches, protocol: int = 2) -> dict[str, bytes]:
    """The content of each file."""
    if form == "binary":
        return {file: _binary(name, *batch) for file, batch in batches.items()}
    key = b"labels" if name == "cifar10" else b"fine_labels"
    return {
        file: pickle.dumps({b"data": images, key: labels.tolist(), b"filenames": [b"x.png"]}, protocol)
        for file, (images, labels) in batches.items()
    }


def _binary(name: str, images: np.ndarray, labels: np.ndarray) -> bytes:
    columns = [labels[:, None].astype(np.uint8), images]
    if name == "cifar100":
        columns.insert(0, labels[:, None].astype(np.uint8) // 5)  # the coarse label, which nobody asks for
    return np.concatenate(columns, 1).tobytes()


def write_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)


def tar(members: Mapping[str, bytes], mode: str = "w:gz") -> bytes:
    """An archive of regular files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def tar_with(info: tarfile.TarInfo, members: Mapping[str, bytes], data: bytes = b"") -> bytes:
    """An archive of regular files, and before them one member of any kind."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))
        for name, content in members.items():
            regular = tarfile.TarInfo(name)
            regular.size = len(content)
            archive.addfile(regular, io.BytesIO(content))
    return buffer.getvalue()
