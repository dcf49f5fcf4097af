"""The C++ launch path against triton's own launcher, on a driver library that launches nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from wnfused.ops.backends import native

ROOT = Path(__file__).parents[3]


pytestmark = pytest.mark.skipif(native.load() is not None, reason=f"no native library: {native.load()}")


def run(module: str, *arguments: str) -> Any:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", f"tests.support.driver.{module}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_launch_is_the_one_of_triton_s_launcher() -> None:
    """Function, grid, block, shared memory and every argument, for every kernel of the layers."""
    agreed = run("compare")
    assert agreed["signal"] == ["partial_norms", "gather", "weight_gradient", "finish_weight", "scatter"]
    kernels = {kernel for case in agreed.values() for kernel in case}
    assert len(kernels) >= 14, sorted(kernels)


def test_a_tile_that_does_not_fit_is_replaced_and_remembered() -> None:
    """With 45 kB of shared memory smaller tiles replace the largest ones, and the next step uses them at once."""
    found = run("small", "45000")
    assert found["plans"] and all(mode != "vendor" and rows < 128 for mode, rows in found["plans"].values()), found
    assert found["retries"] == 0 and found["launches"] > 0
