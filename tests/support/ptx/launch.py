"""From launches to runs: triton's launcher specialises and compiles for sm_80, the emulator runs what it compiled."""

import functools
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .machine import Cta, Machine, Program
from .memory import GlobalMemory
from .parser import Kernel, parse

POISONS = (0xFFFFFFFFFFFFFFFF, 0x5A5A5A5A5A5A5A5A)  # NaN in every type; large, and different as integers
LANES = 4096  # threads that are run at a time
_SCALARS = {"i32": np.int32, "i64": np.int64, "u64": np.uint64, "fp32": np.float32, "fp64": np.float64}


@dataclass(frozen=True)
class Conditions:
    """What a kernel must not depend on."""

    seed: int = 0  # of the order of CTAs and of conflicting stores
    poison: int = POISONS[0]
    mutate: Callable[[Kernel], Kernel] | None = None


@functools.lru_cache(maxsize=256)
def program_of(ptx: str) -> Program:
    return Program(parse(ptx))


@dataclass(frozen=True)
class Launch:
    """A kernel with its grid and arguments: names to (type, value), a pointer's type being "*…".

    ``lent`` are tensors whose addresses on the host the kernel finds in a table.
    """

    program: Program
    grid: Cta
    arguments: dict[str, tuple[str, Any]]
    shared_size: int = 0
    lent: dict[str, Tensor] = field(default_factory=dict)

    def tensors(self) -> dict[str, Tensor]:
        return {name: value for name, (type, value) in self.arguments.items() if type.startswith("*")} | self.lent

    def copied(self) -> "Launch":
        """With tensors of its own, which share memory where the launch's do; its tables have their addresses."""
        storages: dict[int, torch.UntypedStorage] = {}

        def copy(t: Tensor) -> Tensor:
            storage = t.untyped_storage()
            own = storages.setdefault(storage.data_ptr(), storage.clone())
            return torch.empty(0, dtype=t.dtype).set_(own, t.storage_offset(), t.shape, t.stride())

        arguments = {name: (type, copy(v) if type.startswith("*") else v) for name, (type, v) in self.arguments.items()}
        lent = {name: copy(t) for name, t in self.lent.items()}
        moved = {t.data_ptr(): lent[name].data_ptr() for name, t in self.lent.items()}
        for type, value in arguments.values():
            if type == "*i64":
                value.apply_(lambda entry: moved.get(entry, entry))
        return replace(self, arguments=arguments, lent=lent)

    def run(self, conditions: Conditions = Conditions()) -> set[int]:  # noqa: B008 - it is frozen
        """On the host tensors. Returns the lines of stores whose lanes had different values for one address."""
        program = self.program if conditions.mutate is None else Program(conditions.mutate(self.program.kernel))
        memory, draws = GlobalMemory(), random.Random(conditions.seed)
        parameters = self._parameters(memory)
        ctas = [(x, y, z) for z in range(self.grid[2]) for y in range(self.grid[1]) for x in range(self.grid[0])]
        draws.shuffle(ctas)
        together = max(1, LANES // program.kernel.threads)
        conflicting: set[int] = set()
        for first in range(0, len(ctas), together):
            machine = Machine(
                program, ctas[first : first + together], self.grid, parameters, memory, self.shared_size,
                conditions.poison, draws,
            )  # fmt: skip
            machine.run()
            conflicting |= {program.instructions[i].line for i in machine.conflicting}
        return conflicting

    def _parameters(self, memory: GlobalMemory) -> dict[str, np.ndarray]:
        values = []
        for name, (type, value) in self.arguments.items():
            bits = memory.add(name, value) if type.startswith("*") else value
            values.append(np.array([bits], _SCALARS["u64" if type.startswith("*") else type]))
        for name, tensor in self.lent.items():
            memory.lend(name, tensor)
        names = list(self.program.kernel.parameters)
        values += [np.zeros(1, np.uint64)] * (len(names) - len(values))  # triton's scratch memory, which is not used
        return dict(zip(names, values, strict=True))


@dataclass
class Launches:
    """What has run: kernels by name, and the stores that differed among lanes, as (kernel, PTX line)."""

    kernels: list[str] = field(default_factory=list)
    conflicting: set[tuple[str, int]] = field(default_factory=set)
    opcodes: set[str] = field(default_factory=set)
    recorded: list[Launch] = field(default_factory=list)  # as they were before they ran
    lent: dict[str, Tensor] = field(default_factory=dict)


@contextmanager
def emulated(conditions: Conditions, record: bool = False) -> Iterator[Launches]:
    """Inside, Triton kernels that are launched on host tensors are compiled for sm_80 and run by the emulator.

    Only for a process that has not imported them for triton's interpreter.
    """
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    from tests.support.pretend_gpu import PretendDriver

    compile_only, launches = JITFunction.run, Launches()

    def run(kernel: JITFunction, *arguments: Any, grid: tuple[int, ...], warmup: bool, **options: Any) -> None:
        compiled = compile_only(kernel, *arguments, grid=grid, warmup=True, **options)
        values = dict(zip(kernel.arg_names, arguments, strict=False)) | options
        types = {name: type for name, type in compiled.src.signature.items() if type != "constexpr"}
        values = {name: (type, values[name]) for name, type in types.items()}
        program, shared_size = program_of(compiled.asm["ptx"]), compiled.metadata.shared
        launch = Launch(program, (*grid, 1, 1)[:3], values, shared_size, {**launches.lent})
        if record:
            launches.recorded.append(launch.copied())
        launches.conflicting |= {(kernel.__name__, line) for line in launch.run(conditions)}
        launches.kernels.append(kernel.__name__)
        launches.opcodes |= {instruction.opcode for instruction in program.instructions}

    driver.set_active(PretendDriver())
    JITFunction.run = run
    try:
        yield launches
    finally:
        JITFunction.run = compile_only
