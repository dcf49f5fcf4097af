"""Each script in examples/ runs as a user would run it, in a folder of its own, and prints what it promises."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(folder: Path, script: str, *arguments: object) -> str:
    command = [sys.executable, EXAMPLES / script, *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(list(map(str, command)), cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def differences(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"largest difference.*? (\S+)$", text, flags=re.MULTILINE)]


def test_every_example_has_a_test():
    text = Path(__file__).read_text(encoding="utf-8")
    scripts = [script.name for script in EXAMPLES.glob("*.py")]
    assert len(scripts) == 4
    assert all(f'"{script}"' in text for script in scripts)


def test_convert_vocoder(tmp_path):
    printed = run(tmp_path, "convert_vocoder.py", "--steps", 8)
    losses = [float(loss) for loss in re.findall(r"loss (\S+)", printed)]
    assert len(losses) == 8 and losses[-1] < losses[0]
    assert max(differences(printed)) < 1e-5
    assert "loads into the original generator" in printed


def test_initialize_residual_network(tmp_path):
    printed = run(tmp_path, "initialize_residual_network.py", "--blocks", 30)
    growth = {name: float(number) for name, number in re.findall(r"^(.*): the signal grows (\S+)", printed, re.M)}
    assert growth["He, g = 1"] > 100
    assert 1 < growth["robust_"] < 3
    assert printed.count("residual_end") == 2 and printed.count("before_relu") == 2


@pytest.mark.slow
def test_train_cifar(tmp_path):
    printed = run(tmp_path, "train_cifar.py", "--epochs", 2, "--run-dir", tmp_path / "run")
    assert (tmp_path / "run" / "result.json").exists()
    assert "parameters" in printed


@pytest.mark.slow
def test_deploy(tmp_path):
    printed = run(tmp_path, "deploy.py", "--output", tmp_path / "model.onnx")
    assert re.search(r"folded \d\d layers", printed)
    # ONNX Runtime is an optional extra: without it the script stops after torch.export and names the extra.
    whole = all(map(find_spec, ("onnx", "onnxscript", "onnxruntime")))
    assert len(differences(printed)) == (2 if whole else 1)
    assert max(differences(printed)) < 1e-4
    assert whole or '".[deploy]"' in printed
