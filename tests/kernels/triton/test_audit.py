"""The offline audit: a few real compilations, its checks on them and on broken entries, and its models."""

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("triton")

from wnfused import cli
from wnfused.kernels.triton import costs
from wnfused.kernels.triton.audit import builds, cycles, processors, report, requirements, roofline, sass
from wnfused.kernels.triton.audit.builds import BF16, Build
from wnfused.kernels.triton.audit.entries import Entry, audit_builds
from wnfused.kernels.triton.audit.facts import Facts, load_width
from wnfused.kernels.triton.audit.launches import Access, Launch, Layer
from wnfused.kernels.triton.audit.loops import Instruction, Listing, main_loop, natural_loops

KERNELS = Path(__file__).parents[3] / "kernels" / "triton"


def shipped(kernel: str, target: str, mode: str, dtypes: builds.Dtypes = BF16) -> Build:
    """The build with the largest tile."""
    return next(b for b in builds.builds((target,), (kernel,)) if b.mode == mode and b.dtypes == dtypes)


@pytest.fixture(scope="module")
def entries(tmp_path_factory: pytest.TempPathFactory) -> list[Entry]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        return audit_builds([
            shipped("linear_forward", "sm_80", "norms first"),
            shipped("linear_forward", "sm_80", "single pass"),
            shipped("linear_forward", "sm_100", "norms first"),
            shipped("linear_forward", "sm_90", "single pass"),
            shipped("linear_input_gradient", "sm_80", "gain"),
            shipped("linear_input_gradient", "sm_90", "guarded", builds.FP16),
            shipped("linear_input_gradient", "sm_90", "scaled first"),
            shipped("linear_weight_gradient", "sm_90", "two steps"),
            shipped("weight_gradient", "sm_90", "two steps"),
            shipped("gather", "sm_80", "norms first"),
            shipped("linear_forward", "gfx942", "norms first"),
            shipped("linear_forward", "sm_80", "norms first", builds.TF32),
            shipped("linear_forward", "gfx942", "norms first", builds.TF32),
        ])  # fmt: skip


def test_requirements_hold(entries):
    found = requirements.checks(entries)
    assert len(found) == 13  # all except the one on small tiles
    assert [check for check in found if not check.ok] == []


def test_facts_of_compiled_kernels(entries):
    opcodes = {entry.build.target: entry.facts.mma_opcodes[0].split(".")[0] for entry in entries}
    assert opcodes["sm_80"] == "HMMA"
    assert opcodes["sm_90"] == "HGMMA"
    assert opcodes["gfx942"].startswith("v_mfma")
    for entry in entries:
        assert 16 < entry.facts.registers <= 512 and entry.facts.shared_bytes > 0
        assert 0 < entry.occupancy <= 1
        assert entry.plain is not None and entry.plain.mma == entry.facts.mma
        tile, cycles_ = entry.build.tile, entry.cycles
        assert tile is not None and cycles_ is not None
        rate = processors.PROCESSORS[entry.build.target].tensor // (2 if entry.build.dtypes.rounded else 1)
        assert cycles_.tensor == pytest.approx(tile.m * tile.n * tile.k / rate)  # exactly one tile per iteration
        # each element of both tiles is rounded once, by every warp that multiplies it
        assert (entry.facts.tf32_conversions > 0) == entry.build.dtypes.rounded


@pytest.mark.parametrize(
    ("kernel", "name", "least"),
    [
        ("linear_input_gradient", "linear_dx", 0.95),
        ("linear_weight_gradient", "linear_dw", 0.95),
        ("weight_gradient", "weight_gradient", 0.8),
    ],
)
def test_the_largest_tiles_of_an_h100_keep_its_tensor_cores_busy(entries, kernel, name, least):
    """By the model: docs/gpu.md and the rule's cost model state these fractions."""
    (entry,) = (e for e in entries if (e.build.kernel, e.build.target, e.build.dtypes) == (kernel, "sm_90", BF16))
    assert entry.cycles.tensor_peak >= least
    assert costs.MODELLED[name]["sm_90"][0] <= entry.cycles.tensor_peak + 0.005


def test_json_has_the_documented_fields(entries):
    promised = (
        "kernel config dtype target registers spill_bytes shared_bytes mma async_copies shuffles_in_loop "
        "loop_instructions plain_loop_instructions tf32_conversions tensor_peak"
    )
    assert set(promised.split()) <= entries[0].as_json().keys()


