"""Several CTAs at a time, each thread a lane of numpy arrays with a position of its own in the program.

Lanes at the earliest block run first, until they meet others, a barrier or the end: where control flow is the same for
all, all run together. Registers and shared memory start as poison.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .failures import Failure
from .lanes import BITS, TYPES, Lanes, constant
from .memory import GlobalMemory
from .parser import Address, Instruction, Kernel, Operand, Register, Symbol
from .shared import SharedMemory
from .steps import Step, compile_step

Cta = tuple[int, int, int]
_ENDS = ("bra", "bra.uni", "bar.sync", "bar.warp.sync", "ret")


class Program:
    """A kernel made ready to run."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.instructions: list[Instruction] = []
        self.blocks: list[tuple[list[Step], Instruction | None]] = []
        for block in kernel.blocks:
            steps, end = [], None
            for instruction in block.instructions:
                if instruction.opcode in _ENDS:
                    end = instruction
                else:
                    steps.append(compile_step(len(self.instructions), instruction))
                self.instructions.append(instruction)
            self.blocks.append((steps, end))
        self.unit = min((_shared_width(i) for i in self.instructions), default=16)


def _shared_width(instruction: Instruction) -> int:
    """Of the narrowest access to shared memory that the instruction makes, in bytes."""
    parts = instruction.opcode.split(".")
    if parts[0] not in ("ld", "st") or "shared" not in parts:
        return 16 if "cp.async.ca" not in instruction.opcode else int(instruction.operands[2])
    count = next((int(part[1:]) for part in parts if part in ("v2", "v4")), 1)
    return TYPES[parts[-1]].itemsize * count


@dataclass
class _Copy:
    lanes: Lanes
    at: Lanes
    values: Lanes
    group: Lanes


class Copies:
    """The asynchronous copies of all lanes: issued, committed as groups, waited for."""

    def __init__(self, lanes: int, shared: SharedMemory, poison: int) -> None:
        self.committed = np.zeros(lanes, np.int64)
        self.pending: list[_Copy] = []
        self.shared, self.poison = shared, poison & 0xFF

    def issue(self, lanes: Lanes, at: Lanes, values: Lanes) -> None:
        self.shared.data[at[:, None] + np.arange(values.shape[1])] = self.poison
        self.pending.append(_Copy(lanes, at, values, self.committed[lanes]))

    def commit(self, lanes: Lanes) -> None:
        self.committed[lanes] += 1

    def wait(self, lanes: Lanes, most: int) -> None:
        """Until at most so many of a lane's groups are in flight."""
        waits = np.zeros(len(self.committed), bool)
        waits[lanes] = True
        for copy in self.pending:
            done = waits[copy.lanes] & (copy.group < self.committed[copy.lanes] - most)
            if done.any():
                self.shared.land(copy.lanes[done], copy.at[done], copy.values[done])
                left = ~done
                copy.lanes, copy.at, copy.values, copy.group = (
                    copy.lanes[left], copy.at[left], copy.values[left], copy.group[left]
                )  # fmt: skip
        self.pending = [copy for copy in self.pending if len(copy.lanes)]


