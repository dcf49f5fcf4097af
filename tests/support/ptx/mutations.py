"""Kernels with one fault each: a barrier gone, a wait relaxed, a mask cut, an address shifted.

What is not noticed has to have a reason. Most reasons are faults themselves, which must go unnoticed too: if poison in
place of what a load brings changes nothing, the load is not used.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .failures import Failure
from .lanes import TYPES
from .launch import Conditions, Launch
from .parser import Address, Block, Instruction, Kernel, Register

POISON = 0x7FC1DEAD7FC1DEAD  # NaN in every float type
FINITE = 0x3F803F803F803F80  # near 1 in every float type
CAUGHT = "caught"
Change = Callable[[Instruction], list[Instruction]]


@dataclass(frozen=True)
class Mutation:
    kind: str
    instruction: Instruction
    change: Change
    excuses: tuple[tuple[str, Change], ...]
    otherwise: str | None = None  # what else it means that the race detector finds nothing

    def applied(self, change: Change | None = None) -> Callable[[Kernel], Kernel]:
        def block(old: Block) -> Block:
            return Block(
                [
                    new
                    for i in old.instructions
                    for new in ((change or self.change)(i) if i is self.instruction else [i])
                ]
            )

        return lambda kernel: replace(
            kernel, blocks=[block(b) if self.instruction in b.instructions else b for b in kernel.blocks]
        )


def unnoticed(launch: Launch, expected: dict[str, Tensor], change: Callable[[Kernel], Kernel]) -> bool:
    """Whether a changed kernel still runs, leaves the same bits and stores nothing ambiguous."""
    copy = launch.copied()
    try:
        ambiguous = copy.run(Conditions(mutate=change))
    except Failure:
        return False
    same = all(torch.equal(_bytes(t), _bytes(expected[name])) for name, t in copy.tensors().items())
    return same and not ambiguous


def _bytes(t: Tensor) -> Tensor:
    return t.reshape(-1).view(torch.uint8)


def verdict(launch: Launch, expected: dict[str, Tensor], mutation: Mutation) -> str:
    """CAUGHT, the reason why the fault is harmless, or what was missed."""
    if not unnoticed(launch, expected, mutation.applied()):
        return CAUGHT
    for reason, change in mutation.excuses:
        if unnoticed(launch, expected, mutation.applied(change)):
            return reason
    return mutation.otherwise or f"missed: {mutation.kind}, {mutation.instruction}"


def _trap(instruction: Instruction, unless: bool = False) -> Instruction:
    """Ends the run where the instruction is executed, or where its predicate stops a lane."""
    return replace(instruction, opcode="trap", operands=(), negated=instruction.negated != unless)


def _filled(instruction: Instruction, value: int, stopped_only: bool = False) -> list[Instruction]:
    """A load, and then a value in its registers, of all lanes or of those that its predicate stops."""
    target = instruction.operands[0]
    registers = target if isinstance(target, tuple) else (target,)
    guard = {"negated": not instruction.negated} if stopped_only else {"predicate": None, "negated": False}
    moves = [
        replace(instruction, opcode=f"mov.b{r.bits}", operands=(r, value), **guard)
        for r in registers
        if isinstance(r, Register)
    ]
    return [instruction, *moves]


def _poisoned_store(instruction: Instruction) -> list[Instruction]:
    address, value = instruction.operands[:2]
    count = len(value) if isinstance(value, tuple) else 1
    return [
        replace(instruction, operands=(address, (POISON,) * count if count > 1 else POISON, *instruction.operands[2:]))
    ]


def _width(instruction: Instruction) -> int:
    parts = instruction.opcode.split(".")
    if parts[0] == "cp":
        return int(instruction.operands[2])
    return TYPES[parts[-1]].itemsize * next((int(p[1:]) for p in parts if p in ("v2", "v4")), 1)


def _shifted(instruction: Instruction, which: int) -> list[Instruction]:
    operands = list(instruction.operands)
    address = operands[which]
    assert isinstance(address, Address)
    operands[which] = replace(address, offset=address.offset + _width(instruction))
    return [replace(instruction, operands=tuple(operands))]


_UNREACHED = ("never reached", lambda i: [_trap(i)])


def mutations(kernel: Kernel) -> Iterator[Mutation]:
    for instruction in kernel.instructions():
        base, _, rest = instruction.opcode.partition(".")
        if instruction.opcode == "bar.sync":
            different = "the accesses before and after it touch different bytes"
            yield Mutation("barrier", instruction, lambda i: [], (_UNREACHED,), different)
        elif rest == "async.wait_group":
            untouched = "nothing touches the bytes of the group it lets off"
            relaxed = lambda i: [replace(i, operands=(i.operands[0] + 1,))]  # noqa: E731
            yield Mutation("wait", instruction, relaxed, (_UNREACHED,), untouched)
        elif base in ("ld", "st") and rest.startswith(("global", "shared")):
            yield from _of_access(instruction, base)
        elif rest.startswith(("async.ca", "async.cg")):
            yield from _of_copy(instruction)


def _of_access(instruction: Instruction, base: str) -> Iterator[Mutation]:
    if instruction.predicate is not None:
        always = ("its mask stops no lane", lambda i: [_trap(i, unless=True), i])
        unused = ("what the stopped lanes would load is not used", lambda i: _filled(i, POISON, stopped_only=True))
        again = ("the stopped lanes hold and store the same", _unguarded)
        yield Mutation("mask", instruction, _unguarded, (_UNREACHED, always, unused if base == "ld" else again))
    if base == "ld":
        unused = ("what it loads is not used", lambda i: _filled(i, POISON))
        zero = ("what it loads meets zeros: any finite value does", lambda i: _filled(i, FINITE))
        yield Mutation("address", instruction, lambda i: _shifted(i, 1), (_UNREACHED, unused, zero))
    else:
        unused = ("what it stores is not read", _poisoned_store)
        yield Mutation("address", instruction, lambda i: _shifted(i, 0), (_UNREACHED, unused))


def _of_copy(instruction: Instruction) -> Iterator[Mutation]:
    if len(instruction.operands) > 3:
        always = (
            "its mask stops no lane",
            lambda i: [*_where_masked(i), replace(i, opcode="trap", operands=(), predicate=_PROBE), i],
        )
        zero = ("what the stopped lanes would copy meets zeros: any finite value does", _finite_copy)
        cut = lambda i: [replace(i, operands=i.operands[:3])]  # noqa: E731
        yield Mutation("mask", instruction, cut, (_UNREACHED, always, zero))
    unread = ("what it copies is not read", _poisoned_copy)
    yield Mutation("address", instruction, lambda i: _shifted(i, 0), (_UNREACHED, unread))
    nothing = ("its mask stops every lane", lambda i: [*_where_copied(i), i])
    yield Mutation("address", instruction, lambda i: _shifted(i, 1), (_UNREACHED, nothing, unread))


def _unguarded(instruction: Instruction) -> list[Instruction]:
    return [replace(instruction, predicate=None, negated=False)]


_PROBE = Register("%p_probe", 1)


def _where_masked(instruction: Instruction) -> list[Instruction]:
    """The probe holds where a copy fills with zeros instead of reading."""
    width, size = instruction.operands[2:]
    return [replace(instruction, opcode="setp.ne.b32", operands=(_PROBE, size, width))]


def _where_copied(instruction: Instruction) -> list[Instruction]:
    """Ends the run where a copy reads."""
    size = instruction.operands[-1]
    return [
        replace(instruction, opcode="setp.ne.b32", operands=(_PROBE, size, 0)),
        replace(instruction, opcode="trap", operands=(), predicate=_PROBE, negated=False),
    ]


def _stored(instruction: Instruction, value: int) -> Instruction:
    """A store of numbers in place of a copy."""
    target, _, width = instruction.operands[:3]
    store = {4: "st.shared.b32", 8: "st.shared.v2.b32", 16: "st.shared.v4.b32"}[width]
    return replace(instruction, opcode=store, operands=(target, value if width == 4 else (value,) * (width // 4)))


def _poisoned_copy(instruction: Instruction) -> list[Instruction]:
    return [_stored(instruction, POISON)]


def _finite_copy(instruction: Instruction) -> list[Instruction]:
    """A copy that writes numbers instead of zeros."""
    target, source, width, _ = instruction.operands
    return [
        *_where_masked(instruction),
        replace(_stored(instruction, FINITE), predicate=_PROBE),
        replace(instruction, operands=(target, source, width), predicate=_PROBE, negated=True),
    ]
