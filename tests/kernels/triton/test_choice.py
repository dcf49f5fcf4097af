"""The plan of a problem, the tuner and its file, and the reasons why the triton backend cannot run."""

import json
import logging
from pathlib import Path

import pytest
import torch
from triton.runtime.errors import OutOfResources

import wnfused
from tests.support.triton_cases import DEVICE, DTYPE_IDS, DTYPES, gains, tensors
from wnfused.kernels.triton import (
    costs,
    dtypes,
    measure,
    rules,
    run_conv,
    run_linear,
    run_linear_backward,
    support,
    tune,
)
from wnfused.kernels.triton.rules import TARGETS, Plan, Problem, Target
from wnfused.kernels.triton.tiles import TILES, Tile, single_pass_pays, tiles_for, with_mask
from wnfused.ops import backends
from wnfused.ops.backends import registry

A100 = Target("sm_80", 108)
CPU = torch.device("cpu")


# --- the rule ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", TARGETS)
@pytest.mark.parametrize("name", ["bf16", "fp16", "tf32", "fp32", "bf16/fp32", "fp16/fp32"])
@pytest.mark.parametrize("m", [1, 16, 100, 5000])
def test_every_plan_is_shipped(family: str, name: str, m: int) -> None:
    for kernel in ("linear", "linear_dx", "linear_dw", "gather", "scatter", "weight_gradient"):
        for n, k in ((1, 1), (64, 576), (4096, 4096)):
            plan = rules.plan_by_rule(Problem(kernel, m, n, k, name), Target(family, TARGETS[family]))
            assert plan.tile in tiles_for("few_rows" if plan.mode == "few rows" else kernel, family, name)
            assert plan.mode != "single pass" or single_pass_pays(plan.tile, family, name)
            assert 1 <= plan.splits <= 32


def test_small_batches_use_a_single_pass_and_large_ones_norms_first() -> None:
    small = rules.plan_by_rule(Problem("linear", 16, 4096, 4096, "bf16", single_pass_allowed=True), A100)
    assert (small.mode, small.tile.m) == ("single pass", 16)
    large = rules.plan_by_rule(Problem("linear", 8192, 4096, 4096, "bf16", single_pass_allowed=True), A100)
    assert (large.mode, large.tile.m) == ("norms first", 128)
    known = rules.plan_by_rule(Problem("linear", 16, 4096, 4096, "bf16", single_pass_allowed=False), A100)
    assert known.mode == "norms first"


def test_a_long_sum_over_few_tiles_is_split() -> None:
    assert rules.plan_by_rule(Problem("linear", 16, 64, 16384, "bf16"), A100).splits > 4
    assert rules.plan_by_rule(Problem("weight_gradient", 64, 64, 2**17, "bf16", 9), A100).splits > 4
    assert rules.plan_by_rule(Problem("linear", 4096, 4096, 16384, "bf16"), A100).splits == 1
    assert rules.plan_by_rule(Problem("linear_dx", 16, 64, 16384, "bf16"), A100).splits == 1


@pytest.mark.parametrize("family", TARGETS)
@pytest.mark.parametrize(("m", "n", "k"), [(8, 4096, 4096), (128, 1024, 1024), (128, 3072, 3072), (4096, 4096, 4096)])
def test_a_forward_is_split_only_if_most_of_the_machine_would_be_idle(family: str, m: int, n: int, k: int) -> None:
    target = Target(family, TARGETS[family])
    assert rules.plan_by_rule(Problem("linear", m, n, k, "bf16", single_pass_allowed=True), target).splits == 1
    assert rules.plan_by_rule(Problem("linear", 8, 64, 16384, "bf16", single_pass_allowed=True), target).splits > 4


