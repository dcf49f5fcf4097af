"""Whether triton is available, and which targets it can compile for."""

import functools
import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from wnfused.kernels.triton.rules import TARGETS, Target

OLDEST, NEWEST = (3, 7), (3, 9)


def interpreted() -> bool:
    """True if kernels run in triton's interpreter, on CPU tensors."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "y", "yes")


def parse_version(text: str) -> tuple[int, int]:
    major, minor = text.split(".")[:2]
    return int(major), int(minor)


@functools.cache
def missing() -> str | None:
    """None if a supported version of triton can be imported, else the reason."""
    try:
        import triton
    except ImportError as error:
        return f"triton cannot be imported ({error})"
    return version_problem(triton.__version__)


def version_problem(version: str) -> str | None:
    found = parse_version(version)
    if not OLDEST <= found <= NEWEST:
        oldest, newest = (".".join(map(str, v)) for v in (OLDEST, NEWEST))
        return f"triton {version} is too {'old' if found < OLDEST else 'new'}: {oldest} to {newest} are supported"
    return None


def why_not(device: torch.device) -> str | None:
    """None if the kernels can run on this device's tensors."""
    if reason := missing():
        return reason
    if device.type == "cpu":
        return None if interpreted() else "CPU tensors need triton's interpreter (TRITON_INTERPRET=1)"
    if device.type != "cuda":
        return f"triton kernels run on CUDA and ROCm devices, not on {device.type!r}"
    if interpreted():
        return None
    if torch.version.hip is not None:
        name = torch.cuda.get_device_properties(device).gcnArchName.partition(":")[0]
        return None if name == "gfx942" else f"gfx942 (MI300) is the only supported AMD GPU, this is {name}"
    capability = torch.cuda.get_device_capability(device)
    if capability < (8, 0):
        return f"compute capability {capability[0]}.{capability[1]} is below 8.0"
    return None


def on_device(device: torch.device) -> AbstractContextManager[Any]:
    """Triton launches on the current device, which need not be that of the tensors."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


@functools.cache
def target_of(device: torch.device) -> Target:
    """The nearest target that has its own tiles, and the device's number of processors."""
    if device.type != "cuda":
        return Target("sm_80", TARGETS["sm_80"])  # the interpreter uses the plans of an A100
    properties: Any = torch.cuda.get_device_properties(device)
    if torch.version.hip is not None:
        return Target("gfx942", properties.multi_processor_count)
    family = {8: "sm_80", 9: "sm_90"}.get(properties.major, "sm_100")
    if properties.major == 12:  # consumer Blackwell: mma.sync and 100 kB of shared memory, as sm_80's tiles fit it
        family = "sm_80"
    return Target(family, properties.multi_processor_count)