def test_compiled_results_are_cached(entries, monkeypatch, tmp_path):
    from wnfused.kernels.triton.audit import compiled

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    compiled._keep(entries[0].build, entries[0].facts)
    monkeypatch.setattr(compiled, "_compiled_in_workers", lambda missing: pytest.fail("compiled again"))
    assert compiled.compile_all([entries[0].build]) == {entries[0].build: entries[0].facts}


PLAIN_LOOP = {"HMMA.16816.F32.BF16": 64, "LDSM.16.M88.4": 16, "LDGSTS.E.BYPASS.128": 8, "IADD3": 20}


def fabricated(kernel: str, mode: str, loop: dict[str, int], target: str = "sm_80", smallest: bool = False) -> Entry:
    every = [b for b in builds.builds((target,), (kernel,)) if b.mode == mode and b.dtypes == BF16]
    build = every[-1 if smallest else 0]
    return Entry(build, Facts(100, 0, 32768, 0, loop), Facts(100, 0, 32768, 0, PLAIN_LOOP))


@pytest.mark.parametrize(
    ("what", "break_it"),
    [
        ("spilled bytes", lambda entry: replace(entry, facts=replace(entry.facts, spill_bytes=8))),
        (
            "scalar registers spilled",
            lambda entry: replace(
                entry, build=replace(entry.build, target="gfx942"), facts=replace(entry.facts, scalars_in_lanes=65)
            ),
        ),
        ("programs resident", lambda entry: replace(entry, facts=replace(entry.facts, shared_bytes=1 << 20))),
        (
            "MMA instructions in the main loop",
            lambda entry: replace(entry, facts=replace(entry.facts, loop={"LDGSTS.E.128": 1})),
        ),
        ("operands rounded to nearest", lambda entry: replace(entry, build=replace(entry.build, dtypes=builds.TF32))),
        (
            "16-byte async copies",
            lambda entry: replace(entry, facts=replace(entry.facts, loop=PLAIN_LOOP | {"LDG.E.U16": 4})),
        ),
        ("linear forward, norms first: instructions added to the plain GEMM", lambda entry: with_loop(entry, IADD3=23)),
        ("convolution forward", lambda entry: replace(fabricated("gather", "norms first", PLAIN_LOOP | {"IADD3": 3}))),
        (
            "shuffles in the loop",
            lambda entry: fabricated("linear_forward", "single pass", PLAIN_LOOP | {"SHFL.BFLY": 1}),
        ),
        ("M ≥ 64", lambda entry: fabricated("linear_forward", "single pass", PLAIN_LOOP | {"FFMA": 300})),
        (
            "M ≤ 32",
            lambda entry: fabricated("linear_forward", "single pass", PLAIN_LOOP | {"FFMA": 999}, smallest=True),
        ),
        ("dx with the gain", lambda entry: fabricated("linear_input_gradient", "gain", PLAIN_LOOP | {"FMUL": 300})),
    ],
)
def test_a_broken_entry_is_found(what: str, break_it: Callable[[Entry], Entry]):
    good = fabricated("linear_forward", "norms first", PLAIN_LOOP)
    assert all(check.ok for check in requirements.checks([good]))
    broken = [check for check in requirements.checks([good, break_it(good)]) if not check.ok]
    assert any(what in check.what and len(check.broken) == 1 for check in broken)


def with_loop(entry: Entry, **counts: int) -> Entry:
    return replace(entry, facts=replace(entry.facts, loop=PLAIN_LOOP | counts))


def test_layers_stay_within_their_limits_of_launches_and_bytes():
    found = requirements.layer_checks(builds.TARGETS)
    assert len(found) == 4
    assert [check for check in found if not check.ok] == []


def test_the_main_loop_is_not_chosen_by_its_loads():
    """Of two loops with equally many products the shorter is chosen: the guarded dx has one that also loads scales."""
    weights = {"M": 1000, "L": 1, "I": 0}
    loop = [Instruction(o) for o in "MLIII"]
    first = [*loop, Instruction("I", "a")]
    second = [*loop, Instruction("L"), Instruction("L"), Instruction("I", "b")]
    listing = Listing([Instruction("I"), *first, *second, Instruction("I", None, True)], {"a": 1, "b": 7})
    found = main_loop(listing, lambda opcode: weights[opcode])
    assert found == [i.opcode for i in first]


