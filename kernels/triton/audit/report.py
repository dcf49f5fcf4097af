"""The audit as text: a table for the terminal, JSON, and docs/audit.md."""

import json

from wnfused.kernels.triton.audit import roofline
from wnfused.kernels.triton.audit.builds import BF16, KERNELS, TARGETS
from wnfused.kernels.triton.audit.processors import PROCESSORS
from wnfused.kernels.triton.audit.requirements import Check, checks, layer_checks
from wnfused.kernels.triton.audit.rows import Row

_COLUMNS = (
    "target", "dtype", "config", "regs", "spill", "shared", "occ.", "MMA", "async", "load", "SHFL", "loop", "plain",
    "cycles", "× plain",
)  # fmt: skip
_HEAD = """# Offline audit of the Triton kernels

**No GPU has run these kernels here: everything below is compiled and modelled, nothing is measured.** `make audit`
writes this file: every shipped kernel, tile and dtype is compiled for sm_80 (A100), sm_90 (H100), sm_100 (B200) and
gfx942 (MI300X) and read back from its machine code. *Cycles* are those of one turn of the main loop on the busiest unit
of a processor (`kernels/triton/audit/cycles.py`); *× plain* compares them with the same kernel without the
normalization, whose loop has *plain* instructions. Tables by tile are for bf16. `wnfused audit --json FILE` writes all
rows, with the instruction mix of each loop.
"""

_NOTES = """
How to read them:

- *dx with the gain*: only the largest tile of sm_80, (bf16, tf32, fp32) sm_90 and (fp32) sm_100 multiplies dy by g/n in
  its loop (mode *gain*). Elsewhere dy was scaled before, in the weight gradient's launch or in one of its own, and the
  loop is the plain GEMM's (*scaled first*, the same code). float16 (*guarded*) has two loops; the one compared is taken
  while the scales of the layer lie within a factor of 8, the other one multiplies v's tile in its loop and is slower.
- *single pass*: the rule does not choose it, and it is not compiled, for tiles of 64 ≤ M < 128 on tensor cores, nor
  with the largest tile on sm_80 for float32 weights under 16-bit activations, nor for few rows of fp32 on sm_100: there
  norms come first.
- *fp32* is what torch's default flags ask of float32 matmuls: products that NVIDIA's tensor cores do not make. Its
  loops are multiply-adds and have no MMA there. *tf32* is float32 where the flags allow rounding, as they do by default
  for convolutions.
- *launches, forward*: a linear forward is split, in two launches, only if its tiles would occupy less than a quarter of
  the processors and 4096 or more numbers are summed. None of the shapes below is.
- *bytes*: hints that keep v and let go of dv are taken to be obeyed.
"""


def everything(rows: list[Row]) -> list[Check]:
    """All checks: the kernels' always, those of layers when forward and backward kernels were asked for."""
    targets = tuple(dict.fromkeys(row.build.target for row in rows))
    whole = {row.build.kernel for row in rows} == set(KERNELS)
    return [*checks(rows), *(layer_checks(targets) if whole else [])]


def as_json(rows: list[Row]) -> str:
    return json.dumps([row.as_json() for row in rows], indent=1, ensure_ascii=False)


def terminal(rows: list[Row]) -> str:
    lines = []
    for kernel in dict.fromkeys(row.build.kernel for row in rows):
        table = [_COLUMNS, *(_cells(row) for row in rows if row.build.kernel == kernel)]
        lines += ["", kernel, *_aligned(table)]
    targets = tuple(dict.fromkeys(row.build.target for row in rows))
    lines += ["", "roofline of layers in bf16 (a model, not a measurement)", *_aligned(_roofline(targets))]
    lines += ["", *_aligned([("", "what", "must be", "found"), *map(_verdict, everything(rows))])]
    return "\n".join(lines[1:])


