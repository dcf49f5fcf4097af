"""The ``native`` backend: C++ kernels for CPU tensors, built at first use and loaded into torch's dispatcher.

Loading registers the operators' CPU and AutogradCPU kernels, so from then on calls do not pass through Python at all;
this module only decides whether that can happen and keeps the library told which backend is chosen.
"""

import ctypes
from pathlib import Path
from types import SimpleNamespace

import torch

from wnfused.kernels.cpu import build as cpu_build
from wnfused.ops import schema
from wnfused.ops.backends import registry

_NAME = "wnfused_native"
_SOURCES = (*cpu_build.SOURCES, Path(__file__).parents[1] / "autograd.cpp")
_state: dict[str, str | None] = {}  # "reason": None once loaded, else why not; absent before the first try


def library_path() -> Path:
    """Where the built library is, or would be."""
    return cpu_build.library_path(_NAME, _SOURCES)


def is_built() -> bool:
    return library_path().exists()


def is_loaded() -> bool:
    """True once its C++ autograd serves CPU tensors, whatever backend computes."""
    return _state.get("reason", "not tried") is None


def build() -> Path:
    """Build the library if needed; raises ``BuildError`` with one clear line where that fails."""
    return cpu_build.build(_NAME, _SOURCES)


def why_not(device: torch.device) -> str | None:
    """None if the native kernels serve this device (building and loading them if needed), else the reason."""
    if device.type != "cpu":
        return "it runs on CPU tensors only"
    if "reason" not in _state:
        _state["reason"] = _load()
    return _state["reason"]


def _load() -> str | None:
    try:
        path = build()
        torch.ops.load_library(path)
    except (cpu_build.BuildError, OSError) as error:
        return str(error).splitlines()[0]
    choose = ctypes.CDLL(str(path)).wnfused_choose_native
    choose.argtypes = [ctypes.c_bool]
    registry.on_select(lambda name: choose(name in ("auto", "native")))
    return None


def operators() -> SimpleNamespace:
    """The operators as the dispatcher has them now: C++ on CPU tensors."""
    return SimpleNamespace(**{name: getattr(torch.ops.wnfused, name).default for name in schema.SCHEMAS})