def test_a_layer_beyond_the_limits_is_found(monkeypatch):
    many = [Launch("kernel", (Access(i, 10**9),), ()) for i in range(4)]
    monkeypatch.setattr(roofline, "forward", lambda *args: many)
    monkeypatch.setattr(roofline, "backward", lambda *args: many)
    assert [check.ok for check in requirements.layer_checks(("sm_80",))] == [False] * 4


SNIPPET = """
        /*0000*/                   MOV R1, c[0x0][0x28] ;
        /*0010*/              @!P0 BRA `(.L_x_3) ;
.L_x_1:
        /*0020*/                   LDG.E.128 R4, [R2.64] ;
        /*0030*/                   HMMA.16816.F32.BF16 R8, R4, R6, R8 ;
        /*0040*/              @!PT LDS RZ, [RZ] ;
        /*0050*/              @!P1 BRA `(.L_x_4) ;
.L_x_2:
        /*0060*/                   IADD3 R2, R2, 0x10, RZ ;
        /*0070*/                   BRA.U !UP4, `(.L_x_1) ;
.L_x_3:
        /*0080*/                   EXIT ;
.L_x_4:
        /*0090*/                   SYNCS.PHASECHK P1, [UR4] ;
        /*00a0*/              @!P1 BRA `(.L_x_4) ;
        /*00b0*/                   BRA `(.L_x_2) ;
.L_x_5:
        /*00c0*/                   BRA `(.L_x_5);
"""


def test_the_main_loop_of_a_listing():
    """Code after the exit that jumps back belongs to the loop; the code in between does not."""
    listing = sass.parse(SNIPPET)
    assert len(natural_loops(listing)) == 2  # the trap at the end is never reached
    loop = main_loop(listing, lambda opcode: int(opcode.startswith("HMMA")))
    assert loop == [
        "LDG.E.128", "HMMA.16816.F32.BF16", "NOP", "BRA", "IADD3", "BRA.U", "SYNCS.PHASECHK", "BRA", "BRA",
    ]  # fmt: skip
    assert main_loop(sass.parse("        /*0000*/  EXIT ;"), lambda opcode: 1) is None


@pytest.mark.parametrize(
    ("opcode", "width"),
    [
        ("LDG.E.128", 16),
        ("LDG.E.64.CONSTANT", 8),
        ("LDG.E", 4),
        ("LDG.E.U16", 2),
        ("LDGSTS.E.BYPASS.LTC128B.128", 16),
        ("LDGSTS.E.LTC128B", 4),
        ("LDGDEPBAR", None),
        ("LDS.128", None),
        ("global_load_dwordx4", 16),
        ("buffer_load_dword", 4),
        ("global_load_ushort", 2),
        ("ds_read_b128", None),
    ],
)
def test_width_of_loads(opcode, width):
    assert load_width(opcode) == width


def test_cycles_match_a_hand_computation():
    """Four warps on A100: 64 m16n8k16 take 8 of a quarter's cycles each; 100 FFMA at 64 lanes, 2 each."""
    build = shipped("linear_forward", "sm_80", "plain")
    found = cycles.loop_cycles({"HMMA.16816.F32.BF16": 64, "FFMA": 100, "LDS.128": 10, "UIADD3": 6}, build)
    assert vars(found) == {
        "tensor": 512, "issue": 180, "float32": 200, "integer": 0, "special": 0, "load_store": 160,
    }  # fmt: skip
    assert (found.total, found.bound) == (512, "tensor")


def test_occupancy_matches_a_hand_computation():
    a100 = processors.PROCESSORS["sm_80"]
    assert processors.programs_per_processor(a100, 128, 32 * 1024, 4) == 4  # 16 warps of 128 registers
    assert processors.programs_per_processor(a100, 32, 80 * 1024, 4) == 2  # shared memory
    assert processors.programs_per_processor(a100, 32, 200 * 1024, 4) == 0


