"""The table of norm ratios over depth in docs/initialization.md: the command that makes it, on small networks."""

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "depth.py"
spec = importlib.util.spec_from_file_location("depth", SCRIPT)
depth = importlib.util.module_from_spec(spec)
spec.loader.exec_module(depth)


@pytest.mark.parametrize("make", [depth.plain, depth.residual])
def test_every_scheme_has_a_row(make, monkeypatch, capsys):
    monkeypatch.setattr(depth, "DEPTHS", (2, 60))
    head, rule, *rows = depth.table(make, 24, 1).splitlines()
    assert head == "| scheme | 2 layers | 60 layers |" and rule == "|---|---|---|"
    assert [row.split("`")[1] for row in rows] == list(depth.SCHEMES)
    found = {row.split("`")[1]: row.split("|")[3].split(" / ") for row in rows}
    if make is depth.residual:
        assert all(1 < float(side) < 3 for side in found["robust_"])
        assert float(found["he_"][0]) > 10
    else:
        assert float(found["he_"][0]) < 1e-6
    assert rows[0] in capsys.readouterr().out


def test_a_signal_that_overflows_is_called_so():
    assert depth.cell([(1.0, float("inf")), (2.0, 1.0)]) == "1.5 / overflow"


def test_the_picture_is_drawn(tmp_path):
    depth.plot(tmp_path / "images" / "depth.png", width=16, layers=16)
    assert (tmp_path / "images" / "depth.png").read_bytes().startswith(b"\x89PNG")
