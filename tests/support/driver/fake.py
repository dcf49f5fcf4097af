"""A fake libcuda for triton's own launcher and for the C++ launch path, on CPU tensors. Kernels are compiled for sm_80.

Use it in a process of its own: ``TRITON_INTERPRET`` has to be 0 when the kernels are imported.
"""

import ctypes
import hashlib
import os
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

import wnfused
from tests.support.driver.interpreted import Callback
from wnfused.kernels.cpu import build as cpu_build
from wnfused.kernels.triton import table
from wnfused.kernels.triton.launch import Launch
from wnfused.ops.backends import native, registry

_SOURCE = Path(__file__).parent / "libcuda.c"
_BYTES = {"i32": 4, "u32": 4, "fp32": 4}  # other parameters have 8


def build() -> Path:
    """The built library, in torch's extension cache."""
    digest = hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:16]
    target = cpu_build.cache_root() / f"wnfused_fake_driver_{digest}" / "libcuda.so.1"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        half = target.with_suffix(f".{os.getpid()}")
        command = [*shlex.split(cpu_build.compiler()), "-x", "c", str(_SOURCE), "-x", "none", "-O2", "-fPIC", "-shared"]
        subprocess.run([*command, "-Wl,-soname,libcuda.so.1", "-o", str(half)], check=True)
        half.replace(target)
    return target


class Seen(NamedTuple):
    """A launch as the driver received it."""

    function: int
    grid: tuple[int, int, int]
    threads: tuple[int, int, int]
    shared: int
    arguments: tuple[int, ...]  # the bytes of each, as a number
    pointers: tuple[bool, ...]  # which of them are addresses


class FakeDriver:
    def __init__(self) -> None:
        path = build()
        os.environ["TRITON_LIBCUDA_PATH"] = str(path.parent)
        self.library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        self.types: dict[int, list[str]] = {}  # of each function's parameters
        self.seen: list[Seen] = []
        self._callback = Callback(self._launched)
        from triton.backends.nvidia.driver import CudaDriver
        from triton.runtime import driver

        class Driver(CudaDriver):
            def __init__(self) -> None:
                super().__init__()
                self.get_current_device = lambda: 0
                self.get_current_stream = lambda device: 0
                self.get_device_capability = lambda device=0: (8, 0)

            def get_active_torch_device(self) -> torch.device:
                return torch.device("cpu")

        driver.set_active(Driver())

    def watch(self, on: bool = True) -> None:
        """Keep every launch in ``seen``; without, a launch returns at once."""
        self.seen = []
        self.library.fake_on_launch(self._callback if on else None)

    def learn(self, record: Launch, compiled: Any) -> None:
        """How many bytes each parameter of a compiled kernel has, which the driver is not told."""
        types = compiled.src.signature
        names = [name for name in record.kernel.arg_names if types[name] != "constexpr"]
        self.types[compiled.function] = [*(types[name] for name in names), "*scratch", "*scratch"]

    def _launched(self, function: int, *rest: Any) -> int:
        gx, gy, gz, bx, by, bz, shared, _, params, _ = rest
        types = self.types.get(function, [])
        values = [ctypes.string_at(params[i], _BYTES.get(kind, 8)) for i, kind in enumerate(types)]
        arguments = tuple(int.from_bytes(value, "little") for value in values)
        pointers = tuple(kind.startswith("*") for kind in types)
        self.seen.append(Seen(function, (gx, gy, gz), (bx, by, bz), shared, arguments, pointers))
        return 0


@contextmanager
def launching_nothing() -> Iterator[FakeDriver]:
    """A context in which the ``triton`` backend takes CPU tensors and the driver launches nothing."""
    fake = FakeDriver()
    assert native.why_not(torch.device("cpu")) is None
    table.use_driver(table.cuda_driver(str(build())))
    backend = registry._registry["triton"]
    registry.register(registry.Backend("triton", why_not=lambda device: None, operators=backend.operators))
    try:
        with wnfused.backend("triton"):
            table.forget()
            table.activate("cpu")
            yield fake
    finally:
        table.activate(None)
        table.forget()
        registry.register(backend)