def test_bytes_match_a_hand_computation():
    """Linear 16384,4096,4096 in bf16: weights of W bytes, activations of 4 W; only weights fit into the A100's L2."""
    layer, W, rows = Layer(16384, 4096, 4096), 2 * 4096 * 4096, 4096

    def cost(direction: str, variant: str) -> roofline.Cost:
        return roofline.cost(layer, "sm_80", direction, variant)

    assert cost("forward", "plain").dram == 9 * W + 2 * rows
    assert cost("forward", "norms precomputed").uncached == 9 * W + (2 + 2 + 4) * rows  # bias, g, norms
    assert cost("backward", "plain").dram == 22 * W + 2 * rows  # dy W, dx; dy, x, dW; dy, db
    assert cost("backward", "torch weight_norm").uncached == 25 * W + 10 * rows
    tiles = 4096 // 128
    parts = 16384 // 1024
    # g, norms; dots out and in; g, norms; dg; dy's sums out and in; db
    small = (2 + 4) + 2 * 4 * tiles + (2 + 4) + 2 + 2 * 4 * parts + 4
    # dy, x, v, dW; dW, v, dv; dy, v, dx: dx applies the gain itself, at no cost in bytes
    assert cost("backward", "two steps").uncached == pytest.approx(22 * W + small * rows, rel=1e-4)
    # dy, y, scaled dy; scaled dy, x, v, dv; scaled dy, v, dx: v is kept for dx, dv is not
    one_pass = cost("backward", "one pass, ReLU and no bias")
    assert one_pass.uncached == pytest.approx(31 * W, rel=1e-3)
    assert one_pass.dram == pytest.approx(30 * W, rel=1e-3)


def test_the_scaled_dy_is_written_before_dw():
    """The preparing programs are a launch's first: what the cache still holds at its end is dW."""
    found = roofline.launches_of(Layer(4096, 4096, 4096), "sm_90", "backward", "two steps")
    (dw,) = (launch for launch in found if launch.kernel == "linear_weight_gradient")
    (finish,) = (launch for launch in found if launch.kernel == "finish_weight")
    assert dw.writes[-1] in finish.reads and dw.writes[-1].bytes == 2 * 4096 * 4096
    assert next(w for w in dw.writes if w.bytes == 2 * 4096 * 4096) not in finish.reads


def test_cached_tensors_are_free_to_read():
    write, read, other = (
        Launch("a", (), (Access(1, 60),)), Launch("b", (Access(1, 60),), ()), Launch("c", (Access(2, 50),), ()),
    )  # fmt: skip
    assert roofline.dram_bytes([write, read, read], 100) == [60, 0, 0]
    assert roofline.dram_bytes([write, other, read], 100) == [60, 50, 60]
    assert roofline.dram_bytes([write, read], 50) == [60, 60]
    streamed = write._replace(streamed=(1,))
    assert roofline.dram_bytes([other, streamed, other, read], 100) == [50, 60, 0, 60]


def launched_by(source: str, module: str) -> set[str]:
    """The kernels that a file passes to ``launch``, or to a function of its own that hands them on, as module.name."""
    tree = ast.parse(source)
    functions = {f.name: f for f in ast.walk(tree) if isinstance(f, ast.FunctionDef) and f.args.args}
    launching = {"launch"}

    def passed(node: ast.AST) -> set[str]:
        calls = (call for call in ast.walk(node) if isinstance(call, ast.Call) and call.args)
        return {ast.unparse(call.args[0]) for call in calls if ast.unparse(call.func) in launching}

    while more := {name for name, f in functions.items() if f.args.args[0].arg in passed(f)} - launching:
        launching |= more
    handed_on = {functions[name].args.args[0].arg for name in launching & functions.keys()}
    return {name if "." in name else f"{module}.{name}" for name in passed(tree) - handed_on}


def test_every_launched_kernel_is_audited():
    """Wherever it is launched: the launches of all files, and the kernels that the files define."""
    launched = set().union(*(launched_by(file.read_text(), file.stem) for file in KERNELS.glob("*.py")))
    assert launched == {f"{module}.{kernel}" for kernel, module in builds.KERNELS.items()}


def test_launches_are_found_wherever_they_are_written():
    source = """
def run(x):
    launch(rows.norms, (1,), x)
    _mine(own, x)

def _mine(kernel, x):
    _other(kernel, x)

def _other(any_kernel, x):
    launch(any_kernel, (1,), x)
"""
    assert launched_by(source, "here") == {"rows.norms", "here.own"}


def test_roots_and_quotients_are_rounded_to_nearest():
    """tl.sqrt and / are fast approximations for float32 on NVIDIA GPUs; language.py has exact ones."""
    for file in {KERNELS / f"{module}.py" for module in builds.KERNELS.values()} | {KERNELS / "indexing.py"}:
        for function in (node for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef)):
            assert not any(isinstance(node, ast.Div) for node in ast.walk(function)), function.name
            assert "sqrt" not in ast.unparse(function), function.name


