"""From launches to runs: triton's launcher specialises and compiles for sm_80, the emulator runs what it compiled."""

import functools
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
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


def execute(
    program: Program, grid: Cta, arguments: dict[str, tuple[str, Any]], shared_size: int,
    conditions: Conditions, lent: dict[str, Tensor] | None = None,
) -> set[int]:  # fmt: skip
    """Runs a kernel on host tensors; ``arguments`` maps names to (type, value), a pointer's type being "*…".

    Returns the lines of stores whose lanes had different values for one address.
    """
    memory = GlobalMemory()
    values = []
    for name, (type, value) in arguments.items():
        bits = memory.add(name, value) if type.startswith("*") else value
        values.append(np.array([bits], _SCALARS["u64" if type.startswith("*") else type]))
    for name, tensor in (lent or {}).items():
        memory.lend(name, tensor)
    names = list(program.kernel.parameters)
    values += [np.zeros(1, np.uint64)] * (len(names) - len(values))  # triton's scratch memory, which is not used
    parameters = dict(zip(names, values, strict=True))
    draws = random.Random(conditions.seed)
    ctas = [(x, y, z) for z in range(grid[2]) for y in range(grid[1]) for x in range(grid[0])]
    draws.shuffle(ctas)
    together = max(1, LANES // program.kernel.threads)
    conflicting: set[int] = set()
    for first in range(0, len(ctas), together):
        batch = ctas[first : first + together]
        machine = Machine(program, batch, parameters, memory, shared_size, conditions.poison, draws)
        machine.run()
        conflicting |= {program.instructions[i].line for i in machine.conflicting}
    return conflicting


@dataclass
class Launches:
    """What has run: kernels by name, and the stores that differed among lanes, as (kernel, PTX line)."""

    kernels: list[str] = field(default_factory=list)
    conflicting: set[tuple[str, int]] = field(default_factory=set)
    lent: dict[str, Tensor] = field(default_factory=dict)


@contextmanager
def emulated(conditions: Conditions) -> Iterator[Launches]:
    """Inside, Triton kernels that are launched on host tensors are compiled for sm_80 and run by the emulator.

    Only for a process that has not imported them for triton's interpreter.
    """
    from pretend_gpu import PretendDriver
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    compile_only, launches = JITFunction.run, Launches()

    def run(kernel: JITFunction, *arguments: Any, grid: tuple[int, ...], warmup: bool, **options: Any) -> None:
        compiled = compile_only(kernel, *arguments, grid=grid, warmup=True, **options)
        program = program_of(compiled.asm["ptx"])
        if conditions.mutate is not None:
            program = Program(conditions.mutate(program.kernel))
        values = dict(zip(kernel.arg_names, arguments, strict=False)) | options
        types = {name: type for name, type in compiled.src.signature.items() if type != "constexpr"}
        passed = {name: (type, values[name]) for name, type in types.items()}
        whole = (*grid, 1, 1)[:3]
        lines = execute(program, whole, passed, compiled.metadata.shared, conditions, launches.lent)
        launches.kernels.append(kernel.__name__)
        launches.conflicting |= {(kernel.__name__, line) for line in lines}

    driver.set_active(PretendDriver())
    JITFunction.run = run
    try:
        yield launches
    finally:
        JITFunction.run = compile_only
