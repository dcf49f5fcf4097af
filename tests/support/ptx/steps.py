"""What each instruction does to a machine: operands fetched, an operation, its result written; memory and warps."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from . import warps
from .failures import Failure
from .lanes import TYPES, Lanes
from .operations import Unknown, operation
from .parser import Instruction, Operand, Register, Symbol
from .shared import IN_FLIGHT

if TYPE_CHECKING:
    from .machine import Machine

Step = Callable[["Machine", Lanes], None]
SPECIAL_REGISTERS = {"%tid.x", "global_smem", *(f"%{name}.{axis}" for name in ("ctaid", "nctaid") for axis in "xyz")}
_HINTS = {"L1::evict_last", "L1::evict_first", "L2::cache_hint"}


def compile_step(index: int, instruction: Instruction) -> Step:
    """The step of an instruction that does not end a block; fails for what the emulator does not know."""
    base, _, rest = instruction.opcode.partition(".")
    try:
        step = _SPECIAL[base](index, instruction, rest) if base in _SPECIAL else _arithmetic(instruction)
    except (Unknown, KeyError, ValueError) as error:
        raise Failure(f"the emulator does not know {instruction.opcode}", instruction) from error
    return step if instruction.predicate is None else _guarded(step, instruction)


def _guarded(step: Step, instruction: Instruction) -> Step:
    def run(machine: "Machine", lanes: Lanes) -> None:
        passed = machine.guard(instruction, lanes)
        if len(passed):
            step(machine, passed)

    return run


def _arithmetic(instruction: Instruction) -> Step:
    target, *sources = instruction.operands
    if instruction.opcode.startswith("mov.") and (isinstance(target, tuple) or isinstance(sources[0], tuple)):
        return _packed_move(target, sources[0])
    if instruction.opcode.startswith("setp.") and instruction.opcode.endswith(".f16x2"):
        return _packed_comparison(instruction)
    compute, types = operation(instruction.opcode)
    if len(types) != len(sources) or not isinstance(target, Register):
        raise Unknown
    if any(isinstance(source, Symbol) and source.name not in SPECIAL_REGISTERS for source in sources):
        raise Unknown
    operands = [*zip(sources, types, strict=True)]

    def run(machine: "Machine", lanes: Lanes) -> None:
        machine.write(target, compute(*[machine.read(operand, type, lanes) for operand, type in operands]), lanes)

    return run


def _packed_move(target: Operand, source: Operand) -> Step:
    """Registers into a wider one, the first lowest, or the other way."""

    def pack(machine: "Machine", lanes: Lanes) -> None:
        parts = [machine.read(part, f"b{part.bits}", lanes) for part in source]
        columns = np.stack([np.broadcast_to(part, len(lanes)) for part in parts], 1)
        machine.write(target, columns.view(f"u{target.bits // 8}")[:, 0], lanes)

    def unpack(machine: "Machine", lanes: Lanes) -> None:
        whole = machine.read(source, f"b{source.bits}", lanes)
        parts = np.ascontiguousarray(whole)[:, None].view(f"u{source.bits // 8 // len(target)}")
        for i, part in enumerate(target):
            if isinstance(part, Register):  # a part may be left out
                machine.write(part, parts[:, i].copy(), lanes)

    return pack if isinstance(source, tuple) else unpack


def _packed_comparison(instruction: Instruction) -> Step:
    (low, high), *sources = instruction.operands
    compute, _ = operation(instruction.opcode.removesuffix("x2"))

    def run(machine: "Machine", lanes: Lanes) -> None:
        a, b = (np.ascontiguousarray(machine.read(s, "b32", lanes))[:, None].view(np.float16) for s in sources)
        machine.write(low, compute(a[:, 0], b[:, 0]), lanes)
        machine.write(high, compute(a[:, 1], b[:, 1]), lanes)

    return run


# --- memory -----------------------------------------------------------------------------------------------------------


def _access(rest: str, space: str) -> tuple[int, int]:
    """Bytes of an element, and how many; raises for a form that is not known."""
    first, *hints, type = rest.split(".")
    count = int(hints.pop()[1:]) if hints and hints[-1] in ("v2", "v4") else 1
    if first != space or not _HINTS.issuperset(hints):
        raise Unknown
    return TYPES[type].itemsize, count


def _registers(operand: Operand) -> tuple[Register, ...]:
    return operand if isinstance(operand, tuple) else (operand,)


def _load(index: int, instruction: Instruction, rest: str) -> Step:
    target, address = instruction.operands[:2]
    registers, space = _registers(target), rest.partition(".")[0]
    if space == "param":
        return _load_parameter(registers[0], address.base, rest.partition(".")[2])
    element, count = _access(rest, space)
    if count != len(registers):
        raise Unknown

    def run(machine: "Machine", lanes: Lanes) -> None:
        place = machine.address(address, lanes)
        if space == "global":
            values = machine.memory.load(place, element, count, instruction)
        else:
            values = machine.shared.load(lanes, place, element, count, index)
        for i, register in enumerate(registers):
            machine.write(register, values[:, i].copy(), lanes)

    return run


def _load_parameter(register: Register, name: Symbol, type: str) -> Step:
    def run(machine: "Machine", lanes: Lanes) -> None:
        machine.write(register, machine.parameters[name.name].view(TYPES[type])[0], lanes)

    return run


def _store(index: int, instruction: Instruction, rest: str) -> Step:
    address, source = instruction.operands[:2]
    registers, space = _registers(source), rest.partition(".")[0]
    element, count = _access(rest, space)
    if count != len(registers):
        raise Unknown

    def run(machine: "Machine", lanes: Lanes) -> None:
        place = machine.address(address, lanes)
        columns = [np.broadcast_to(machine.read(r, f"b{8 * element}", lanes), len(lanes)) for r in registers]
        values, backwards = np.stack(columns, 1), machine.drawn()
        if space == "global":
            differ = machine.memory.store(place, values, instruction, backwards)
        else:
            differ = machine.shared.store(lanes, place, values, index, backwards)
        if differ:
            machine.conflicting.add(index)

    return run


def _copy(index: int, instruction: Instruction, rest: str) -> Step:
    """``cp.async``. What a copy writes is poisoned until its thread has waited for it."""
    if rest == "async.commit_group":
        return lambda machine, lanes: machine.copies.commit(lanes)
    if rest == "async.wait_group":
        return lambda machine, lanes: machine.copies.wait(lanes, instruction.operands[0])
    if rest not in ("async.cg.shared.global", "async.ca.shared.global"):
        raise Unknown
    target, source, width, *size = instruction.operands
    element = min(width, 8)

    def run(machine: "Machine", lanes: Lanes) -> None:
        read = np.broadcast_to(machine.read(size[0], "u32", lanes) if size else np.uint32(width), len(lanes))
        if ((read != 0) & (read != width)).any():
            raise Failure("a copy of a part of its bytes", instruction)
        values = np.zeros((len(lanes), width), np.uint8)
        full = np.flatnonzero(read)
        place = machine.address(source, lanes)[full]
        values[full] = machine.memory.load(place, element, width // element, instruction).view(np.uint8)
        at = machine.shared.claim(lanes, machine.address(target, lanes), width, index, IN_FLIGHT)
        machine.copies.issue(lanes, at, values)

    return run


# --- warps ------------------------------------------------------------------------------------------------------------


def _by_warps(machine: "Machine", operand: Operand, lanes: Lanes, instruction: Instruction) -> Lanes:
    """A register's bits as [warps, 32]; every lane of a warp has to take part."""
    if len(lanes) % 32 or (lanes[::32] % 32).any() or (lanes[31::32] - lanes[::32] != 31).any():
        raise Failure("a part of a warp arrives alone at an instruction of the whole warp", instruction)
    return np.broadcast_to(machine.read(operand, "b32", lanes), len(lanes)).reshape(-1, 32)


