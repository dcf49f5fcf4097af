"""The facts that the audit records about one compiled kernel."""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Facts:
    registers: int
    spill_bytes: int  # in memory
    shared_bytes: int
    tensor_memory: int  # columns, on sm_100
    loop: dict[str, int] | None  # opcodes of the main loop, with modifiers, and their counts
    scalars_in_lanes: int = 0  # AMD's scalar registers spilled to lanes of vector registers
    tf32_conversions: int = 0  # roundings of float32 operands to tf32, in the whole kernel

    @property
    def loop_instructions(self) -> int | None:
        return None if self.loop is None else sum(self.loop.values())

    def in_loop(self, pattern: str) -> int:
        """How many of the loop's instructions start with the pattern."""
        return sum(count for opcode, count in (self.loop or {}).items() if re.match(pattern, opcode))

    @property
    def mma(self) -> int:
        return self.in_loop(MMA)

    @property
    def mma_opcodes(self) -> list[str]:
        return [opcode for opcode in self.loop or {} if re.match(MMA, opcode)]

    @property
    def shuffles(self) -> int:
        return self.in_loop(SHUFFLE)

    @property
    def async_copies(self) -> int:
        return self.in_loop(ASYNC_COPY)

    @property
    def load_widths(self) -> list[int]:
        """Bytes per thread of the loop's loads from global memory, asynchronous or not, widest first."""
        return sorted({w for opcode in self.loop or {} if (w := load_width(opcode)) is not None}, reverse=True)

    def loads_of(self, width: int) -> int:
        return sum(count for opcode, count in (self.loop or {}).items() if load_width(opcode) == width)


MMA = r"HMMA|HGMMA|UTC\w*MMA|v_mfma"
SHUFFLE = r"SHFL|ds_bpermute|ds_permute|ds_swizzle|v_permlane"
ASYNC_COPY = r"LDGSTS|UTMALDG|UBLKCP"
_MODIFIERS = {"128": 16, "64": 8, "U16": 2, "S16": 2, "U8": 1, "S8": 1}
_DWORDS = re.compile(r"(?:global|buffer)_load_(?:dword(?:x(\d))?|\w*(short|byte|ubyte|ushort)\w*)")


def load_width(opcode: str) -> int | None:
    """Bytes a thread reads from global memory with this instruction; None if it reads none."""
    if opcode.startswith(("LDG.", "LDGSTS")):
        return next((_MODIFIERS[m] for m in opcode.split(".") if m in _MODIFIERS), 4)
    if match := _DWORDS.match(opcode):
        return {"short": 2, "ushort": 2, "byte": 1, "ubyte": 1}.get(match[2] or "", 4 * int(match[1] or 1))
    return None


def weight(opcode: str) -> int:
    """The weight of an opcode in finding the main loop: matrix products first, then float32 products and loads."""
    if re.match(MMA, opcode):
        return 1000
    return int(opcode.startswith("FFMA")) + (load_width(opcode) or 0)