def test_launches_of_layers_as_on_a_gpu(tmp_path):
    """Triton's launcher specialises and compiles the layers' launches; their number is as documented."""
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    script = Path(__file__).parents[2] / "support" / "pretend_gpu.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr
    cases = json.loads(done.stdout)
    assert cases["linear, few rows"][0] == ["linear_forward"]  # one pass over x and v also computes the norms
    for name, (forward, backward) in cases.items():
        if not name.startswith("weight norm"):
            assert len(forward) <= 2, name
            assert len(backward) <= (4 if "per input" in name else 3), name


@pytest.mark.parametrize(
    ("kernel", "mode"),
    [("weight_gradient", "two steps"), ("depthwise_weight_gradient", "as shipped"), ("finish_weight", "from splits")],
)
def test_gradients_past_32_bits_compile(kernel, mode, monkeypatch, tmp_path):
    """Also for transposed layers, whose bias is summed over the far tensor: INDEX64 changes the width of variables."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    build = shipped(kernel, "sm_80", mode)
    constants = {name: True if name in ("SUM_FAR", "INDEX64") else value for name, value in build.constants}
    (entry,) = audit_builds([replace(build, constants=tuple(constants.items()), plain=None)])
    assert entry.facts.registers <= 255


def test_float64_rows_compile(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (entry,) = audit_builds([shipped("partial_norms", "sm_80", "whole rows", builds.FP64)])
    assert entry.facts.spill_bytes == 0


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ["--target", "sm_70"],
            "wnfused: audit: unknown --target 'sm_70', expected one of sm_80, sm_90, sm_100, gfx942\n",
        ),
        (["--kernel", "nothing"], r"wnfused: audit: unknown --kernel 'nothing', expected one of linear_forward, .*\n"),
        (["--json", "/no/such/folder/a.json"], r"wnfused: audit: cannot write /no/such/folder/a.json: .*\n"),
    ],
)
def test_wrong_arguments(argv, message, capsys, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert cli.main(["audit", *argv]) == 2
    assert re.fullmatch(message, capsys.readouterr().err)


def test_the_interpreter_cannot_be_audited(capsys, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert cli.main(["audit"]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_the_command_line(capsys, monkeypatch, tmp_path):
    """Exit code, JSON and report, on a fabricated entry that spills."""
    from wnfused.kernels.triton import audit

    bad = fabricated("linear_forward", "norms first", PLAIN_LOOP)
    bad = replace(bad, facts=replace(bad.facts, spill_bytes=8))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(audit, "audit", lambda targets, kernels, progress: [bad])
    assert cli.main(["audit", "--json", str(tmp_path / "a.json"), "--markdown", str(tmp_path / "a.md")]) == 1
    violated = (
        "audit: requirement violated: spilled bytes: 8 in 1, 1 violate it; must be 0\n  linear_forward norms first "
    )
    assert violated in capsys.readouterr().err
    assert '"spill_bytes": 8' in (tmp_path / "a.json").read_text()
    page = (tmp_path / "a.md").read_text()
    assert "nothing is measured" in page
    assert (
        "|BROKEN|spilled bytes|0|8 in 1, 1 violate it|" in page and "\nViolated: spilled bytes: linear_forward" in page
    )


def synthetic_entries() -> list[Entry]:
    """Every shipped build, with increasing register counts per kernel and target, and a few slower loops."""
    made, counts = [], {}
    for build in builds.builds(builds.TARGETS, tuple(builds.KERNELS)):
        key = (build.kernel, build.target)
        counts[key] = counts.get(key, 0) + (build.mode != "plain")
        slow = build.mode == "single pass" and build.dtypes == builds.FP16 and build.target == "sm_80"
        matmul = build.kernel in builds.MATMUL_KERNELS and build.target == "sm_80"
        loop = PLAIN_LOOP | ({"LDSM.16.M88.4": 160} if slow else {})
        plain = Facts(1, 0, 1024, 0, PLAIN_LOOP) if build.plain is not None and matmul else None
        made.append(Entry(build, Facts(counts[key], 0, 1024, 0, loop if matmul else None), plain))
    return made


def test_the_page_shows_the_worst_case_of_every_kernel_and_target():
    every = synthetic_entries()
    page = report.markdown(every)
    assert len(page.splitlines()) < 200
    table = [line[1:-1].split("|") for line in page.splitlines() if line.startswith("|`")]
    assert {(cells[0], cells[1]) for cells in table} == {(f"`{k}`", t) for k in builds.KERNELS for t in builds.TARGETS}
    assert len(table) == len(builds.KERNELS) * len(builds.TARGETS)
    for kernel, target, registers, where, spilled, *_ in table:
        group = [r for r in every if (f"`{r.build.kernel}`", r.build.target) == (kernel, target)]
        shipped_ = [entry for entry in group if entry.build.mode != "plain"]
        assert (int(registers), int(spilled)) == (len(shipped_), 0)
        assert where == f"{shipped_[-1].build.dtypes} {shipped_[-1].build.mode}"
    cycles = {(cells[0], cells[1]): tuple(cells[5:]) for cells in table}
    slowest = max(r.cycle_ratio for r in every if r.build.mode == "single pass" and r.cycle_ratio is not None)
    assert slowest > 2
    assert cycles["`linear_forward`", "sm_80"] == (f"{slowest:.2f}", "fp16 single pass")
    assert cycles["`gather`", "sm_80"] == ("1.00", "bf16 norms first")  # the first by name among equals
    assert cycles["`gather`", "sm_90"] == ("", "")


def test_the_worst_case_shows_spills_and_ignores_plain_kernels():
    good = fabricated("linear_forward", "norms first", PLAIN_LOOP)
    spills = replace(good, facts=replace(good.facts, spill_bytes=24, registers=90))
    plain = replace(good, build=replace(good.build, mode="plain"), facts=replace(good.facts, registers=250))
    page = report.markdown([good, spills, plain])
    assert "|`linear_forward`|sm_80|100|bf16 norms first|24|1.00|bf16 norms first|" in page


def test_the_terminal_shows_the_kernels_that_were_requested():
    """The roofline is of whole layers, not of one kernel."""
    every = synthetic_entries()
    assert "roofline" in report.terminal(every)
    one = [entry for entry in every if entry.build.kernel == "finish_weight"]
    text = report.terminal(one)
    assert text.startswith("finish_weight\n") and "roofline" not in text and "Linear" not in text
    assert "spilled bytes" in text


def test_json_keeps_every_build():
    every = synthetic_entries()
    stored = json.loads(report.as_json(every))
    assert [(s["kernel"], s["config"], s["dtype"], s["target"]) for s in stored] == [
        (r.build.kernel, r.build.config, str(r.build.dtypes), r.build.target) for r in every
    ]


def test_the_page_compares_times_with_the_plain_layer():
    """Linear 8,4096,4096 moves W bytes. torch's weight_norm reads and writes W once more each, wnfused does not."""
    (line,) = (
        line
        for line in report.markdown(synthetic_entries()).splitlines()
        if line.startswith("|Linear 8,4096,4096|back")
    )
    assert line == "|Linear 8,4096,4096|backward|" + "|".join(["2.00 → 1.00"] * 4) + "|"


