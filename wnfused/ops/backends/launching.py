"""Connects the ``triton`` backend on NVIDIA GPUs with the C++ launch path, which repeats calls that Python recorded."""

import logging
import threading

import torch

from wnfused.kernels.triton import support, table
from wnfused.ops.backends import native, registry

log = logging.getLogger("wnfused")
_lock = threading.Lock()
_tried = False


def connect() -> None:
    """Called by the first call on a GPU: load library and driver, or say once why calls stay in Python."""
    global _tried
    if _tried:
        return
    with _lock:
        if _tried:
            return
        if reason := _connect():
            log.warning("GPU calls run in Python, which costs more host time: %s", reason)
        _tried = True


def _connect() -> str | None:
    if support.interpreted():
        return "triton's interpreter is on (TRITON_INTERPRET=1)"
    if torch.version.hip is not None:
        return "the C++ launch path supports NVIDIA GPUs only"
    if reason := native.load():
        return reason
    try:
        driver = table.cuda_driver()
    except (OSError, AttributeError) as error:
        return f"the NVIDIA driver library cannot be used: {error}"
    table.use_driver(driver)
    registry.on_select(lambda name: _update())
    return None


def _update() -> None:
    """Calls are looked up only while this backend is selected."""
    used = registry.chosen() in ("auto", "triton")
    table.activate("cuda" if used else None)