def test_where_the_gain_enters_dx() -> None:
    """In the loop under the 128×128 tile of sm_80 and of sm_90, before it elsewhere."""
    large, small = Problem("linear_dx", 4096, 4096, 4096, "bf16"), Problem("linear_dx", 128, 512, 512, "bf16")
    modes = {f: rules.plan_by_rule(large, Target(f, n), vendor=False).mode for f, n in TARGETS.items()}
    assert [modes[f] for f in ("sm_80", "sm_90", "sm_100", "gfx942")] == ["in registers"] + ["scaled first"] * 3
    middle = large._replace(m=2048, n=2048)
    assert rules.plan_by_rule(middle, Target("sm_90", 132), vendor=False).mode == "in registers"
    assert rules.plan_by_rule(large._replace(dtypes="fp16"), Target("sm_90", 132)).mode == "scaled first"
    assert rules.plan_by_rule(small, A100).mode == "scaled first"


@pytest.mark.parametrize("kernel", ["linear_dw", "weight_gradient"])
def test_a_mask_in_registers_takes_a_smaller_tile(kernel: str) -> None:
    """A weight gradient that masks dy has no registers for the largest tile of sm_90; others keep theirs."""
    (wide, narrow, *_) = tiles_for(kernel, "sm_90", "bf16")
    assert wide.m * wide.n == 128 * 256
    assert with_mask(wide) == narrow == Tile(128, 128, 64, 8, 3)
    for family in TILES:
        tiles = tiles_for(kernel, family, "bf16/fp32")
        assert [with_mask(tile) for tile in tiles] == [*tiles]


def test_the_mode_of_dv() -> None:
    assert rules.plan_by_rule(Problem("linear_dw", 4096, 4096, 16, "bf16"), A100).mode == "few rows"
    assert rules.plan_by_rule(Problem("linear_dw", 4096, 4096, 17, "bf16"), A100).mode == "two steps"


def test_large_contiguous_convolutions_go_to_the_vendor() -> None:
    problem = Problem("gather", 2**17, 640, 5760, "bf16", channels_last=False)
    assert rules.plan_by_rule(problem, A100).mode == "vendor"
    assert rules.plan_by_rule(problem._replace(channels_last=True), A100).mode == "norms first"
    assert rules.plan_by_rule(problem._replace(m=64, n=16, k=144), A100).mode == "norms first"
    assert rules.plan_by_rule(problem, A100, vendor=False).mode == "norms first"


def test_the_cost_model_hands_compute_bound_work_to_the_vendor() -> None:
    h100, b200 = (Target(name, TARGETS[name]) for name in ("sm_90", "sm_100"))

    def modes(problem: Problem, target: Target) -> list[bool]:
        return [rules.plan_by_rule(problem._replace(m=m), target).mode == "vendor" for m in (16, 128, 1024, 16384)]

    linear = Problem("linear", 0, 4096, 4096, "bf16")
    assert modes(linear, A100) == modes(linear, h100) == [False] * 4  # the loops reach what cuBLAS would
    assert modes(linear, b200) == [False, False, True, True]
    mixed = linear._replace(dtypes="bf16/fp32")  # past the break-even
    assert modes(mixed, h100) == [False, False, True, True]
    assert modes(linear._replace(aligned=False), h100)[-2:] == [True, True]
    # channels-last images with a contiguous weight: no 16-byte loads
    images = Problem("gather", 400_000, 256, 2304, "bf16", aligned=False)
    assert rules.plan_by_rule(images, h100).mode == "vendor"
    weights = Problem("weight_gradient", 256, 256, 400_000, "bf16", 9, aligned=False)
    assert rules.plan_by_rule(weights, h100).mode == "vendor"


def test_the_cost_models_fractions_are_fractions() -> None:
    for kernel in ("linear", "linear_dx", "linear_dw", "gather", "scatter", "weight_gradient"):
        for family in TARGETS:
            for name in ("bf16", "fp16", "tf32", "bf16/fp32"):
                assert 0 < costs.fraction(kernel, family, name, False) < costs.fraction(kernel, family, name, True) <= 1


def test_contiguous_depthwise_convolutions_go_to_the_vendor() -> None:
    problem = Problem("gather", 4096, 1, 9, "bf16", 64, channels_last=False, aligned=False)
    assert rules.plan_by_rule(problem, A100).mode == "vendor"
    assert rules.plan_by_rule(problem._replace(channels_last=True), A100).mode == "norms first"


