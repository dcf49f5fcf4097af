"""``wnfused tune --device cpu``: measured routes are stored, and used only if they are requested."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import wnfused
from wnfused import cli
from wnfused.diagnostics import cpu_tuning
from wnfused.ops.backends import native

pytestmark = pytest.mark.skipif(native.load() is not None, reason="the native kernels cannot be built here")
MODEL = "wnfused.models:ResNet(8)"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    measure = cpu_tuning.measure
    monkeypatch.setattr(cpu_tuning, "measure", lambda problem, product, seconds: measure(problem, product, 0.001))


def test_a_model_is_measured_and_its_routes_are_used_on_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "routes.json"
    assert cli.main(["tune", MODEL, "--device", "cpu", "--input", "2,3,8,8", "--out", str(file)]) == 0
    assert f"WNFUSED_CPU_ROUTES={file}" in capsys.readouterr().out
    content = json.loads(file.read_text())
    routes = content["routes"]
    assert len(routes) >= 3 * 7 and {route["product"] for route in routes} == set(native.PRODUCTS)
    # Let the file ask for another route than the rule's, and see in a fresh process that it is taken.
    program = """
import sys, torch
from wnfused.ops.backends import native
torch.set_num_threads(int(sys.argv[1]))
assert native.load() is None
"""
    environment = {**os.environ, "WNFUSED_CPU_ROUTES": str(file)}
    command = [sys.executable, "-c", program, str(content["threads"])]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_stored_routes_replace_the_rules_choice(tmp_path: Path) -> None:
    problem = cpu_tuning.Convolution((2, 8, 16), (8, 8, 3), (8, 1, 1), (1,), (1,), (1,), False, (0,), 1, 0)
    x, v, g = problem.tensors()
    call = (x, v, g, None, *problem.geometry(), 0, 0.0, False)
    file, outputs = tmp_path / "routes.json", {}
    with wnfused.backend("native"):
        for route in ("scaled weight", "direct"):
            cpu_tuning.save([{**problem._asdict(), "product": "output", "route": route}], file)
            native.use_routes(file)
            outputs[route] = torch.ops.wnfused.convolution(*call)[0]
        torch.ops.wnfused_plan.forget_routes()
    torch.testing.assert_close(outputs["direct"], outputs["scaled weight"])
    assert not torch.equal(outputs["direct"], outputs["scaled weight"])  # another order of sums


@pytest.mark.parametrize("content", ["{", "[]", '{"threads": 2, "routes": [{"product": "output"}]}'])
def test_a_file_that_is_not_one_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "routes.json"
    file.write_text(content)
    with pytest.raises(ValueError, match="WNFUSED_CPU_ROUTES: .* is not a file of 'wnfused tune --device cpu'"):
        native.use_routes(file)


@pytest.mark.parametrize(
    ("key", "value"), [("stride", (0,)), ("stride", ()), ("groups", 0), ("g", (7, 1, 1)), ("dim", 9)]
)
def test_a_route_of_no_convolution_is_refused(tmp_path: Path, key: str, value: object) -> None:
    """The file is edited by hand or damaged; a stride of 0 divided by zero."""
    problem = cpu_tuning.Convolution((2, 8, 16), (8, 8, 3), (8, 1, 1), (1,), (1,), (1,), False, (0,), 1, 0)
    file = tmp_path / "routes.json"
    cpu_tuning.save([{**problem._asdict(), key: value, "product": "output", "route": "direct"}], file)
    with (
        wnfused.backend("native"),
        pytest.raises(ValueError, match=f"WNFUSED_CPU_ROUTES: .*wnfused::convolution: {key}"),
    ):
        native.use_routes(file)


@pytest.mark.parametrize(
    ("argv", "error"),
    [
        ([], "tune: MODEL: --device cpu measures a model; name one as package.module:name"),
        (
            ["torch.nn:Linear(3, 3)", "--input", "2,3"],
            "tune: MODEL: it calls no weight-normalized float32 convolution; there is nothing to measure",
        ),
        ([MODEL, "--input", "x"], "tune: --input: expected sizes like 8,3,32,32 or tokens=2,16:int50, got 'x'"),
        ([MODEL, "--out", "no/such/file"], "tune: --out: cannot write no/such/file: the directory does not exist"),
    ],
)
def test_bad_input_is_one_line(capsys: pytest.CaptureFixture[str], argv: list[str], error: str) -> None:
    assert cli.main(["tune", "--device", "cpu", *argv]) == 2
    assert capsys.readouterr().err == f"wnfused: {error}\n"
