"""``make train``'s example, end to end."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "digits.py"


def test_the_digits_example_learns_and_says_so():
    done = subprocess.run([sys.executable, str(SCRIPT), "--epochs", "3"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = [line for line in done.stdout.splitlines() if "wnfused" in line and "%" in line]
    accuracy = float(row.partition("%")[0].split()[-1])
    assert accuracy > 85
    assert "folded 5 layers" in done.stdout
