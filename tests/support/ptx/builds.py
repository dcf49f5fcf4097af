"""The PTX of the audit's builds for sm_80: too many to run, but each can be read."""

import importlib
from unittest import mock

import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend
from triton.compiler import ASTSource

from wnfused.kernels.triton.audit import builds, compiled

from .launch import program_of
from .opcodes import untested


class _Compiled(Exception):
    """Carries the PTX out of triton before it is assembled, which takes longer than all before."""


def _stop(backend: CUDABackend, ptx: str, *arguments: object) -> None:
    raise _Compiled(ptx)


def source_of(build: builds.Build) -> ASTSource:
    kernel = getattr(importlib.import_module(f"wnfused.kernels.triton.{build.module}"), build.kernel)
    return ASTSource(kernel, *compiled._specialised(kernel, build))


def pointers_of(kernel: str) -> list[dict[str, str]]:
    """The types of the tensors that each build of a kernel is compiled for."""
    found = []
    for build in builds.builds(("sm_80",), (kernel,)):
        signature = source_of(build).signature
        found.append({name: type for name, type in signature.items() if type.startswith("*")})
    return found


def ptx_of(build: builds.Build) -> str:
    options = {"num_warps": build.warps, "num_stages": build.stages}
    if build.registers is not None:
        options["maxnreg"] = build.registers
    try:
        with mock.patch.object(CUDABackend, "make_cubin", _stop):
            return triton.compile(source_of(build), GPUTarget("cuda", 80, 32), options).asm["ptx"]  # compiled before
    except _Compiled as stopped:
        return str(stopped)


def read(kernel: str) -> tuple[int, list[str]]:
    """How many builds a kernel has, and opcodes that no test tries; fails at one that the emulator does not know."""
    all_builds = [*builds.builds(("sm_80",), (kernel,))]
    opcodes = {i.opcode for build in all_builds for i in program_of(ptx_of(build)).instructions}
    return len(all_builds), untested(opcodes)
