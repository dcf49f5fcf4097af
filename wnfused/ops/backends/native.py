"""The ``native`` backend: C++ kernels for CPU tensors, built at first use and loaded into torch's dispatcher.

The library also holds the launch path for GPU tensors (``launched.cpp``), which ``launching.py`` connects.

Loading registers the operators' CPU and AutogradCPU kernels, so later calls do not pass through Python at all. This
module decides whether the library can be loaded, and informs it of the selected backend.
"""

import ctypes
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from wnfused.kernels.cpu import build as cpu_build
from wnfused.kernels.cpu import prebuilt
from wnfused.kernels.triton import table
from wnfused.ops import schema
from wnfused.ops.backends import registry

_NAME = "wnfused_native"
_SOURCES = (*cpu_build.SOURCES, *sorted(Path(__file__).parents[1].glob("*.cpp")), table.SOURCE)
PRODUCTS = ("output", "input gradient", "weight gradient")  # in the order of plan.h
ROUTES = ("scaled weight", "scaled output", "scaled input", "patches", "direct")
_GEOMETRY = ("stride", "padding", "dilation", "transposed", "output_padding", "groups", "dim")
_state: dict[str, str | None] = {}  # "reason": None once loaded, else why not; absent before the first attempt


def library_path() -> Path:
    """The path of the library: that of the wheel if it fits this torch and CPU, else that of the build."""
    shipped = cpu_build.prebuilt_path(_NAME, _SOURCES)
    return shipped if shipped.exists() else cpu_build.library_path(_NAME, _SOURCES)


def is_built() -> bool:
    return library_path().exists()


def is_loaded() -> bool:
    """Whether its C++ autograd handles CPU tensors, which is independent of the selected backend."""
    return _state.get("reason", "not tried") is None


def build() -> Path:
    """Build the library if needed. Raises ``BuildError`` with a one-line reason on failure."""
    path = library_path()
    return path if path.exists() else cpu_build.build(_NAME, _SOURCES)


def add_to_wheel(pure: Path) -> Path:
    """Write a wheel with the library, built for each vector extension, beside the ``pure`` one; returns its path."""
    return prebuilt.add_to_wheel(pure, _NAME, _SOURCES)


def why_not(device: torch.device) -> str | None:
    """None if the native kernels can run on this device, else the reason. Builds and loads them if needed."""
    if device.type != "cpu":
        return "it runs on CPU tensors only"
    return load()


def load() -> str | None:
    """Build and load the library, once: None, or the reason it cannot be used. GPU tensors use its launch path."""
    if "reason" not in _state:
        _state["reason"] = _load()
    return _state["reason"]


def _load() -> str | None:
    try:
        path = build()
        try:
            torch.ops.load_library(path)
        except OSError:
            if path.parent != cpu_build.PREBUILT:
                raise
            path = cpu_build.build(_NAME, _SOURCES)  # for this machine, whose C library is older than the wheel's
            torch.ops.load_library(path)
    except (cpu_build.BuildError, OSError) as error:
        # Raised by torch's load_library: the file is damaged, or was built for another torch.
        if isinstance(error, OSError) and isinstance(error.__cause__, OSError):
            return f"{str(error.__cause__).splitlines()[0]}; delete this file and run `wnfused build`"
        return str(error).splitlines()[0]
    choose = ctypes.CDLL(str(path)).wnfused_choose_native
    choose.argtypes = [ctypes.c_bool]
    registry.on_select(lambda name: choose(name in ("auto", "native")))
    table.load(path)
    if file := os.environ.get("WNFUSED_CPU_ROUTES"):
        use_routes(Path(file))
    return None


def use_routes(file: Path) -> None:
    """Take the routes of convolutions from a file that ``wnfused tune --device cpu`` wrote, instead of the rule's.

    They apply to the same shapes with the same number of threads. Raises ``ValueError`` if the file is not usable.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        threads, answers = content["threads"], content["routes"]
        routes = [(PRODUCTS.index(a["product"]), ROUTES.index(a["route"]), *_problem(a)) for a in answers]
        if threads == torch.get_num_threads():
            for route in routes:
                torch.ops.wnfused_plan.set_route(*route)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        raise ValueError(
            f"WNFUSED_CPU_ROUTES: {str(file)!r} is not a file of 'wnfused tune --device cpu': {reason}"
        ) from None


def _problem(answer: dict[str, Any]) -> tuple[Any, ...]:
    """A problem as the operators of ``wnfused_plan`` take it: the tensors matter by shape only."""
    tensors = (torch.empty(answer[name]) for name in ("x", "v", "g"))
    return (*tensors, *(answer[name] for name in _GEOMETRY))


def operators() -> SimpleNamespace:
    """The operators as registered with the dispatcher: C++ kernels for CPU tensors."""
    return SimpleNamespace(**{name: getattr(torch.ops.wnfused, name).default for name in schema.SCHEMAS})
