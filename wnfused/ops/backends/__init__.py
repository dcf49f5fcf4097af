"""The implementations of the operators, one file each, and the registry that chooses between them."""

import functools
from importlib import import_module

from wnfused.kernels.triton import support
from wnfused.ops.backends import native
from wnfused.ops.backends import torch as torch_backend
from wnfused.ops.backends.registry import (
    Backend,
    BackendUnavailable,
    backend,
    chosen,
    names,
    register,
    resolve,
    select_from_environment,
)

__all__ = ["Backend", "BackendUnavailable", "backend", "chosen", "names", "register", "resolve"]

register(
    Backend(
        "triton",
        why_not=support.why_not,
        operators=functools.cache(lambda: import_module("wnfused.ops.backends.triton")),  # triton may be missing
        volunteers=lambda device: device.type == "cuda",  # on a CPU only the interpreter runs, on explicit request
    )
)
register(Backend("native", why_not=native.why_not, operators=native.operators))
register(Backend("torch", why_not=lambda device: None, operators=lambda: torch_backend))
select_from_environment()
