"""One entry of the audit: a build, the facts read from its machine code, and the comparison with the plain kernel."""

from dataclasses import dataclass
from typing import Any

from wnfused.kernels.triton.audit.builds import KERNELS, TARGETS, Build, builds
from wnfused.kernels.triton.audit.compiled import Progress, compile_all
from wnfused.kernels.triton.audit.cycles import Cycles, loop_cycles
from wnfused.kernels.triton.audit.facts import Facts
from wnfused.kernels.triton.audit.processors import PROCESSORS, programs_per_processor


@dataclass(frozen=True)
class Entry:
    build: Build
    facts: Facts
    plain: Facts | None = None

    @property
    def name(self) -> str:
        return str(self.build)

    @property
    def programs(self) -> int:
        """How many programs fit on one processor."""
        f = self.facts
        return programs_per_processor(
            PROCESSORS[self.build.target], f.registers, f.shared_bytes, self.build.warps, f.tensor_memory
        )

    @property
    def occupancy(self) -> float:
        return self.programs * self.build.warps / PROCESSORS[self.build.target].max_warps

    @property
    def cycles(self) -> Cycles | None:
        return None if self.facts.loop is None else loop_cycles(self.facts.loop, self.build)

    @property
    def instruction_difference(self) -> int | None:
        mine, plain = self.facts.loop_instructions, self.plain and self.plain.loop_instructions
        return None if mine is None or plain is None else mine - plain

    @property
    def cycle_ratio(self) -> float | None:
        if self.plain is None or self.plain.loop is None or self.cycles is None:
            return None
        return self.cycles.total / loop_cycles(self.plain.loop, self.build).total

    def as_json(self) -> dict[str, Any]:
        f, cycles = self.facts, self.cycles
        return {
            "kernel": self.build.kernel,
            "config": self.build.config,
            "dtype": str(self.build.dtypes),
            "target": self.build.target,
            "registers": f.registers,
            "spill_bytes": f.spill_bytes,
            "scalars_in_lanes": f.scalars_in_lanes,
            "shared_bytes": f.shared_bytes,
            "occupancy": round(self.occupancy, 3),
            "mma": f.mma,
            "mma_instructions": f.mma_opcodes,
            "tf32_conversions": f.tf32_conversions,
            "async_copies": f.async_copies,
            "load_bytes": f.load_widths,
            "shuffles_in_loop": f.shuffles,
            "loop_instructions": f.loop_instructions,
            "plain_loop_instructions": self.plain and self.plain.loop_instructions,
            "loop_cycles_model": cycles and vars(cycles),
            "cycle_ratio_model": self.cycle_ratio,
            "tensor_peak": cycles and cycles.tensor_peak,
            "loop": f.loop,
        }


def audit(
    targets: tuple[str, ...] = TARGETS,
    kernels: tuple[str, ...] = tuple(KERNELS),
    progress: Progress = lambda done, count, name: None,
) -> list[Entry]:
    """Every shipped build of these kernels for these targets."""
    return audit_builds(list(builds(targets, kernels)), progress)


def audit_builds(chosen: list[Build], progress: Progress = lambda done, count, name: None) -> list[Entry]:
    """Entries of the chosen builds; their plain twins are compiled with them."""
    twins = [build.plain for build in chosen if build.plain is not None]
    found = compile_all(list(dict.fromkeys([*chosen, *twins])), progress)
    return [Entry(build, found[build], found[build.plain] if build.plain else None) for build in chosen]
