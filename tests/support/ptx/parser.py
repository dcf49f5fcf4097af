"""PTX text as instructions in basic blocks. An instruction keeps its line, which every failure names."""

import re
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Register:
    name: str
    bits: int  # 1 for a predicate


@dataclass(frozen=True, slots=True)
class Address:
    base: "Register | Symbol"
    offset: int


@dataclass(frozen=True, slots=True)
class Symbol:
    """A label, a parameter, shared memory or a special register."""

    name: str


Operand = Register | Address | Symbol | int | tuple["Operand", ...]  # an int is the bits of a constant


@dataclass(frozen=True)
class Instruction:
    line: int
    text: str
    source: str  # file:line of the Triton kernel
    opcode: str
    operands: tuple[Operand, ...] = ()
    predicate: Register | None = None
    negated: bool = False

    def __str__(self) -> str:
        return f"PTX line {self.line}: {self.text} ({self.source})"


@dataclass
class Block:
    """Instructions that are run one after another: only the last one may be a branch, a barrier or the end."""

    instructions: list[Instruction] = field(default_factory=list)


@dataclass
class Kernel:
    name: str
    threads: int
    parameters: dict[str, str]  # name to type
    blocks: list[Block]
    labels: dict[str, int]  # to the block that starts there

    def instructions(self) -> list[Instruction]:
        return [instruction for block in self.blocks for instruction in block.instructions]


ENDS_BLOCK = ("bra", "bar", "ret")
_BITS = {"%p": 1, "%rs": 16, "%r": 32, "%rd": 64}
_LOCATION = re.compile(r"\.loc\s.*?//\s*(\S+:\d+)")
_STATEMENT = re.compile(r"(?:@(!?)(%p\d+)\s+)?([a-z][\w.:]*)\s*(.*)", re.DOTALL)


def parse(text: str) -> Kernel:
    """The one kernel of a module."""
    entry = re.search(r"\.entry\s+(\w+)\s*\((.*?)\)(.*?)^\{(.*?)^\}", text, re.DOTALL | re.MULTILINE)
    if entry is None:
        raise ValueError("text: no .entry; pass the PTX of a kernel")
    name, parameters, directives, body = entry.groups()
    threads = re.search(r"\.reqntid\s+(\d+)", directives)
    if threads is None:
        raise ValueError(f"{name}: no .reqntid; compile it with a fixed number of warps")
    kernel = Kernel(name, int(threads[1]), _parameters(parameters), [Block()], {})
    _fill(kernel, body, first_line=text.count("\n", 0, entry.start(4)) + 1)
    return kernel


def _parameters(text: str) -> dict[str, str]:
    return {name: type for type, name in re.findall(r"\.param\s+\.(\w+)[^,]*?(\w+)\s*(?:,|$)", text.strip())}


def _fill(kernel: Kernel, body: str, first_line: int) -> None:
    source, pending, start = "?", "", first_line
    for number, whole in enumerate(body.split("\n"), first_line):
        if location := _LOCATION.search(whole):
            source = location[1]
        line = whole.partition("//")[0].strip()
        if not line or line.startswith((".loc", ".reg", ".pragma")):
            continue
        if label := re.fullmatch(r"(\$?\w+):", line):
            if kernel.blocks[-1].instructions:
                kernel.blocks.append(Block())
            kernel.labels[label[1]] = len(kernel.blocks) - 1
            continue
        start = start if pending else number
        *statements, pending = f"{pending} {line}".strip().split(";")
        for statement in filter(None, map(str.strip, statements)):
            _append(kernel, _instruction(statement, start, source))


def _append(kernel: Kernel, instruction: Instruction) -> None:
    kernel.blocks[-1].instructions.append(instruction)
    if instruction.opcode.partition(".")[0] in ENDS_BLOCK:
        kernel.blocks.append(Block())


def _instruction(statement: str, line: int, source: str) -> Instruction:
    match = _STATEMENT.fullmatch(statement)
    if match is None:
        raise ValueError(f"PTX line {line}: cannot read {statement!r} ({source})")
    negated, predicate, opcode, operands = match.groups()
    text = re.sub(r"\s+", " ", statement)
    guard = None if predicate is None else _operand(predicate)
    return Instruction(line, text, source, opcode, tuple(map(_operand, _split(operands))), guard, bool(negated))


def _split(text: str) -> list[str]:
    """At the commas that are in no braces."""
    return [part.strip() for part in re.findall(r"\{[^}]*\}|[^,{}]+", text) if part.strip()]


def _operand(text: str) -> Operand:
    if text.startswith("{"):
        return tuple(map(_operand, _split(text[1:-1])))
    if text.startswith("["):
        base, _, offset = text[1:-1].replace(" ", "").partition("+")
        return Address(_operand(base), int(offset or "0", 0))
    if "|" in text:  # two results of one instruction
        return tuple(map(_operand, text.split("|")))
    if register := re.fullmatch(r"(%(?:p|rs|rd|r))\d+", text):
        return Register(text, _BITS[register[1]])
    if text.startswith(("0f", "0d")):
        return int(text[2:], 16)
    if re.fullmatch(r"-?(0x[0-9a-fA-F]+|\d+)", text):
        return int(text, 0)
    return Symbol(text)
