"""Every official form of every data set is read right; what is missing, cut off or wrong is named."""

import gzip
import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support import data_files as made
from wnfused.data import NAMES, DataError, load

FORMS = list(made.CIFAR)


def test_digits_come_with_the_installation():
    data = load("digits")
    assert data.name == "digits" and data.classes == 10
    assert tuple(data.train.images.shape) == (1437, 3, 32, 32) and len(data.test) == 360
    assert all(torch.equal(split.labels.unique(), torch.arange(10)) for split in (data.train, data.test))
    pixels = data.train.images.double() / 255
    assert pixels.mean().item() == pytest.approx(data.mean[0], abs=1e-4)
    assert pixels.std().item() == pytest.approx(data.std[0], abs=1e-4)
    assert torch.equal(data.train.images, load("digits").train.images)
    assert not (data.train.images[:, None].flatten(2)[:50] == data.test.images[None].flatten(2)).all(2).any()


def test_digits_are_scikit_learns_enlarged():
    from sklearn.datasets import load_digits

    originals, labels = load_digits(return_X_y=True)
    centres = np.clip((np.arange(32) + 0.5) / 4 - 0.5, 0, 7)  # of the 32 pixels, counted in the 8
    weights = np.maximum(0, 1 - np.abs(centres[:, None] - np.arange(8)))  # [32, 8]
    large = np.rint(weights @ originals.reshape(-1, 8, 8) @ weights.T * 255 / 16).astype(np.uint8)
    expected = {image.tobytes(): int(label) for image, label in zip(large, labels, strict=True)}
    data = load("digits")
    images = torch.cat((data.train.images, data.test.images)).numpy()
    numbers = torch.cat((data.train.labels, data.test.labels)).tolist()
    assert {image[0].tobytes(): number for image, number in zip(images, numbers, strict=True)} == expected
    assert len(images) == len(expected) == 1797
    assert (images == images[:, :1]).all()


def test_digits_without_scikit_learn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(DataError, match="scikit-learn, which is not installed; run pip install"):
        load("digits")


def test_importing_needs_nothing_optional(monkeypatch):
    for name in ("sklearn", "rich"):
        monkeypatch.setitem(sys.modules, name, None)
    importlib.reload(importlib.import_module("wnfused.data.digits"))
    importlib.reload(importlib.import_module("wnfused.data.progress"))


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(
    ("name", "below"),
    [
        ("mnist", "."),
        ("mnist", "mnist"),
        ("mnist", "MNIST/raw"),
        ("fashion-mnist", "fashion-mnist"),
        ("fashion-mnist", "FashionMNIST/raw"),
    ],
)
def test_idx_files(name, below, packed, tmp_path):
    arrays = made.mnist()
    made.write_mnist(tmp_path / below, arrays, packed=packed)
    data = load(name, data_dir=tmp_path)
    found = (data.train.images[:, 0], data.train.labels, data.test.images[:, 0], data.test.labels)
    for tensor, array in zip(found, arrays.values(), strict=True):
        assert np.array_equal(tensor.numpy(), array)
    assert data.train.images.is_contiguous() and data.classes == 10
    assert (data.mean, data.std) == (((0.1307,), (0.3081,)) if name == "mnist" else ((0.2860,), (0.3530,)))


def check_cifar(name: str, form: str, batches: made.Batches, data_dir: Path) -> None:
    data = load(name, data_dir=data_dir)
    _, _, train, test = made.CIFAR[name, form]
    assert data.classes == (10 if name == "cifar10" else 100)
    for split, files in ((data.train, train), (data.test, test)):
        images = np.concatenate([batches[file][0] for file in files]).reshape(-1, 3, 32, 32)
        assert np.array_equal(split.images.numpy(), images)
        assert split.labels.tolist() == [label for file in files for label in batches[file][1].tolist()]
        assert split.images.is_contiguous()


