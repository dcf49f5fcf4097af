"""Reading a pickle runs nothing: arrays and plain containers come out, everything else is refused."""

import collections
import contextlib
import io
import os
import pickle
import pickletools
from pathlib import Path

import numpy as np
import pytest

from tests.support import data_files as made
from wnfused.data import DataError, load
from wnfused.data.pickles import read_pickle

# CIFAR as Python 2 and an early numpy wrote it: text as str, arrays by numpy.core.multiarray._reconstruct.
OFFICIAL = (
    b"\x80\x02}q\x01(U\x0bbatch_labelq\x02U\x15training batch 1 of 5q\x03U\x06labelsq\x04]q\x05(K\x06K\tK\x04e"
    b"U\x04dataq\x06cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08K\x00\x85U\x01b\x87Rq\t"
    b"(K\x01K\x03K\x02\x86cnumpy\ndtype\nq\nU\x02u1K\x00K\x01\x87Rq\x0b(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    b"\x89U\x06;+2\x10=\x1atbu."
)  # fmt: skip


def test_a_pickle_of_python_2():
    found = read_pickle(OFFICIAL, "file")
    assert found["batch_label"] == b"training batch 1 of 5" and found["labels"] == [6, 9, 4]
    assert np.array_equal(found["data"], np.array([[59, 43], [50, 16], [61, 26]], np.uint8))
    assert np.array_equal(pickle.loads(OFFICIAL, encoding="bytes")[b"data"], found["data"])  # what pickle itself says


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("core", ["numpy.core", "numpy._core"])
def test_pickles_of_python_3(protocol, core):
    arrays = {
        "bytes": np.arange(12, dtype=np.uint8).reshape(3, 4),
        "fortran": np.asfortranarray(np.arange(12, dtype=np.uint8).reshape(3, 4)),
        "wide": np.array([1, -2, 3], np.int64),
        "big endian": np.array([1, 256], ">i4"),
        "empty": np.zeros((0, 5), np.uint8),
    }
    data = pickle.dumps({**arrays, b"key": b"\xff\x00", "list": [1, "two", None, (3.0, True)]}, protocol)
    own = np.zeros(1).__reduce__()[0].__module__.removesuffix(".multiarray")
    if own != core:
        data = renamed(data, own, core)
    found = read_pickle(data, "file")
    for name, array in arrays.items():
        assert np.array_equal(found[name], array)
    assert found["key"] == b"\xff\x00" and found["list"] == [1, "two", None, (3.0, True)]


def renamed(data: bytes, old: str, new: str) -> bytes:
    """The same pickle, of a numpy with another name for its core."""
    for kind in ("multiarray", "numeric"):
        before, after = f"{old}.{kind}".encode(), f"{new}.{kind}".encode()
        data = data.replace(b"c" + before, b"c" + after)
        data = data.replace(b"\x8c" + bytes((len(before),)) + before, b"\x8c" + bytes((len(after),)) + after)
    if data[1] >= 4:  # frames count bytes; a pickle without them is as good
        data = unframed(data)
    return data


def unframed(data: bytes) -> bytes:
    position = 2
    assert data[position : position + 1] == b"\x95"
    return data[:position] + data[position + 9 :]


class Calls:
    """Pickles to a call of ``function``."""

    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


HOSTILE = {
    "os.system": lambda mark: Calls(os.system, f"touch {mark}"),
    "eval": lambda mark: Calls(eval, f"open({str(mark)!r}, 'w')"),
    "open": lambda mark: Calls(open, str(mark), "w"),
    "getattr": lambda mark: Calls(getattr, Path(mark), "touch"),
    "import": lambda mark: Calls(__import__, "antigravity"),
    "class": lambda mark: Path(mark),
    "OrderedDict": lambda mark: collections.OrderedDict(a=1),
    "a function alone": lambda mark: os.system,
    "numpy function": lambda mark: Calls(np.fromfile, str(mark)),
    "numpy scalar": lambda mark: np.float64(1.0),
}


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("kind", HOSTILE)
def test_what_a_pickle_names_is_not_called(kind, protocol, tmp_path):
    mark = tmp_path / "mark"
    data = pickle.dumps({"data": HOSTILE[kind](mark)}, protocol)
    with pytest.raises(DataError, match="^file is unsafe: it is a pickle that refers to "):
        read_pickle(data, "file")
    assert not mark.exists()


