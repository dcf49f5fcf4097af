"""The requirements of the audit, as checks on its entries and on the bytes and launches of the roofline model."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from wnfused.kernels.triton.audit import roofline
from wnfused.kernels.triton.audit.builds import MATMUL_KERNELS
from wnfused.kernels.triton.audit.entries import Entry
from wnfused.kernels.triton.audit.processors import PROCESSORS

INSTRUCTIONS = 2  # the compiler may order the same code differently
SINGLE_PASS_LIMIT = {"sm_80": 1.05, "sm_90": 1.30}
COPY = r"U?MOV|IMAD\.MOV|[sv]_mov"
GAIN_LIMIT = 1.10
TWO_STEPS_LIMIT, ONE_PASS_LIMIT = 1.35, 1.05


class Check(NamedTuple):
    what: str
    limit: str
    found: str
    ok: bool
    broken: tuple[str, ...] = ()


class Finding(NamedTuple):
    where: str
    value: float
    ok: bool
    note: str = ""


def checks(entries: list[Entry]) -> list[Check]:
    """The checks that apply to at least one of the entries."""
    tests: list[tuple[str, str, Callable[[Entry], Finding | None]]] = [
        ("spilled bytes", "0", _spills),
        (
            "gfx942: scalar registers spilled to lanes of a vector register (64 lanes, no memory traffic)",
            "≤ 64",
            _lanes,
        ),
        ("programs resident on a processor", "≥ 1", _fits),
        ("matmul kernels, 16-bit dtypes: MMA instructions in the main loop", "present", _mma),
        ("tf32 matmuls: operands rounded to nearest before the tensor cores truncate them", "present", _rounded),
        (
            "16-byte async copies for aligned rows (gfx942: 16-byte loads), and no 1- or 2-byte loads",
            "present",
            _copies,
        ),
        (
            "linear forward, norms first: instructions added to the plain GEMM's tensor-core loop",
            "± 2",
            _same("linear_forward"),
        ),
        (
            "linear forward, norms first: instructions added to any loop, register copies not counted",
            "± 2",
            _same("linear_forward", copies=False),
        ),
        (
            "convolution forward, norms first: instructions added to the plain tensor-core loop",
            "± 2",
            _same("gather"),
        ),
        (
            "convolution forward, norms first: instructions added to any loop, register copies not counted",
            "± 2",
            _same("gather", copies=False),
        ),
        ("linear forward, single pass: shuffles in the loop", "0", _shuffles),
        (
            "linear forward, single pass, M ≥ 64: modelled cycles relative to plain",
            "≤ ×1.05 sm_80, ≤ ×1.30 sm_90",
            _single_pass,
        ),
        (
            "linear forward, single pass, M ≤ 32: modelled cycles relative to reading v from DRAM",
            "≤ ×1.00",
            _under_dram,
        ),
        (
            "linear dx with the gain: modelled cycles relative to plain (fp16: the loop for similar scales)",
            f"≤ ×{GAIN_LIMIT:.2f}",
            _gain,
        ),
    ]
    found = [_check(what, limit, [f for entry in entries if (f := test(entry))]) for what, limit, test in tests]
    return [check for check in found if check is not None]


def layer_checks(targets: tuple[str, ...]) -> list[Check]:
    """Checks of launches and bytes, from the launch code and the shapes of the roofline model."""
    launches, moved = list(_launches(targets)), list(_bytes(targets))
    found = [
        _check("launches per layer, forward", "1 (norms first: 2)", [f for f in launches if f.note == "forward"]),
        _check("launches per layer, backward", "≤ 3", [f for f in launches if f.note == "backward"]),
        _check(
            "DRAM bytes relative to plain, linear backward in two steps",
            f"≤ ×{TWO_STEPS_LIMIT}",
            [f for f in moved if f.note == "two"],
        ),
        _check(
            "DRAM bytes relative to plain, linear backward in one pass",
            f"≤ ×{ONE_PASS_LIMIT}",
            [f for f in moved if f.note == "one"],
        ),
    ]
    return [check for check in found if check is not None]


def _check(what: str, limit: str, findings: list[Finding]) -> Check | None:
    if not findings:
        return None
    broken = [f for f in findings if not f.ok]
    low, high = min(f.value for f in findings), max(f.value for f in findings)
    span = f"{high:.4g}" if low == high else f"{low:.3g} … {high:.3g}"
    found = f"{span} in {len(findings)}" + (f", {len(broken)} violate it" if broken else "")
    return Check(what, limit, found, not broken, tuple(f"{f.where}: {f.value:.4g}" for f in broken))


def _spills(entry: Entry) -> Finding:
    return Finding(entry.name, entry.facts.spill_bytes, entry.facts.spill_bytes == 0)


def _lanes(entry: Entry) -> Finding | None:
    if not entry.build.target.startswith("gfx"):
        return None
    return Finding(entry.name, entry.facts.scalars_in_lanes, entry.facts.scalars_in_lanes <= 64)


def _fits(entry: Entry) -> Finding:
    return Finding(entry.name, entry.programs, entry.programs >= 1)


def _is_16_bit_matmul(entry: Entry) -> bool:
    return entry.build.kernel in MATMUL_KERNELS and entry.build.dtypes.element == 2


def _mma(entry: Entry) -> Finding | None:
    return Finding(entry.name, entry.facts.mma, entry.facts.mma > 0) if _is_16_bit_matmul(entry) else None


def _rounded(entry: Entry) -> Finding | None:
    if entry.build.kernel not in MATMUL_KERNELS or not entry.build.dtypes.rounded:
        return None
    return Finding(entry.name, entry.facts.tf32_conversions, entry.facts.tf32_conversions > 0)


def _copies(entry: Entry) -> Finding | None:
    """Gains and norms are 4-byte loads; a 1- or 2-byte load reads single elements of a tile."""
    if not _is_16_bit_matmul(entry) or not entry.build.aligned:
        return None
    f = entry.facts
    wide = f.loads_of(16) if entry.build.target.startswith("gfx") else f.in_loop(r"LDGSTS.*\.128|UTMALDG|UBLKCP")
    return Finding(entry.name, wide, wide > 0 and min(f.load_widths, default=16) >= 4)


def _same(kernel: str, copies: bool = True) -> Callable[[Entry], Finding | None]:
    """The register allocator decides on copies between registers: their number depends on the code around the loop,
    above all where sm_100 pairs float32 operands for packed multiply-adds. With ``copies`` only MMA loops count."""

    def test(entry: Entry) -> Finding | None:
        # Where the gain cannot be applied to the output (fp16 activations, fp32 weights) the loop has to multiply.
        late = dict(entry.build.constants).get("GAIN") == "output"
        if entry.build.kernel != kernel or entry.build.mode != "norms first" or not late:
            return None
        if entry.plain is None or entry.instruction_difference is None or (copies and not entry.facts.mma):
            return None
        difference = entry.instruction_difference
        if not copies:
            difference -= entry.facts.in_loop(COPY) - entry.plain.in_loop(COPY)
        return Finding(entry.name, difference, abs(difference) <= INSTRUCTIONS)

    return test


def _is_single_pass(entry: Entry) -> bool:
    return entry.build.kernel == "linear_forward" and entry.build.mode == "single pass"


def _shuffles(entry: Entry) -> Finding | None:
    return Finding(entry.name, entry.facts.shuffles, entry.facts.shuffles == 0) if _is_single_pass(entry) else None


def _single_pass(entry: Entry) -> Finding | None:
    limit, tile = SINGLE_PASS_LIMIT.get(entry.build.target), entry.build.tile
    if not _is_single_pass(entry) or limit is None or tile is None or tile.m < 64 or entry.cycle_ratio is None:
        return None
    return Finding(entry.name, entry.cycle_ratio, entry.cycle_ratio <= limit)


def _under_dram(entry: Entry) -> Finding | None:
    """x is small and read from the L2 cache; v is read from DRAM, at one processor's share of the bandwidth."""
    tile = entry.build.tile
    if not _is_single_pass(entry) or tile is None or tile.m > 32 or entry.cycles is None:
        return None
    element = 4 if entry.build.dtypes.weights == "fp32" else 2
    dram = tile.n * tile.k * element / PROCESSORS[entry.build.target].dram_bytes_per_cycle
    return Finding(entry.name, entry.cycles.total / dram, entry.cycles.total <= dram)


