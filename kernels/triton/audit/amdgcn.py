"""Facts from the assembly of AMD kernels."""

import re
from collections import Counter
from typing import Any

from wnfused.kernels.triton.audit.facts import Facts, weight
from wnfused.kernels.triton.audit.loops import Instruction, Listing, main_loop

_LABEL = re.compile(r"^(\.LBB\w+):")
_LINE = re.compile(r"^\s+([svdgb][\w]+)\s*(.*)")


def facts(compiled: Any) -> Facts:
    text = compiled.asm["amdgcn"]
    loop = main_loop(parse(text), weight)
    return Facts(
        registers=_number(text, "vgpr_count"),
        spill_bytes=max(4 * _number(text, "vgpr_spill_count"), _number(text, "private_segment_fixed_size")),
        shared_bytes=compiled.metadata.shared,
        tensor_memory=0,
        loop=None if loop is None else dict(Counter(loop)),
        scalars_in_lanes=_number(text, "sgpr_spill_count"),
        tf32_conversions=len(re.findall(r"\bv_and_b32\w*\s+v\d+, 0xffffe000,", text)),  # the last step of each
    )


def parse(text: str) -> Listing:
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    for line in text.splitlines():
        if line.startswith(".Lfunc_end"):
            break
        if label := _LABEL.match(line):
            labels[label[1]] = len(instructions)
        elif match := _LINE.match(line):
            instructions.append(_instruction(match[1], match[2]))
    return Listing(instructions, labels)


def _instruction(opcode: str, operands: str) -> Instruction:
    target = operands.split()[0] if opcode.startswith(("s_cbranch", "s_branch")) else None
    return Instruction(re.sub(r"_e(32|64)$", "", opcode), target, opcode in ("s_branch", "s_endpgm"))


def _number(text: str, name: str) -> int:
    match = re.search(rf"\.{name}:\s*(\d+)", text)
    return int(match[1]) if match else 0