def test_unaligned_rows_get_small_tiles() -> None:
    """An odd size, or an address or stride that is not a multiple of 16, as triton's launcher sees them."""

    def tile(x: torch.Tensor, v: torch.Tensor) -> Tile:
        return tune.plan(run_linear.problem_of("linear", 4096, 4096, 4096, x, v), CPU).tile

    x, v = torch.empty(8, 64), torch.empty(32, 64)
    assert tile(x, v).m == 128
    shifted = torch.empty(8 * 64 + 1)[1:].view(8, 64)
    for a, b in ((x[:, :63], v[:, :63]), (x, v[:31]), (shifted, v), (torch.empty(8, 65)[:, :64], v)):
        assert tile(a, b) == tiles_for("linear", "sm_80", "fp32", aligned=False)[0]


@pytest.mark.parametrize("name", ["contiguous", "images", "both", "three channels"])
def test_aligned_convolutions(name: str) -> None:
    channels = 3 if name == "three channels" else 32
    x, y, v = torch.empty(2, channels, 8, 8), torch.empty(2, 16, 8, 8), torch.empty(16, channels, 3, 3)
    if name != "contiguous":
        x, y = (t.contiguous(memory_format=torch.channels_last) for t in (x, y))
    if name != "images":
        v = v.contiguous(memory_format=torch.channels_last)
    walk = run_conv.walk_of(v, [1, 1], [1, 1], [1, 1], 1)
    problems = [run_conv.gather_problem(x, y, v, walk), run_conv.scatter_problem(y, x, v, walk)]
    problems.append(run_conv.weight_problem(y, x, v, walk))
    assert [p.aligned for p in problems] == [name == "both"] * 3
    assert [p.channels_last for p in problems] == [name != "contiguous"] * 3


def test_a_ragged_last_batch_gets_the_same_plan() -> None:
    problem = Problem("linear", 2048, 1024, 1024, "bf16")
    plans = {tune.plan(problem._replace(m=m), CPU) for m in (2048, 2047, 1500, 1025)}
    assert len(plans) == 1


@pytest.fixture
def _flags_as_before() -> object:
    flags = [torch.backends.cuda.matmul, torch.backends.cudnn.conv]
    before = [flag.fp32_precision for flag in flags]
    yield
    for flag, value in zip(flags, before, strict=True):
        flag.fp32_precision = value


@pytest.mark.usefixtures("_flags_as_before")
def test_float32_products_follow_torchs_flags() -> None:
    """Reading the older flag, allow_tf32, raises an error after one of the newer ones was set."""
    x = torch.empty(2, 2)
    torch.backends.cuda.matmul.fp32_precision, torch.backends.cudnn.conv.fp32_precision = "tf32", "ieee"
    assert (dtypes.linear_dtypes(x, x), dtypes.convolution_dtypes(x, x)) == ("tf32", "fp32")
    torch.backends.cuda.matmul.fp32_precision, torch.backends.cudnn.conv.fp32_precision = "ieee", "tf32"
    assert (dtypes.linear_dtypes(x, x), dtypes.convolution_dtypes(x, x)) == ("fp32", "tf32")
    assert dtypes.linear_dtypes(x.half(), x) == "fp16/fp32"
    assert [dtypes.precision(name) for name in ("tf32", "fp32", "bf16")] == ["tf32", "ieee", "ieee"]


@pytest.mark.parametrize(("size", "bucket"), [(0, 1), (1, 1), (2, 2), (3, 4), (1024, 1024), (1025, 2048)])
def test_buckets(size: int, bucket: int) -> None:
    assert rules.bucket(size) == bucket


# --- the tuner and its file -------------------------------------------------------------------------------------------

PROBLEM = Problem("linear", 128, 1024, 1024, "bf16", single_pass_allowed=True)


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setenv("WNFUSED_TUNE_DIR", str(tmp_path))
    tune.forget()
    yield
    tune.forget()