@pytest.mark.parametrize(("name", "form"), FORMS)
def test_cifar_unpacked(name, form, tmp_path):
    folder = made.CIFAR[name, form][0]
    batches = made.cifar(name, form)
    made.write_folder(tmp_path / folder, made.cifar_files(name, form, batches))
    check_cifar(name, form, batches, tmp_path)
    check_cifar(name, form, batches, tmp_path / folder)  # the folder itself will do
    (tmp_path / "data").mkdir()
    (tmp_path / folder).rename(tmp_path / "data" / name)
    check_cifar(name, form, batches, tmp_path / "data")  # or one that is called like the data set


@pytest.mark.parametrize(("name", "form"), FORMS)
def test_cifar_packed(name, form, tmp_path):
    folder, archive, *_ = made.CIFAR[name, form]
    batches = made.cifar(name, form)
    members = {f"{folder}/{file}": data for file, data in made.cifar_files(name, form, batches).items()}
    (tmp_path / archive).write_bytes(made.tar({**members, f"{folder}/readme.html": b"<html>"}))
    check_cifar(name, form, batches, tmp_path)
    check_cifar(name, form, batches, tmp_path / archive)
    assert [path.name for path in tmp_path.iterdir()] == [archive]  # nothing was written
    (tmp_path / archive).unlink()
    (tmp_path / archive.replace(".tar.gz", ".tar")).write_bytes(made.tar(members, "w"))
    check_cifar(name, form, batches, tmp_path)


def test_a_half_unpacked_folder_gives_way_to_the_archive(tmp_path):
    batches = made.cifar("cifar10", "binary")
    files = made.cifar_files("cifar10", "binary", batches)
    made.write_folder(tmp_path / "cifar-10-batches-bin", {"data_batch_1.bin": files["data_batch_1.bin"]})
    archive = tmp_path / "cifar-10-binary.tar.gz"
    archive.write_bytes(made.tar({f"./cifar-10-batches-bin/{file}": data for file, data in files.items()}))
    check_cifar("cifar10", "binary", batches, tmp_path)


def expect(name: str, data_dir: Path, *parts: str) -> None:
    """One line that names the data set, the trouble, where the data comes from and what to do."""
    with pytest.raises(DataError) as caught:
        load(name, data_dir=data_dir)
    message = str(caught.value)
    assert message.startswith(f"{name}: ") and "\n" not in message
    page = {"mnist": "yann.lecun.com", "cifar10": "www.cs.toronto.edu/~kriz", "cifar100": "www.cs.toronto.edu/~kriz"}
    for part in (*parts, page[name], "Omit data_dir to have it downloaded"):
        assert part in message


def test_nothing_there(tmp_path):
    expect("mnist", tmp_path / "nowhere", f"data_dir: {tmp_path / 'nowhere'} does not exist")
    expect("mnist", tmp_path, "train-images-idx3-ubyte[.gz]", f"not in {tmp_path}")
    expect("cifar10", tmp_path, f"{tmp_path} contains none of cifar-10-batches-bin, cifar-10-binary.tar.gz")
    expect("cifar100", tmp_path, "cifar-100-python.tar.gz", f"{tmp_path} contains none of")