def _shuffle(index: int, instruction: Instruction, rest: str) -> Step:
    target, value, lane, *all_lanes = instruction.operands
    mode = rest.split(".")[1]
    if rest not in ("sync.bfly.b32", "sync.idx.b32") or all_lanes != [31, -1]:
        raise Unknown

    def run(machine: "Machine", lanes: Lanes) -> None:
        source = lane if isinstance(lane, int) else _by_warps(machine, lane, lanes, instruction)
        result = warps.shuffle(_by_warps(machine, value, lanes, instruction), mode, source)
        machine.write(target, result.ravel(), lanes)

    return run


def _reduce(index: int, instruction: Instruction, rest: str) -> Step:
    target, value, members = instruction.operands
    if rest != "sync.max.s32":
        raise Unknown

    def run(machine: "Machine", lanes: Lanes) -> None:
        if (_by_warps(machine, members, lanes, instruction) != 0xFFFFFFFF).any():
            raise Failure("a reduction over a part of a warp", instruction)
        largest = _by_warps(machine, value, lanes, instruction).view(np.int32).max(1)
        machine.write(target, np.repeat(largest, 32), lanes)

    return run


_PRODUCTS = {
    f"sync.aligned.{shape}.row.col.f32.{type}.{type}.f32": type
    for type, shape in (("bf16", "m16n8k16"), ("f16", "m16n8k16"), ("tf32", "m16n8k8"))
}


def _multiply(index: int, instruction: Instruction, rest: str) -> Step:
    target, *operands = instruction.operands
    type = _PRODUCTS[rest]

    def run(machine: "Machine", lanes: Lanes) -> None:
        a, b, c = (np.stack([_by_warps(machine, r, lanes, instruction) for r in o]) for o in operands)
        for register, value in zip(target, warps.multiply(a, b, c, type), strict=True):
            machine.write(register, value.ravel(), lanes)

    return run


def _load_matrices(index: int, instruction: Instruction, rest: str) -> Step:
    registers, address = instruction.operands
    count, transposed = len(registers), ".trans." in rest
    if rest.replace(".trans", "") != f"sync.aligned.m8n8.x{count}.shared.b16":
        raise Unknown

    def run(machine: "Machine", lanes: Lanes) -> None:
        by_warps = _by_warps(machine, address.base, lanes, instruction)
        givers = lanes.reshape(-1, 32)[:, : 8 * count].ravel()
        place = machine.address(address, givers)
        rows = machine.shared.load(givers, place, 2, 8, index, collective=True)
        loaded = warps.matrices(rows.reshape(len(by_warps), count, 8, 8), transposed)
        for register, value in zip(registers, loaded, strict=True):
            machine.write(register, value.ravel(), lanes)

    return run


def _policy(index: int, instruction: Instruction, rest: str) -> Step:
    """A hint to the cache, which has none here."""
    target = instruction.operands[0]
    return lambda machine, lanes: machine.write(target, np.uint64(0), lanes)


def _trap(index: int, instruction: Instruction, rest: str) -> Step:
    def run(machine: "Machine", lanes: Lanes) -> None:
        raise Failure("a trap", instruction)

    return run


_SPECIAL: dict[str, Callable[[int, Instruction, str], Step]] = {
    "ld": _load, "st": _store, "cp": _copy, "shfl": _shuffle, "redux": _reduce, "mma": _multiply,
    "ldmatrix": _load_matrices, "createpolicy": _policy, "trap": _trap,
}  # fmt: skip