def test_the_fastest_plan_is_stored_and_used() -> None:
    rule = rules.plan_by_rule(PROBLEM, A100)
    wanted = Plan("norms first", TILES["sm_80"]["16-bit"][-1], 4)
    assert rule != wanted
    winners = tune.tune([PROBLEM], CPU, lambda problem, plan: 1.0 if plan == wanted else 2.0)
    assert winners == {PROBLEM: wanted}
    tune.save(winners, CPU)
    assert tune.plan(PROBLEM, CPU) == wanted
    assert tune.plan(PROBLEM._replace(m=100), CPU) == wanted  # the same bucket
    other = PROBLEM._replace(k=2048)
    assert tune.plan(other, CPU) == rules.plan_by_rule(other, A100)
    tune.save({other: rule}, CPU)
    assert tune.plan(PROBLEM, CPU) == wanted  # earlier results are kept


def test_the_rule_wins_a_tie_and_the_vendor_is_a_candidate() -> None:
    assert tune.tune([PROBLEM], CPU, lambda problem, plan: 1.0) == {PROBLEM: rules.plan_by_rule(PROBLEM, A100)}
    plans = list(tune.candidates(PROBLEM, A100))
    assert len(plans) == len(set(plans))
    assert {plan.mode for plan in plans} == {"norms first", "single pass", "vendor"}
    assert {plan.tile for plan in plans} == set(TILES["sm_80"]["16-bit"])
    assert all(single_pass_pays(plan.tile, "sm_80", "bf16") for plan in plans if plan.mode == "single pass")


def test_candidates_that_do_not_fit_are_skipped() -> None:
    def seconds(problem: Problem, plan: Plan) -> float:
        if plan.mode != "vendor":
            raise OutOfResources(200_000, 166_000, "shared memory")
        return 1.0

    assert tune.tune([PROBLEM], CPU, seconds)[PROBLEM].mode == "vendor"


def test_an_error_of_the_device_ends_the_tuning() -> None:
    """Every later call fails too, so further measurements would be meaningless."""

    def seconds(problem: Problem, plan: Plan) -> float:
        raise torch.AcceleratorError("an illegal memory access was encountered")

    with pytest.raises(torch.AcceleratorError, match="illegal memory access"):
        tune.tune([PROBLEM], CPU, seconds)


LAYERS = {
    "linear": measure.Layer("linear", 32, 64, 48),
    "odd": measure.Layer("linear", 9, 10, 11),
    "images": measure.Layer("conv", 2, 16, 32, 4),
}


@pytest.mark.parametrize(("dtype", "weights"), DTYPES, ids=DTYPE_IDS)
@pytest.mark.parametrize("name", LAYERS)
def test_tuned_problems_are_those_that_layers_request(
    name: str, dtype: torch.dtype, weights: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested: set[Problem] = set()

    def vendor(problem: Problem, device: torch.device) -> Plan:
        requested.add(rules.bucketed(problem))
        return Plan("vendor", TILES["sm_80"]["16-bit"][0])

    monkeypatch.setattr(tune, "plan", vendor)
    layer, all_of_them = LAYERS[name], [True] * 4
    shape = (layer.size, layer.size) if layer.kind == "conv" else ()
    (x, dy, v) = tensors(
        ((layer.batch, layer.inputs, *shape), dtype),
        ((layer.batch, layer.outputs, *shape), dtype),
        ((layer.outputs, layer.inputs, *(3 for _ in shape)), weights),
    )
    g = gains(v, 0)
    if shape:
        x, dy, v = (t.contiguous(memory_format=torch.channels_last) for t in (x, dy, v))
        geometry = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
        _, norms = run_conv.forward(x, v, g, None, geometry, 0, 0.0, False)
        run_conv.backward(dy, x, v, g, norms, None, geometry, 0, all_of_them)
    else:
        _, norms = run_linear.forward(x, v, g, None, 0, 0.0, False)
        run_linear.forward(x, v, g, None, 0, 0.0, False, norms)
        run_linear_backward.backward(dy, x, v, g, norms, None, 0, True, all_of_them)
    assert set(measure.calls(layer, dtype, weights, DEVICE)) == requested


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "null", '{"made for": {}}', b"\x80\x00".decode("latin1"), '{"made for": 3, "winners": []}'],
)
def test_a_corrupt_file_is_ignored_with_one_log_line(content: str, caplog: pytest.LogCaptureFixture) -> None:
    tune.cache_file(CPU).write_text(content)
    with caplog.at_level(logging.WARNING, logger="wnfused"):
        assert tune.plan(PROBLEM, CPU) == rules.plan_by_rule(PROBLEM, A100)
        tune.plan(PROBLEM._replace(k=64), CPU)
    assert len(caplog.records) == 1
    assert str(tune.cache_file(CPU)) in caplog.text