def test_a_folder_that_cannot_be_looked_into(tmp_path, monkeypatch):
    def refuse(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", refuse)
    expect("mnist", tmp_path, f"{tmp_path}", "cannot be read: Permission denied")


def test_one_file_missing(tmp_path):
    arrays = made.mnist()
    made.write_mnist(tmp_path, arrays, packed=True)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").unlink()
    expect("mnist", tmp_path, f"t10k-labels-idx1-ubyte[.gz] is missing from {tmp_path}")
    files = made.cifar_files("cifar10", "python", made.cifar("cifar10", "python"))
    del files["data_batch_3"]
    made.write_folder(tmp_path / "cifar-10-batches-py", files)
    for data_dir in (tmp_path, tmp_path / "cifar-10-batches-py"):
        expect("cifar10", data_dir, f"data_batch_3 is missing from {tmp_path / 'cifar-10-batches-py'}")
    members = {f"cifar-10-batches-py/{file}": data for file, data in files.items()}
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(made.tar(members))
    expect("cifar10", tmp_path, "cifar-10-python.tar.gz does not contain cifar-10-batches-py/data_batch_3")


IDX_FAULTS = {
    "empty": (lambda data: b"", "is not an idx file of bytes with 3 dimensions: it starts with b''"),
    "header cut": (lambda data: data[:9], "is"),
    "cut off": (lambda data: data[:-100], "is truncated: expected 5488 bytes for shape (7, 28, 28), got 5388"),
    "too long": (lambda data: data + b"x", "is too long"),
    "other magic": (
        lambda data: b"PNG!" + data[4:],
        "is not an idx file of bytes with 3 dimensions: it starts with b'PNG!'",
    ),
    "floats": (lambda data: b"\0\0\x0d\x03" + data[4:], "is not an idx file of bytes"),
    "huge": (lambda data: data[:4] + b"\xff" * 12 + data[16:], "is corrupt: its header gives the shape (4294967295,"),
    "fewer images": (lambda data: made.idx(np.zeros((6, 28, 28))), "has 6 images, but"),
    "packed, cut off": (lambda data: gzip.compress(data)[:-100], "cannot be read; it may be truncated"),
    "packed, damaged": (lambda data: gzip.compress(data)[:2000] + bytes(100) + gzip.compress(data)[2100:], "cannot be"),
}


@pytest.mark.parametrize("fault", IDX_FAULTS)
def test_faulty_idx_files(fault, tmp_path):
    spoil, message = IDX_FAULTS[fault]
    made.write_mnist(tmp_path, made.mnist(), packed=False)
    file = tmp_path / "train-images-idx3-ubyte"
    file.write_bytes(spoil(file.read_bytes()))
    expect("mnist", tmp_path, f"{file} {message}")


def test_labels_out_of_range(tmp_path):
    arrays = made.mnist()
    arrays["t10k-labels-idx1-ubyte"][1] = 10
    made.write_mnist(tmp_path, arrays, packed=True)
    expect("mnist", tmp_path, "t10k-labels-idx1-ubyte.gz is corrupt: expected labels 0 to 9, got 10")
    for form in ("binary", "python"):
        batches = made.cifar("cifar100", form)
        batches[made.CIFAR["cifar100", form][3][0]][1][2] = 100
        made.write_folder(tmp_path / form, made.cifar_files("cifar100", form, batches))
        expect("cifar100", tmp_path / form, "is corrupt: expected labels 0 to 99, got 100")


@pytest.mark.parametrize("keep", [0, 1, 1000, 3073, 9218])
def test_binary_files_cut_off(keep, tmp_path):
    files = made.cifar_files("cifar10", "binary", made.cifar("cifar10", "binary"))
    files["data_batch_4.bin"] = files["data_batch_4.bin"][:keep]
    made.write_folder(tmp_path, files)
    if keep == 3073:  # a whole record less is a smaller data set, which is allowed
        assert len(load("cifar10", data_dir=tmp_path).train) == 13
    else:
        expect(
            "cifar10",
            tmp_path,
            f"data_batch_4.bin is corrupt or truncated: {keep} bytes, expected a multiple of the record size 3073",
        )


def test_archives_cut_off(tmp_path):
    files = made.cifar_files("cifar100", "python", made.cifar("cifar100", "python", 50))
    data = made.tar({f"cifar-100-python/{file}": content for file, content in files.items()})
    archive = tmp_path / "cifar-100-python.tar.gz"
    for part in (data[:5], data[: len(data) // 2], data[:-2000], b"no archive at all"):
        archive.write_bytes(part)
        expect("cifar100", tmp_path, f"{archive} cannot be read; it may be truncated")


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("cifar", "cifar10"),
        ("cifar-10", "cifar10"),
        ("CIFAR100", "cifar100"),
        ("fashion_mnist", "fashion-mnist"),
        ("minst", "mnist"),
        ("digit", "digits"),
    ],
)
def test_unknown_names(name, near):
    with pytest.raises(DataError, match=f"^load: name: unknown data set '{name}'; did you mean '{near}'"):
        load(name)


@pytest.mark.parametrize("name", ["imagenet", "", None, 10, ["mnist"]])
def test_names_like_none(name):
    with pytest.raises(DataError, match=f"unknown data set .*(K|k)nown data sets: {', '.join(NAMES)}$"):
        load(name)
