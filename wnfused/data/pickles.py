"""A safe reader of pickles that contain plain containers and NumPy arrays; it runs no code that they name.

A pickle is a program: it names functions and calls them. Here every permitted name maps to a stand-in of this module
that only stores data, and any other name raises. Not even NumPy's own unpickling code is called.
"""

import io
import math
import pickle
import pickletools
import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wnfused.data.splits import DataError

_NUMBERS = re.compile(r"[<>|=]?[iu][1248]")


def read_pickle(data: bytes, where: str) -> dict[str, Any]:
    """The dictionary in ``data``: keys as str, arrays as NumPy arrays; ``where`` names the file in errors."""
    try:
        _check_memo(data)
        found = _Reader(io.BytesIO(data), encoding="bytes").load()
        if type(found) is not dict:
            raise TypeError(f"a {type(found).__name__} instead of a dictionary")
        return {_text(key): value.array if isinstance(value, _Array) else value for key, value in found.items()}
    except _Forbidden as error:
        raise DataError(f"{where} is unsafe: it is a pickle that refers to {error}") from None
    except Exception as error:  # a damaged pickle can fail in any way
        reason = str(error).partition("\n")[0]
        raise DataError(f"{where} is corrupt or truncated ({type(error).__name__}: {reason})") from error


def _check_memo(data: bytes) -> None:
    """Reject huge memo indices: one damaged byte can make Python allocate gigabytes for its memo table."""
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name.endswith("PUT") and argument is not None and argument > len(data):
            raise ValueError(f"object number {argument}")


class _Forbidden(Exception):
    pass


def _text(value: Any) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


class _Dtype:
    """Stand-in for numpy.dtype: the code of an integer type."""

    __slots__ = ("code",)

    def __init__(self, code: Any, align: Any = False, copy: Any = False) -> None:
        self.code = _text(code)
        if not _NUMBERS.fullmatch(self.code):
            raise ValueError(f"an array of type {self.code!r}, not of integers")

    def __setstate__(self, state: Any) -> None:
        order = _text(state[1])
        if order not in ("<", ">", "|", "="):
            raise ValueError(f"byte order {order!r}")
        self.code = order + self.code[-2:]


class _Array:
    """Stand-in for numpy.ndarray: created empty, then filled from bytes."""

    __slots__ = ("array",)
    array: NDArray[Any]

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, data = state
        self.fill(data, dtype, shape, "F" if fortran else "C")

    def fill(self, data: Any, dtype: Any, shape: Any, order: Any) -> None:
        if not isinstance(data, bytes | bytearray) or not isinstance(dtype, _Dtype):
            raise TypeError("an array without bytes or type")
        if not all(type(size) is int and size >= 0 for size in shape) or math.prod(shape) > len(data):
            raise ValueError(f"an array of shape {shape} in {len(data)} bytes")
        self.array = np.frombuffer(data, dtype.code).reshape(shape, order="F" if _text(order) == "F" else "C")


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        module = module.replace("numpy._core", "numpy.core")  # numpy 2's name for it
        made: Any = _stand_ins().get((module, name))
        if made is None:
            raise _Forbidden(f"{module}.{name}")
        return made


def _stand_ins() -> dict[tuple[str, str], Any]:
    """Created for each lookup, so that a file cannot change them for the next one."""

    def reconstruct(kind: Any, shape: Any, code: Any) -> _Array:
        return _Array()

    def frombuffer(data: Any, dtype: Any, shape: Any, order: Any, axes: Any = None) -> _Array:
        made = _Array()
        made.fill(data, dtype, shape, order)
        return made

    def encode(text: Any, encoding: Any) -> bytes:  # how Python 3 writes bytes in old protocols
        if _text(encoding) != "latin1" or not isinstance(text, str):
            raise ValueError(f"bytes in {encoding!r}")
        return text.encode("latin1")

    def empty() -> bytes:  # the same for no bytes at all
        return b""

    return {
        ("numpy", "ndarray"): object,
        ("numpy", "dtype"): _Dtype,
        ("numpy.core.multiarray", "_reconstruct"): reconstruct,
        ("numpy.core.numeric", "_frombuffer"): frombuffer,
        ("_codecs", "encode"): encode,
        ("__builtin__", "bytes"): empty,
    }
