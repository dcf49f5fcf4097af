"""The table of host times has a row for every layer, mode and peer, in the documented format."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from wnfused.ops.backends import native

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(native.load() is not None, reason=f"no native library: {native.load()}")
def test_json(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "wnfused.benchmarks.host", "--seconds", "0.01", "--only", "linear"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(
        [*command, "--json", str(tmp_path / "host.json")], check=True, cwd=ROOT, env=environment, timeout=300
    )
    rows = json.loads((tmp_path / "host.json").read_text())
    peers = ("plain", "torch hook", "torch parametrized", "wnfused c++", "wnfused python")
    expected = [("linear", mode, peer) for mode in ("step", "inference") for peer in peers]
    assert [(row["layer"], row["mode"], row["peer"]) for row in rows] == expected
    for row in rows:
        assert row.keys() == {"layer", "mode", "peer", "microseconds", "relative"}
        assert row["microseconds"] > 0 and (row["relative"] == 1.0) == (row["peer"] == "plain")
