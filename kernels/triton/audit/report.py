"""The audit as text: tables for the terminal, JSON with every build, and the summary docs/audit.md."""

import json

from wnfused.kernels.triton.audit import roofline
from wnfused.kernels.triton.audit.builds import KERNELS, TARGETS
from wnfused.kernels.triton.audit.entries import Entry
from wnfused.kernels.triton.audit.processors import PROCESSORS
from wnfused.kernels.triton.audit.requirements import Check, checks, layer_checks

_COLUMNS = (
    "target", "dtype", "config", "regs", "spill", "shared", "occ.", "MMA", "async", "load", "SHFL", "loop", "plain",
    "cycles", "% peak", "× plain",
)  # fmt: skip
_HEAD = """# Offline audit of the Triton kernels

**No GPU has run these kernels: the figures below are compiled and modelled, nothing is measured.** `make audit` writes
this page. It compiles every shipped kernel for every tile, dtype and target (sm_80: A100, sm_90: H100, sm_100: B200,
gfx942: MI300X) and reads the machine code. `wnfused audit --json FILE` writes every build with its resources and the
instruction mix of its main loop; `wnfused audit --kernel NAME` prints the builds of one kernel.
"""

_NOTES = """
Notes:

- *dx with the gain*: only the 128×128 tile of sm_80, sm_90 (bf16, tf32, fp32) and sm_100 (fp32) multiplies dy by g/n in
  its loop (mode *gain*). Elsewhere an earlier launch scales dy, and the loop is the plain GEMM's (*scaled first*, the
  same code). fp16 (*guarded*) has two loops. The one compared here runs while the scales of a layer are within a factor
  of 8; the other one multiplies the tile of v in its loop and is slower.
- *single pass* is neither chosen nor compiled for tiles of 64 ≤ M < 128 on tensor cores, for the largest tile of sm_80
  with fp32 weights and 16-bit activations, and for few batch rows of fp32 on sm_100. Norms come first there.
- *fp32* is a float32 matmul under torch's default flags. NVIDIA's tensor cores cannot compute it, so its loops are
  multiply-adds without MMA. *tf32* is float32 where the flags allow rounding, which for convolutions is the default.
- *launches per layer, forward*: a linear forward is split into two launches only if its tiles would occupy less than a
  quarter of the processors and K is 4096 or more. None of the shapes below is split.
- *DRAM bytes*: the model assumes that the GPU follows the eviction hints, which keep v and evict dv first.
"""

_WORST = """
## Worst case per kernel and target

Maxima over all dtypes, modes and tiles. *Cycles × plain* are the modelled cycles of one iteration of the main loop on
its busiest unit (`kernels/triton/audit/cycles.py`), relative to the same kernel without the normalization; it is empty
where no plain kernel does the same work.
"""


def everything(entries: list[Entry]) -> list[Check]:
    """All checks: of the kernels in ``entries``, and of whole layers if every kernel was audited."""
    targets = tuple(dict.fromkeys(entry.build.target for entry in entries))
    return [*checks(entries), *(layer_checks(targets) if _whole(entries) else [])]


def _whole(entries: list[Entry]) -> bool:
    return {entry.build.kernel for entry in entries} == set(KERNELS)


def as_json(entries: list[Entry]) -> str:
    return json.dumps([entry.as_json() for entry in entries], indent=1, ensure_ascii=False)


def terminal(entries: list[Entry]) -> str:
    """The builds of each kernel and the checks; the roofline of whole layers only if every kernel was audited."""
    lines = []
    for kernel in dict.fromkeys(entry.build.kernel for entry in entries):
        table = [_COLUMNS, *(_cells(entry) for entry in entries if entry.build.kernel == kernel)]
        lines += ["", kernel, *_aligned(table)]
    targets = tuple(dict.fromkeys(entry.build.target for entry in entries))
    if _whole(entries):
        lines += ["", "roofline of layers in bf16 (a model, not a measurement)", *_aligned(_roofline(targets))]
    lines += ["", *_aligned([("", "what", "must be", "found"), *map(_verdict, everything(entries))])]
    return "\n".join(lines[1:])


def markdown(entries: list[Entry]) -> str:
    """docs/audit.md: requirements, violations, the worst case per kernel and target, the roofline in brief."""
    targets = tuple(dict.fromkeys(entry.build.target for entry in entries)) or TARGETS
    found = everything(entries)
    parts = [
        _HEAD,
        f"{len(entries)} builds.\n",
        "## Requirements\n",
        *_bars([("", "what", "must be", "found"), *map(_verdict, found)]),
    ]
    for check in found:
        if not check.ok:
            rest = f" and {len(check.broken) - 5} more" if len(check.broken) > 5 else ""
            parts.append(f"\nViolated: {check.what}: {'; '.join(check.broken[:5])}{rest}.")
    parts += [_NOTES.rstrip(), _WORST, *_bars(_worst_cases(entries))]
    parts += ["", "## Roofline of layers in bf16: a model, not a measurement\n", _roofline_head(targets), ""]
    return "\n".join([*parts, *_bars(_relative_roofline(targets)), ""])