def markdown(rows: list[Row]) -> str:
    """Summary first, then one table per kernel: bf16 in full, of other dtypes the extremes."""
    targets = tuple(dict.fromkeys(row.build.target for row in rows)) or TARGETS
    found = everything(rows)
    parts = [
        _HEAD,
        f"{len(rows)} builds.\n",
        "## Requirements\n",
        *_markdown_table(("", "what", "must be", "found"), found),
    ]
    for check in found:
        if not check.ok:
            rest = f" and {len(check.broken) - 5} more" if len(check.broken) > 5 else ""
            parts.append(f"\nBroken — {check.what}: {'; '.join(check.broken[:5])}{rest}.")
    parts.append(_NOTES.rstrip())
    for kernel in dict.fromkeys(row.build.kernel for row in rows):
        parts += ["", f"## `{kernel}`\n", *_kernel([row for row in rows if row.build.kernel == kernel])]
    parts += ["", "## Roofline of layers in bf16: a model, not a measurement\n", _roofline_head(targets), ""]
    table = _roofline(targets)
    return "\n".join([*parts, *_bars(table), ""])


def _kernel(rows: list[Row]) -> list[str]:
    rows = [row for row in rows if row.build.mode != "plain"]
    full = [_COLUMNS, *(_cells(row) for row in rows if row.build.dtypes == BF16)]
    lines = _bars([(cells[0], *cells[2:]) for cells in full])
    others = [row for row in rows if row.build.dtypes != BF16]
    if others:
        lines += ["", "Other dtypes, over all tiles:", "", *_bars(_extremes(others))]
    return lines


def _extremes(rows: list[Row]) -> list[tuple[str, ...]]:
    """One line per target, dtype and mode."""
    table: list[tuple[str, ...]] = [("target", "dtype", "mode", "regs", "spill", "MMA", "async", "loop", "× plain")]
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.build.target, str(row.build.dtypes), row.build.mode), []).append(row)
    for key, group in groups.items():
        facts = [row.facts for row in group]
        ratios = [r for row in group if (r := row.cycle_ratio) is not None]
        table.append((
            *key,
            _span([f.registers for f in facts]), _span([f.spill_bytes for f in facts]), _span([f.mma for f in facts]),
            _span([f.async_copies for f in facts]), _span([f.loop_instructions or 0 for f in facts]),
            f"{max(ratios):.2f}" if ratios else "",
        ))  # fmt: skip
    return table


def _span(values: list[int]) -> str:
    return str(values[0]) if min(values) == max(values) else f"{min(values)}–{max(values)}"


def _cells(row: Row) -> tuple[str, ...]:
    f, cycles, ratio = row.facts, row.cycles, row.cycle_ratio
    amd = row.build.target.startswith("gfx")
    return (
        row.build.target,
        str(row.build.dtypes),
        row.build.config,
        str(f.registers),
        str(f.spill_bytes),
        str(f.shared_bytes),
        f"{row.occupancy:.0%}",
        str(f.mma) if f.mma else "",
        "none in hw" if amd else str(f.async_copies or ""),
        "/".join(map(str, f.load_widths)),
        str(f.shuffles or ""),
        str(f.loop_instructions or ""),
        str((row.plain and row.plain.loop_instructions) or ""),
        f"{cycles.total:.0f} {cycles.bound}" if cycles else "",
        f"{ratio:.2f}" if ratio else "",
    )


def _verdict(check: Check) -> tuple[str, ...]:
    return ("ok" if check.ok else "BROKEN", check.what, check.limit, check.found)


def _roofline_head(targets: tuple[str, ...]) -> str:
    peaks = "; ".join(
        f"{p.gpu} {p.bandwidth:.0f} GB/s, {p.tflops} TFLOP/s, cache {p.l2} MB" for p in _processors(targets)
    )
    what = "Launches, MB asked of memory, and per GPU MB from and to DRAM and the shortest time."
    return f"{what} Nominal peaks (their sources are in `kernels/triton/audit/processors.py`): {peaks}."


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
                table.append((str(layer), direction, variant, launches, f"{costs[0].asked / 1e6:.1f}", *times))
    return table


def _markdown_table(head: tuple[str, ...], found: list[Check]) -> list[str]:
    return _bars([head, *map(_verdict, found)])


def _bars(table: list[tuple[str, ...]]) -> list[str]:
    lines = ["|" + "|".join(line) + "|" for line in table]
    return [lines[0], "|" + "|".join("---" for _ in table[0]) + "|", *lines[1:]]


def _aligned(table: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ["  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in table]
