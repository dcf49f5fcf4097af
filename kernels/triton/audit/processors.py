"""Nominal figures of the GPUs the targets stand for: what a processor does per cycle, and the machine's peaks.

Rates are per streaming multiprocessor (compute unit) and cycle. Where they were looked up:

- A100 (80 GB SXM): 108 processors, 1.41 GHz, 64 FP32 lanes and 1024 dense 16-bit multiply-adds each, 40 MB of L2 cache,
  312 TFLOP/s from NVIDIA's Ampere white paper; 2039 GB/s from the data sheet of the 80 GB card.
- H100 (SXM5): 132 processors, 128 FP32 lanes each, 1.83 GHz where the tensor cores run, 989 TFLOP/s dense, 3350 GB/s,
  50 MB, up to 228 kB of shared memory and 256 kB of registers each: white paper and data sheet. 2048 multiply-adds
  follow from rate, clock and count.
- B200 (HGX, 1000 W): 148 processors, 126 MB of L2 cache, 228 kB of shared memory as the driver reports them
  (pytorch/ao#4002, which also finds 7.67 TB/s); 2250 TFLOP/s dense from the data sheet, 7.7 TB/s of HGX B200; the
  tensor cores' clock of 1.86 GHz from published specifications: 4096 multiply-adds follow.
- MI300X: 304 compute units, wavefronts of 64, 64 kB of LDS, 512 kB of vector registers, 256 MB of Infinity Cache from
  ROCm's table of GPU specifications; 2.1 GHz, 5.3 TB/s, 1307 TFLOP/s from AMD's data sheet: 1024 multiply-adds follow.

Not found in print, and assumed: warp-wide MMA at A100's rate on sm_90 and sm_100; integer, special-function and shared
memory rates of sm_80 (64 and 16 lanes, 128 bytes: CUDA programming guide) on the later ones too; one instruction per
SIMD and cycle, 16 special lanes and 128 bytes of LDS a cycle on gfx942.
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
        """One processor's share of the DRAM bandwidth."""
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
        count=148, clock=1.86, bandwidth=7700, tflops=2250, l2=126, warp=32, schedulers=4,
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
    """How many programs of this size fit on one processor at a time; 0 if none does."""
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
