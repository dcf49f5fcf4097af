"""Facts from the machine code of NVIDIA kernels, read with the disassembler in triton's wheel."""

import re
import subprocess
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import triton

from wnfused.kernels.triton.audit.facts import Facts, weight
from wnfused.kernels.triton.audit.loops import Instruction, Listing, main_loop

_TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
_LABEL = re.compile(r"^\s*(\.L_\w+):")
_LINE = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:(@!?\w+)\s+)?([\w.]+)\s*(.*?)\s*;")
_JUMP = re.compile(r"`\((\.L_\w+)\)")


def facts(compiled: Any) -> Facts:
    listing, usage = _disassembled(compiled.asm["cubin"])
    loop = main_loop(parse(listing), weight)
    return Facts(
        registers=int(_found(r"REG:(\d+)", usage)),
        # A stack frame that no instruction touches holds nothing.
        spill_bytes=int(_found(r"STACK:(\d+)", usage)) if re.search(r"\b(STL|LDL)\b", listing) else 0,
        shared_bytes=compiled.metadata.shared,
        tensor_memory=getattr(compiled.metadata, "tmem_size", 0) or 0,
        loop=None if loop is None else dict(Counter(loop)),
        tf32_conversions=compiled.asm["ptx"].count("cvt.rna.tf32.f32"),  # in SASS a compare and an add
    )


def parse(text: str) -> Listing:
    """The first function of nvdisasm's listing."""
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    for line in text.splitlines():
        if label := _LABEL.match(line):
            labels[label[1]] = len(instructions)
        elif match := _LINE.match(line):
            instructions.append(_instruction(*match.groups()))
    return Listing(instructions, labels)


def _instruction(guard: str | None, opcode: str, operands: str) -> Instruction:
    if guard == "@!PT":  # never runs; the compiler's way around a hazard
        return Instruction("NOP")
    jump = _JUMP.search(operands) if opcode.startswith("BRA") else None
    always = guard is None and not re.search(r"U?P\d", operands.split("`")[0])
    ends = opcode.startswith(("EXIT", "RET")) and guard is None
    if opcode.startswith("BRA"):
        ends = always and ".DIV" not in opcode
    return Instruction(opcode, jump[1] if jump else None, ends)


def _disassembled(cubin: bytes) -> tuple[str, str]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return _run("nvdisasm", "-c", file.name), _run("cuobjdump", "-res-usage", file.name)


def _run(tool: str, *arguments: str) -> str:
    return subprocess.run([str(_TOOLS / tool), *arguments], capture_output=True, text=True, check=True).stdout


def _found(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    if match is None:
        raise ValueError(f"no {pattern} in the disassembler's answer: {text[:200]!r}")
    return match[1]
