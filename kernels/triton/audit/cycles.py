"""A model of the main loop: the cycles that one iteration of one program takes on each unit of a processor.

The busiest unit counts. A plain count of instructions is misleading if they are hidden by the matrix products. The
model includes throughputs (processors.py) but no latencies: it is a lower bound, reached if enough warps fill the
units.
"""

import re
from dataclasses import dataclass

from wnfused.kernels.triton.audit.builds import Build
from wnfused.kernels.triton.audit.facts import MMA
from wnfused.kernels.triton.audit.processors import PROCESSORS, Processor


@dataclass(frozen=True)
class Cycles:
    tensor: float
    issue: float
    float32: float
    integer: float
    special: float
    load_store: float

    @property
    def bound(self) -> str:
        return max(vars(self), key=lambda unit: vars(self)[unit])

    @property
    def total(self) -> float:
        return max(vars(self).values())

    @property
    def tensor_peak(self) -> float | None:
        """The fraction of the tensor cores' peak that the loop can reach; None if it does not use them."""
        return self.tensor / self.total if self.tensor else None


_FLOAT = r"FFMA|FMUL|FADD|IMAD|HFMA2|HADD2|HMUL2"
_SPECIAL = r"MUFU|I2F|F2I|F2F\b|I2I"
_LOAD_STORE = r"LDS|STS|LDSM|STSM|LDG|STG|SHFL|ds_|global_|buffer_"
_ISSUED_ONLY = r"U[A-Z]|BRA|BAR|DEPBAR|LDGDEPBAR|NOP|WARP|SYNCS|BSSY|BSYNC|ELECT|R2UR|S2|CS2R|LDC|FENCE|MEMBAR|ARRIVES"


def loop_cycles(loop: dict[str, int], build: Build) -> Cycles:
    p = PROCESSORS[build.target]
    busy = dict.fromkeys(("tensor", "issue", "float32", "integer", "special", "load_store"), 0.0)
    for opcode, count in loop.items():
        total = count * build.warps
        unit, cycles = _cost(opcode, build, p)
        busy["issue"] += total / p.schedulers
        if unit:
            busy[unit] += total * cycles
        busy["load_store"] += total * _operand_bytes(opcode, build) / p.shared_bytes
    return Cycles(**busy)


def _operand_bytes(opcode: str, build: Build) -> float:
    """Bytes of shared memory that a warp's share of wgmma or tcgen05 reads; older MMA instructions read registers.

    Every warp group of wgmma reads the whole tile of B, and its own rows of A unless those were rounded, masked or
    scaled in registers; tcgen05 reads both tiles once per program.
    """
    element = build.dtypes.element
    if opcode.startswith("HGMMA"):
        m, n, k = map(int, re.findall(r"(\d+)x(\d+)x(\d+)", opcode)[0])
        return ((0 if _a_in_registers(build) else m) + n) * k * element / 4
    if opcode.startswith("UTC") and build.tile is not None:
        return (max(build.tile.m, 128) + build.tile.n) * (16 if element == 2 else 8) * element / build.warps
    return 0.0


def _a_in_registers(build: Build) -> bool:
    constants = dict(build.constants)
    masked = any(name not in constants for name in ("y", "mask_source", "mask_near") if name in _MASKS[build.kernel])
    scaled = constants.get("GAIN") == "input" or (
        build.kernel == "linear_input_gradient" and constants["GAIN"] == "output"
    )
    return build.dtypes.rounded or masked or scaled


# Pointers whose presence means that A's tile is masked in registers.
_MASKS = {
    "linear_input_gradient": {"y"},
    "linear_weight_gradient": {"y"},
    "gather": {"mask_source"},
    "scatter": {"mask_source"},
    "weight_gradient": {"mask_near"},
    **dict.fromkeys(("linear_forward", "few_rows_weight_gradient"), frozenset()),
}


def _cost(opcode: str, build: Build, p: Processor) -> tuple[str | None, float]:
    """The unit that one warp's instruction occupies, and for how many cycles of the processor."""
    if re.match(MMA, opcode):
        return "tensor", _tensor_cycles(opcode, build, p)
    if re.match(_LOAD_STORE, opcode):
        return "load_store", p.warp * _width(opcode) / p.shared_bytes
    if opcode.startswith("v_"):
        return ("special", p.warp / p.special_lanes) if _is_slow(opcode) else ("float32", p.warp / p.float_lanes)
    if opcode.startswith("s_") or re.match(_ISSUED_ONLY, opcode):
        return None, 0.0
    if re.match(_SPECIAL, opcode):
        return "special", p.warp / p.special_lanes
    if re.match(_FLOAT, opcode):
        pairs = 2 if re.match(r"F(FMA|MUL|ADD)2", opcode) else 1
        return "float32", pairs * p.warp / p.float_lanes
    return "integer", p.warp / p.integer_lanes


def _is_slow(opcode: str) -> bool:
    return bool(re.match(r"v_(rcp|rsq|sqrt|exp|log|div_scale|div_fmas)", opcode))


def _tensor_cycles(opcode: str, build: Build, p: Processor) -> float:
    narrow = build.dtypes.element == 2
    if opcode.startswith("UTC"):  # issued once per program; the shape, in a descriptor, is that of the tile
        assert build.tile is not None
        products = max(build.tile.m, 128) * build.tile.n * (16 if narrow else 8)
        return products / (p.tensor if narrow else p.tensor // 2) / build.warps
    if opcode.startswith("HGMMA"):  # one instruction of four warps
        m, n, k = map(int, re.findall(r"(\d+)x(\d+)x(\d+)", opcode)[0])
        return m * n * k / (p.tensor if "TF32" not in opcode else p.tensor // 2) / 4
    if opcode.startswith("HMMA"):
        k = int(re.findall(r"HMMA\.168(\d+)", opcode)[0])
        return 16 * 8 * k / (p.mma_sync if "TF32" not in opcode else p.mma_sync // 2)
    m, n, k = map(int, re.findall(r"(\d+)x(\d+)x(\d+)", opcode)[0])
    rate = {"xf32": 2, "f32": 4}.get(opcode.rsplit("_", 1)[1], 1)  # the 16-bit rate divided by this
    return m * n * k / (p.tensor // rate)


def _width(opcode: str) -> int:
    """Bytes per thread."""
    if opcode.startswith(("LDSM", "STSM")):
        return 16 if opcode.endswith(".4") else 8 if opcode.endswith(".2") else 4
    if dwords := re.search(r"(?:dwordx|_b)(\d+)$", opcode):
        bits = int(dwords[1]) * (32 if "dwordx" in opcode else 1)
        return bits // 8 * (2 if re.search(r"(read|write)2", opcode) else 1)
    return 16 if re.search(r"\.128(\.|$)", opcode) else 8 if re.search(r"\.64(\.|$)", opcode) else 4