@pytest.mark.parametrize("packed", [True, False])
def test_a_hostile_cifar_runs_nothing(packed, tmp_path):
    mark = tmp_path / "mark"
    files = made.cifar_files("cifar10", "python", made.cifar("cifar10", "python"))
    files["test_batch"] = pickle.dumps({b"data": Calls(os.system, f"touch {mark}"), b"labels": [0]})
    folder = tmp_path / "data"
    made.write_folder(folder / "cifar-10-batches-py", files)
    if packed:
        archive = made.tar({f"cifar-10-batches-py/{file}": data for file, data in files.items()})
        made.write_folder(tmp_path / "packed", {"cifar-10-python.tar.gz": archive})
        folder = tmp_path / "packed"
    with pytest.raises(DataError, match="test_batch is unsafe: it is a pickle that refers to (posix|nt).system"):
        load("cifar10", data_dir=folder)
    assert not mark.exists()


def test_what_a_file_does_to_the_stand_ins_does_not_outlive_it():
    def change(name: bytes) -> bytes:  # sets attributes of what it names
        return b"\x80\x02}X\x01\x00\x00\x00ac" + name + b"\n(N}X\x0c\x00\x00\x00__defaults__)stbs."

    for name in (b"_codecs\nencode", b"numpy.core.multiarray\n_reconstruct", b"numpy\ndtype", b"numpy\nndarray"):
        pickletools.dis(change(name), io.StringIO())  # it is a whole pickle
        with contextlib.suppress(DataError):
            read_pickle(change(name), "file")
        assert np.array_equal(read_pickle(OFFICIAL, "file")["data"][0], [59, 43])


BROKEN = {
    "nothing": b"",
    "no pickle": b"hello",
    "a list": pickle.dumps([1, 2]),
    "a number": pickle.dumps(3),
    "cut off": OFFICIAL[:-20],
    "array of objects": pickle.dumps({"data": np.array([[1], {}], object)}),
    "array of floats": pickle.dumps({"data": np.zeros(3)}, 2),
    "array of text": pickle.dumps({"data": np.array(["a"])}, 2),
    "too few bytes": OFFICIAL.replace(b"K\x03K\x02\x86", b"K\x03K\x07\x86"),
    "too many bytes": OFFICIAL.replace(b"K\x03K\x02\x86", b"K\x01K\x02\x86"),
    "never filled": b"\x80\x02}U\x04datacnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87Rs.",
    "memo bomb": OFFICIAL.replace(b"}q\x01", b"}r\xff\xff\xff\x7f"),
    "other bytes": b"\x80\x02}U\x01ac_codecs\nencode\nX\x01\x00\x00\x00xX\x04\x00\x00\x00zlib\x86Rs.",
}


@pytest.mark.parametrize("kind", BROKEN)
def test_broken_pickles(kind):
    with pytest.raises(DataError, match="^file is corrupt or truncated"):
        read_pickle(BROKEN[kind], "file")


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({b"labels": [0]}, "has no entry 'data'"),
        ({b"data": np.zeros((1, 3072), np.uint8)}, "has no entry 'labels'"),
        ({b"data": np.zeros((1, 3000), np.uint8), b"labels": [0]}, r"data: expected uint8 of shape \(N, 3072\)"),
        ({b"data": np.zeros((1, 3072), np.int64), b"labels": [0]}, "data: expected uint8 of shape"),
        ({b"data": np.zeros((0, 3072), np.uint8), b"labels": []}, "data: expected uint8 of shape"),
        ({b"data": "text", b"labels": [0]}, "data: expected uint8 of shape"),
        ({b"data": np.zeros((2, 3072), np.uint8), b"labels": [0]}, "labels: expected 2 integers"),
        ({b"data": np.zeros((1, 3072), np.uint8), b"labels": [0.5]}, "labels: expected 1 integers"),
        ({b"data": np.zeros((1, 3072), np.uint8), b"labels": [[0], 1]}, "is corrupt: labels: "),
        ({b"data": np.zeros((1, 3072), np.uint8), b"labels": [2**70]}, "is corrupt"),
    ],
)
def test_pickles_that_are_no_cifar(entries, message, tmp_path):
    files = made.cifar_files("cifar10", "python", made.cifar("cifar10", "python"))
    made.write_folder(tmp_path, {**files, "data_batch_2": pickle.dumps(entries)})
    with pytest.raises(DataError, match=f"data_batch_2 .*{message}"):
        load("cifar10", data_dir=tmp_path)


def test_labels_may_be_an_array(tmp_path):
    batches = made.cifar("cifar10", "python")
    files = made.cifar_files("cifar10", "python", batches)
    images, labels = batches["test_batch"]
    made.write_folder(tmp_path, {**files, "test_batch": pickle.dumps({"data": images, "labels": labels})})
    assert load("cifar10", data_dir=tmp_path).test.labels.tolist() == labels.tolist()
