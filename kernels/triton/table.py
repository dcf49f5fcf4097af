"""The C++ table of recorded calls (``launch_table.cpp``), through ctypes. Without the library nothing is recorded."""

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).parent / "launch_table.cpp"
_library: ctypes.CDLL | None = None
_DEVICES = {None: -1, "cpu": 0, "cuda": 1}  # as c10 numbers them


class Driver(NamedTuple):
    """Addresses of the driver library's functions. The last three handle contexts; 0 where there are none."""

    launch: int  # cuLaunchKernel, or hipModuleLaunchKernel, which has the same arguments
    error: int = 0  # cuGetErrorString
    current: int = 0  # cuCtxGetCurrent
    retain: int = 0  # cuDevicePrimaryCtxRetain
    set: int = 0  # cuCtxSetCurrent


def cuda_driver(name: str = "libcuda.so.1") -> Driver:
    """NVIDIA's driver library. Raises ``OSError`` or ``AttributeError`` if it or one of its functions is missing."""
    functions = ("cuLaunchKernel", "cuGetErrorString", "cuCtxGetCurrent", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent")
    library = ctypes.CDLL(name)
    return Driver(*(ctypes.cast(getattr(library, f), ctypes.c_void_p).value or 0 for f in functions))


def load(path: Path) -> None:
    global _library
    library = ctypes.CDLL(str(path))
    library.wnfused_recording.restype = ctypes.c_bool
    library.wnfused_recipes.restype = ctypes.c_int64
    library.wnfused_misses.restype = ctypes.c_int64
    library.wnfused_set_driver.argtypes = [ctypes.c_void_p] * 5
    library.wnfused_install.argtypes = [ctypes.POINTER(ctypes.c_int64)]
    library.wnfused_activate.argtypes = [ctypes.c_int]
    _library = library


def use_driver(driver: Driver) -> None:
    assert _library is not None
    _library.wnfused_set_driver(*driver)


def activate(device: str | None) -> None:
    """Look up the calls on this type of device; None: every call runs in Python."""
    if _library is not None:
        _library.wnfused_activate(_DEVICES[device])


def recording() -> bool:
    """Whether this thread runs a call that the table does not have yet."""
    return _library is not None and _library.wnfused_recording()


def install(recipe: Sequence[int] | None) -> None:
    """Keep the recipe of the call that is recorded; None: from now on the call runs in Python."""
    assert _library is not None
    _library.wnfused_install(None if recipe is None else (ctypes.c_int64 * len(recipe))(*recipe))


def forget() -> None:
    """Discard all recipes, because something changed that is not part of a call's key: plans, the backend."""
    if _library is not None:
        _library.wnfused_forget()


def size() -> int:
    """The number of recorded calls."""
    return 0 if _library is None else int(_library.wnfused_recipes())


def misses() -> int:
    """The number of calls that were looked up and ran in Python."""
    return 0 if _library is None else int(_library.wnfused_misses())