def _gain(entry: Entry) -> Finding | None:
    if entry.build.kernel != "linear_input_gradient" or entry.cycle_ratio is None:
        return None
    return Finding(entry.name, entry.cycle_ratio, entry.cycle_ratio <= GAIN_LIMIT)


def _launches(targets: tuple[str, ...]) -> Iterator[Finding]:
    for target in targets:
        for layer in roofline.SHAPES:
            for direction in ("forward", "backward"):
                for variant in roofline.variants(layer, direction):
                    if variant.startswith(("plain", "torch")):
                        continue
                    count = len(roofline.launches_of(layer, target, direction, variant))
                    most = 3 if direction == "backward" else 2 if variant == "norms first" else 1
                    yield Finding(f"{layer}, {variant}, {target}", count, count <= most, direction)


def _bytes(targets: tuple[str, ...]) -> Iterator[Finding]:
    for target in targets:
        for layer in (shape for shape in roofline.SHAPES if not shape.kernel):
            two = _ratio(layer, target, "two steps", "plain")
            one = _ratio(layer, target, "one pass, ReLU and no bias", "plain, ReLU and no bias")
            gpu = PROCESSORS[target].gpu
            yield Finding(f"{layer}, {gpu}", two, two <= TWO_STEPS_LIMIT, "two")
            yield Finding(f"{layer}, {gpu}", one, one <= ONE_PASS_LIMIT, "one")


def _ratio(layer: roofline.Layer, target: str, mine: str, plain: str) -> float:
    return roofline.cost(layer, target, "backward", mine).dram / roofline.cost(layer, target, "backward", plain).dram
