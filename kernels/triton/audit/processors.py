"""Nominal figures of the GPUs the targets stand for: what a processor does per cycle, and the machine's peaks.

Rates are per streaming multiprocessor (compute unit) and cycle. Bandwidths and 16-bit rates are nominal dense peaks and
clocks are chosen to agree with them; none was checked against a data sheet. Assumed, not published: warp-wide MMA runs
at A100's rate on sm_90 and sm_100, and gfx942 issues one instruction per SIMD and cycle.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Processor:
    gpu: str
    count: int
    clock: float  # GHz
    bandwidth: float  # GB/s of DRAM
    tflops: float  # bf16, dense
    l2: float  # MB of the last cache before DRAM: the L2 cache, MI300X's Infinity Cache
    warp: int  # threads
    schedulers: int  # each issues one instruction of one warp per cycle
    tensor: int  # 16-bit multiply-adds on the target's own MMA instruction
    mma_sync: int  # the same on warp-wide MMA
    float_lanes: int  # FFMA, FMUL, FADD, IMAD
    integer_lanes: int  # IADD3, LOP3, SHF, PRMT, compare and select, conversions to 16 bits
    special_lanes: int  # MUFU and the other conversions
    shared_bytes: int  # that loads, stores and asynchronous copies move
    registers: int  # of 32 bits, per lane of a warp, over all schedulers
    max_registers: int  # per thread
    register_unit: int  # registers per thread are rounded up to a multiple
    shared_capacity: int
    shared_reserved: int  # per program
    max_warps: int
    max_programs: int
    tensor_memory: int = 0  # columns

    @property
    def dram_bytes_per_cycle(self) -> float:
        """A processor's even share."""
        return self.bandwidth / self.count / self.clock


KB = 1024
PROCESSORS = {
    "sm_80": Processor(
        "A100",
        count=108, clock=1.41, bandwidth=2039, tflops=312, l2=40, warp=32, schedulers=4,
        tensor=1024, mma_sync=1024, float_lanes=64, integer_lanes=64, special_lanes=16, shared_bytes=128,
        registers=2048, max_registers=255, register_unit=8, shared_capacity=164 * KB, shared_reserved=KB,
        max_warps=64, max_programs=32,
    ),
    "sm_90": Processor(
        "H100",
        count=132, clock=1.83, bandwidth=3350, tflops=989, l2=50, warp=32, schedulers=4,
        tensor=2048, mma_sync=1024, float_lanes=128, integer_lanes=64, special_lanes=16, shared_bytes=128,
        registers=2048, max_registers=255, register_unit=8, shared_capacity=228 * KB, shared_reserved=KB,
        max_warps=64, max_programs=32,
    ),
    "sm_100": Processor(
        "B200",
        count=148, clock=1.85, bandwidth=8000, tflops=2250, l2=126, warp=32, schedulers=4,
        tensor=4096, mma_sync=1024, float_lanes=128, integer_lanes=64, special_lanes=16, shared_bytes=128,
        registers=2048, max_registers=255, register_unit=8, shared_capacity=228 * KB, shared_reserved=KB,
        max_warps=64, max_programs=32, tensor_memory=512,
    ),
    "gfx942": Processor(
        "MI300X",
        count=304, clock=2.1, bandwidth=5300, tflops=1307, l2=256, warp=64, schedulers=4,
        tensor=1024, mma_sync=1024, float_lanes=64, integer_lanes=64, special_lanes=16, shared_bytes=128,
        registers=2048, max_registers=512, register_unit=8, shared_capacity=64 * KB, shared_reserved=0,
        max_warps=32, max_programs=32,
    ),
}  # fmt: skip


def programs_per_processor(p: Processor, registers: int, shared: int, warps: int, tensor_memory: int = 0) -> int:
    """How many programs of this size one processor holds at a time; 0 if not one fits."""
    rounded = -(-max(registers, 1) // p.register_unit) * p.register_unit
    limits = [
        p.registers // rounded // warps if registers <= p.max_registers else 0,
        p.shared_capacity // (shared + p.shared_reserved) if shared + p.shared_reserved else p.max_programs,
        p.max_warps // warps,
        p.max_programs,
    ]
    if tensor_memory:
        limits.append(p.tensor_memory // tensor_memory)
    return min(limits)