class Machine:
    def __init__(
        self, program: Program, ctas: Sequence[Cta], grid: Cta, parameters: dict[str, np.ndarray],
        memory: GlobalMemory, shared_size: int, poison: int, draws: random.Random,
    ) -> None:  # fmt: skip
        self.program, self.parameters, self.memory, self.draws = program, parameters, memory, draws
        self.threads = program.kernel.threads
        self.all = np.arange(len(ctas) * self.threads)
        self.shared = SharedMemory(len(ctas), self.threads, shared_size, program.unit, poison, program.instructions)
        self.copies = Copies(len(self.all), self.shared, poison)
        self.conflicting: set[int] = set()  # stores whose lanes had different values for one address
        self.registers: dict[str, Lanes] = {}
        self._poison = {
            bits: np.full(len(self.all), constant(poison, f"b{bits}" if bits > 1 else "pred")) for bits in BITS
        }
        places = np.repeat(np.array(ctas, np.uint32), self.threads, axis=0).T
        self.special = {"global_smem": np.zeros(len(self.all), np.uint32)}
        self.special["%tid.x"] = (self.all % self.threads).astype(np.uint32)
        for axis, place, size in zip("xyz", places, grid, strict=True):
            self.special[f"%ctaid.{axis}"] = np.ascontiguousarray(place)
            self.special[f"%nctaid.{axis}"] = np.full(len(self.all), size, np.uint32)

    # --- operands -----------------------------------------------------------------------------------------------------

    def read(self, operand: Operand, type: str, lanes: Lanes) -> Lanes:
        """An operand as a type: of the given lanes, or one value for all."""
        if isinstance(operand, int):
            return constant(operand, type)
        if isinstance(operand, Symbol):
            value = self.special[operand.name]
        else:
            value = self.registers.get(operand.name, self._poison[operand.bits])
        if lanes is not self.all:
            value = value[lanes]
        dtype = TYPES.get(type, BITS[16])
        if dtype.itemsize < value.dtype.itemsize:
            value = value.astype(BITS[8 * dtype.itemsize])
        return value.view(dtype)

    def write(self, register: Register, value: Lanes, lanes: Lanes) -> None:
        bits = BITS[register.bits]
        if value.dtype.itemsize < bits.itemsize:  # a narrow load fills the register, with its sign if it has one
            value = value.astype(np.dtype(f"{'i' if value.dtype.kind == 'i' else 'u'}{bits.itemsize}"))
        value = value.view(bits)
        if lanes is self.all:
            self.registers[register.name] = value if value.ndim else np.full(len(lanes), value)
            return
        merged = self.registers.get(register.name, self._poison[register.bits]).copy()
        merged[lanes] = value
        self.registers[register.name] = merged

    def address(self, address: Address, lanes: Lanes) -> Lanes:
        bits = address.base.bits if isinstance(address.base, Register) else 32
        base = self.read(address.base, f"b{bits}", lanes)
        return np.broadcast_to(base + constant(address.offset, f"b{bits}"), len(lanes))

    def guard(self, instruction: Instruction, lanes: Lanes) -> Lanes:
        """The lanes for which the instruction's predicate holds."""
        passed = self.read(instruction.predicate, "pred", lanes) != instruction.negated
        return lanes if passed.all() else lanes[passed]

    def drawn(self) -> bool:
        return bool(self.draws.getrandbits(1))

    # --- control flow -------------------------------------------------------------------------------------------------

    def run(self) -> None:
        self.position = np.zeros(len(self.all), np.int64)
        self.waiting = np.zeros(len(self.all), bool)
        with np.errstate(all="ignore"):
            while (found := self._next()) is not None:
                self._run_block(*found)

    def _next(self) -> tuple[int, Lanes] | None:
        """The earliest block at which lanes can run, and those lanes."""
        end = len(self.program.blocks)
        able = ~self.waiting & (self.position < end)
        if not able.any():
            if not self.waiting.any():
                return None
            stuck = self.program.blocks[int(self.position[self.waiting].min()) - 1][1]
            raise Failure("a barrier that not every thread reaches", *([stuck] if stuck else []))
        block = int(self.position[able].min())
        lanes = np.flatnonzero(able & (self.position == block))
        return block, self.all if len(lanes) == len(self.all) else lanes

    def _run_block(self, block: int, lanes: Lanes) -> None:
        steps, end = self.program.blocks[block]
        for step in steps:
            step(self, lanes)
        self.position[lanes] = block + 1
        if end is None:
            return
        passed = lanes if end.predicate is None else self.guard(end, lanes)
        if end.opcode.startswith("bra"):
            self.position[passed] = self.program.kernel.labels[end.operands[0].name]
        elif end.opcode == "ret":
            self.position[passed] = len(self.program.blocks)
        elif end.opcode == "bar.warp.sync":
            self.shared.pass_warp_barrier(passed)
        else:
            self.waiting[passed] = True
        self._release()

    def _release(self) -> None:
        """CTAs whose threads have all arrived at one barrier go on."""
        if not self.waiting.any():
            return
        waiting, position = (x.reshape(-1, self.threads) for x in (self.waiting, self.position))
        ready = waiting.all(1) & (position == position[:, :1]).all(1)
        released = np.flatnonzero(np.repeat(ready, self.threads))
        self.waiting[released] = False
        self.shared.pass_barrier(released)
