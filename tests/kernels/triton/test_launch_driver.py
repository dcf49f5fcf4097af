"""The C++ launch path against triton's own launcher, on a driver library that launches nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from wnfused.ops.backends import native

ROOT = Path(__file__).parents[3]


@pytest.mark.skipif(native.load() is not None, reason=f"no native library: {native.load()}")
def test_every_launch_is_the_one_of_triton_s_launcher() -> None:
    """Function, grid, block, shared memory and every argument, for every kernel of the layers."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.support.driver.compare"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    agreed = json.loads(done.stdout)
    assert agreed["signal"] == ["partial_norms", "gather", "weight_gradient", "finish_weight", "scatter"]
    kernels = {kernel for case in agreed.values() for kernel in case}
    assert len(kernels) >= 14, sorted(kernels)
