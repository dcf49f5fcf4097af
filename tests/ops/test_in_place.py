"""A layer's output may be modified in place, on every backend, from the first call of a process on."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "support" / "first_calls.py"


@pytest.mark.parametrize(
    ("backend", "pairs", "cases"),
    [("native", "all", 121), ("torch", "all", 121), ("triton", "each once", 11)],
    ids=["native", "torch", "triton"],
)
def test_in_place_operations_after_the_first_call_of_a_process(backend: str, pairs: str, cases: int) -> None:
    """Every layer with every in-place operation; on triton each layer once, with an operation of its own."""
    environment = {**os.environ, "WNFUSED_BACKEND": backend, "TRITON_INTERPRET": "1"}
    command = [sys.executable, str(SCRIPT), pairs]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.stdout.splitlines()[-1:] == [f"{cases} cases, 0 failed"], done.stdout + done.stderr