def test_the_committed_page_has_the_layout_of_the_report():
    committed = (Path(__file__).parents[3] / "docs" / "audit.md").read_text().splitlines()
    written = report.markdown(synthetic_entries()).splitlines()

    def layout(page: list[str]) -> list[str]:
        """Prose, headings and the first two cells of the tables; verdicts and results may differ."""
        lines = [line for line in page if not line.startswith("Violated")]
        return [
            "|".join(line.split("|")[2 if "|ok|" in line or "|BROKEN|" in line else 1 :][:2]) or line for line in lines
        ]

    assert len(committed) < 200
    assert [line for line in layout(committed) if line] == [line for line in layout(written) if line]


def test_tensor_peak_matches_a_hand_computation():
    """Of a 128x128x64 tile two warp groups read 64 rows of A and all of B each; tcgen05 reads both tiles once."""
    copies = {"LDGSTS.E.BYPASS.128": 8}  # of 8 warps: 32 kB in 256 cycles
    hopper = cycles.loop_cycles(
        {"HGMMA.64x128x16.F32.BF16": 4, **copies}, shipped("linear_forward", "sm_90", "norms first")
    )
    assert (hopper.tensor, hopper.load_store) == (512, 256 + 2 * (64 + 128) * 64 * 2 / 128)
    assert hopper.tensor_peak == pytest.approx(512 / 640)
    blackwell = cycles.loop_cycles({"UTCHMMA": 4, **copies}, shipped("linear_forward", "sm_100", "norms first"))
    assert (blackwell.tensor, blackwell.load_store) == (256, 256 + (128 + 128) * 64 * 2 / 128)
    assert cycles.loop_cycles({"FFMA": 64}, shipped("linear_forward", "sm_80", "norms first")).tensor_peak is None
