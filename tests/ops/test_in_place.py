"""A layer's output may be modified in place, on every backend, from the first call of a process on."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "support" / "first_calls.py"


@pytest.mark.parametrize(("backend", "every", "cases"), [("native", 1, 121), ("torch", 1, 121), ("triton", 4, 33)])
def test_in_place_operations_after_the_first_call_of_a_process(backend: str, every: int, cases: int) -> None:
    environment = {**os.environ, "WNFUSED_BACKEND": backend, "TRITON_INTERPRET": "1"}
    command = [sys.executable, str(SCRIPT), str(every)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.stdout.splitlines()[-1:] == [f"{cases} cases, 0 failed"], done.stdout + done.stderr