def _worst_cases(entries: list[Entry]) -> list[tuple[str, ...]]:
    """One line per kernel and target; of equal builds the first by name is shown."""
    table: list[tuple[str, ...]] = [("kernel", "target", "registers", "in", "spilled bytes", "cycles × plain", "in")]
    groups: dict[tuple[str, str], list[Entry]] = {}
    for entry in entries:
        if entry.build.mode != "plain":
            groups.setdefault((entry.build.kernel, entry.build.target), []).append(entry)
    for (kernel, target), group in sorted(groups.items(), key=lambda item: _position(*item[0])):
        registers, where = _largest([(entry.facts.registers, _variant(entry)) for entry in group])
        spilled = max(entry.facts.spill_bytes for entry in group)
        ratios = [(round(ratio, 2), _variant(entry)) for entry in group if (ratio := entry.cycle_ratio) is not None]
        slowest = _largest(ratios) if ratios else None
        cycles = (f"{slowest[0]:.2f}", slowest[1]) if slowest else ("", "")
        table.append((f"`{kernel}`", target, f"{registers:g}", where, str(spilled), *cycles))
    return table


def _position(kernel: str, target: str) -> tuple[int, int]:
    return list(KERNELS).index(kernel), TARGETS.index(target)


def _variant(entry: Entry) -> str:
    return f"{entry.build.dtypes} {entry.build.mode}"


def _largest(values: list[tuple[float, str]]) -> tuple[float, str]:
    return min(values, key=lambda pair: (-pair[0], pair[1]))


def _span(values: list[int]) -> str:
    return str(values[0]) if min(values) == max(values) else f"{min(values)}–{max(values)}"


def _cells(entry: Entry) -> tuple[str, ...]:
    f, cycles, ratio = entry.facts, entry.cycles, entry.cycle_ratio
    amd = entry.build.target.startswith("gfx")
    return (
        entry.build.target,
        str(entry.build.dtypes),
        entry.build.config,
        str(f.registers),
        str(f.spill_bytes),
        str(f.shared_bytes),
        f"{entry.occupancy:.0%}",
        str(f.mma) if f.mma else "",
        "none in hw" if amd else str(f.async_copies or ""),
        "/".join(map(str, f.load_widths)),
        str(f.shuffles or ""),
        str(f.loop_instructions or ""),
        str((entry.plain and entry.plain.loop_instructions) or ""),
        f"{cycles.total:.0f} {cycles.bound}" if cycles else "",
        f"{cycles.tensor_peak:.0%}" if cycles and cycles.tensor_peak else "",
        f"{ratio:.2f}" if ratio else "",
    )


def _verdict(check: Check) -> tuple[str, ...]:
    return ("ok" if check.ok else "BROKEN", check.what, check.limit, check.found)


def _roofline_head(targets: tuple[str, ...]) -> str:
    peaks = "; ".join(
        f"{p.gpu} {p.bandwidth:.0f} GB/s, {p.tflops} TFLOP/s, cache {p.l2} MB" for p in _processors(targets)
    )
    return (
        "Shortest possible time relative to the plain layer: torch's weight_norm → the slowest variant of wnfused.\n"
        "`wnfused audit` prints launches, bytes and times of every variant. Nominal peaks (sources:\n"
        f"`kernels/triton/audit/processors.py`): {peaks}."
    )


def _processors(targets: tuple[str, ...]) -> list:
    return [PROCESSORS[target] for target in targets]


def _roofline(targets: tuple[str, ...]) -> list[tuple[str, ...]]:
    table: list[tuple[str, ...]] = [("layer", "", "", "launches", "MB", *(p.gpu for p in _processors(targets)))]
    for layer in roofline.SHAPES:
        for direction in ("forward", "backward"):
            for variant in roofline.variants(layer, direction):
                costs = [roofline.cost(layer, target, direction, variant) for target in targets]
                times = (f"{c.dram / 1e6:.1f} MB {c.microseconds:.1f} µs" for c in costs)
                launches = _span([c.launches for c in costs])
                table.append((str(layer), direction, variant, launches, f"{costs[0].uncached / 1e6:.1f}", *times))
    return table


def _relative_roofline(targets: tuple[str, ...]) -> list[tuple[str, ...]]:
    table: list[tuple[str, ...]] = [("layer", "direction", *(p.gpu for p in _processors(targets)))]
    for layer in roofline.SHAPES:
        for direction in ("forward", "backward"):
            table.append((str(layer), direction, *(_slowdowns(layer, target, direction) for target in targets)))
    return table


def _slowdowns(layer: roofline.Layer, target: str, direction: str) -> str:
    times = {v: roofline.cost(layer, target, direction, v).microseconds for v in roofline.variants(layer, direction)}
    ours = [
        time / times["plain, ReLU and no bias" if "ReLU" in variant else "plain"]
        for variant, time in times.items()
        if not variant.startswith(("plain", "torch"))
    ]
    return f"{times['torch weight_norm'] / times['plain']:.2f} → {max(ours):.2f}"


def _bars(table: list[tuple[str, ...]]) -> list[str]:
    lines = ["|" + "|".join(line) + "|" for line in table]
    return [lines[0], "|" + "|".join("---" for _ in table[0]) + "|", *lines[1:]]


def _aligned(table: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ["  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in table]
