"""Published figures of the GPUs the targets stand for: what a processor does per cycle, and the machine's peaks.

Rates are per streaming multiprocessor (compute unit) and cycle, from the vendors' architecture papers and the CUDA
programming guide's throughput table. Clocks are boost clocks; bandwidths and 16-bit rates are dense peaks.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Processor:
    gpu: str
    count: int
    clock: float  # GHz
    bandwidth: float  # GB/s of DRAM
    tflops: float  # bf16, dense
    l2: float  # MB
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
        "A100", 108, 1.41, 2039, 312, 40, 32, 4, 1024, 1024, 64, 64, 16, 128,
        registers=2048, max_registers=255, register_unit=8, shared_capacity=164 * KB, shared_reserved=KB,
        max_warps=64, max_programs=32,
    ),
    "sm_90": Processor(
        "H100", 132, 1.83, 3350, 989, 50, 32, 4, 2048, 1024, 128, 64, 16, 128,
        registers=2048, max_registers=255, register_unit=8, shared_capacity=228 * KB, shared_reserved=KB,
        max_warps=64, max_programs=32,
    ),
    "sm_100": Processor(
        "B200", 148, 1.85, 8000, 2250, 126, 32, 4, 4096, 1024, 128, 64, 16, 128,
        registers=2048, max_registers=255, register_unit=8, shared_capacity=228 * KB, shared_reserved=KB,
        max_warps=64, max_programs=32, tensor_memory=512,
    ),
    "gfx942": Processor(
        "MI300X", 304, 2.1, 5300, 1307, 256, 64, 4, 1024, 1024, 64, 64, 16, 128,
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