def test_a_user_without_a_home_directory_has_no_stored_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WNFUSED_TUNE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    assert tune.plan(PROBLEM, CPU) == rules.plan_by_rule(PROBLEM, A100)


@pytest.mark.parametrize("field", ["triton", "torch", "cuDNN", "device", "kernels"])
def test_a_file_for_another_version_is_ignored_with_one_log_line(field: str, caplog: pytest.LogCaptureFixture) -> None:
    file = tune.save({PROBLEM: Plan("vendor", TILES["sm_80"]["16-bit"][0])}, CPU)
    assert tune.plan(PROBLEM, CPU).mode == "vendor"
    content = json.loads(file.read_text())
    content["made for"][field] = "another"
    file.write_text(json.dumps(content))
    tune.forget()
    with caplog.at_level(logging.WARNING, logger="wnfused"):
        assert tune.plan(PROBLEM, CPU).mode != "vendor"
    assert [field in record.message for record in caplog.records] == [True]


def test_a_plan_that_is_not_shipped_is_rejected(caplog: pytest.LogCaptureFixture) -> None:
    file = tune.save({PROBLEM: Plan("vendor", TILES["sm_80"]["16-bit"][0])}, CPU)
    file.write_text(file.read_text().replace("128", "999", 2))
    tune.forget()
    with caplog.at_level(logging.WARNING, logger="wnfused"):
        assert tune.plan(PROBLEM, CPU) == rules.plan_by_rule(PROBLEM, A100)
    assert len(caplog.records) == 1


# --- when it cannot run -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "word"), [("3.6.0", "old"), ("2.1.0", "old"), ("3.10.1", "new"), ("4.0.0", "new")])
def test_unsupported_versions(version: str, word: str) -> None:
    reason = support.version_problem(version)
    assert reason is not None
    assert f"triton {version} is too {word}: 3.7 to 3.9 are supported" in reason


@pytest.mark.parametrize("version", ["3.7.1", "3.8.0", "3.9.0", "3.9.0+git1234"])
def test_supported_versions(version: str) -> None:
    assert support.version_problem(version) is None


def _refuse(monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    monkeypatch.setattr(support, "missing", lambda: reason)
    registry._resolved.clear()


def test_without_triton_an_explicit_choice_raises_and_auto_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    _refuse(monkeypatch, "triton cannot be imported (No module named 'triton')")
    with pytest.raises(wnfused.BackendUnavailable, match="backend 'triton' cannot run: triton cannot be imported"):
        wnfused.backend("triton")
    assert wnfused.WNLinear(3, 2)(torch.ones(1, 3)).shape == (1, 2)
    assert backends.resolve(CPU).name != "triton"


def test_cpu_tensors_need_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support, "interpreted", lambda: False)
    assert support.why_not(CPU) == "CPU tensors need triton's interpreter (TRITON_INTERPRET=1)"


def test_auto_does_not_select_the_interpreter() -> None:
    with wnfused.backend("auto"):
        assert backends.resolve(CPU).name != "triton"


def test_unsupported_devices() -> None:
    assert support.why_not(torch.device("xpu")) == "triton kernels run on CUDA and ROCm devices, not on 'xpu'"


def test_the_gradients_address_is_part_of_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dy that starts at an odd element is read element by element: it gets the tiles for that."""
    x, v = torch.empty(256, 256, dtype=torch.bfloat16), torch.empty(256, 256, dtype=torch.bfloat16)
    room = torch.zeros(256 * 256 + 16, dtype=torch.bfloat16)
    seen = []
    monkeypatch.setattr(run_linear_backward.tune, "plan", lambda problem, device: seen.append(problem))
    for offset in (0, 1):
        run_linear_backward.backward_plans(x, v, room[offset : offset + 256 * 256].view(256, 256))
    assert [problem.aligned for problem in seen] == [True, True, False, False]
