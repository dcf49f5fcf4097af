"""The table of host times has a row for every layer, mode and peer, in the documented format."""

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
import torch

import wnfused
from wnfused.ops.backends import native

ROOT = Path(__file__).parents[2]


PEERS = ("plain", "torch hook", "torch parametrized", "wnfused c++", "wnfused python")


@pytest.mark.skipif(native.load() is not None, reason=f"no native library: {native.load()}")
@pytest.mark.parametrize("name", ["linear", "WRN-40-10"])
def test_json(name: str, tmp_path: Path) -> None:
    """A network has one peer more: all its weights at once."""
    command = [sys.executable, "-m", "wnfused.benchmarks.host", "--seconds", "0.01", "--only", name]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(
        [*command, "--json", str(tmp_path / "host.json")], check=True, cwd=ROOT, env=environment, timeout=300
    )
    rows = json.loads((tmp_path / "host.json").read_text())
    peers = PEERS if name == "linear" else (*PEERS, "wnfused model weights")
    expected = [(name, mode, peer) for mode in ("step", "inference") for peer in peers]
    assert [(row["layer"], row["mode"], row["peer"]) for row in rows] == expected
    for row in rows:
        assert row.keys() == {"layer", "mode", "peer", "microseconds", "relative"}
        assert row["microseconds"] > 0 and (row["relative"] == 1.0) == (row["peer"] == "plain")


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setenv("TRITON_INTERPRET", os.environ.get("TRITON_INTERPRET", "1"))  # the module changes it
    before = os.environ["TRITON_INTERPRET"]
    module = import_module("wnfused.benchmarks.host")
    os.environ["TRITON_INTERPRET"] = before
    return module


@pytest.mark.parametrize("name", ["ResNet-110", "HiFi-GAN V1", "WRN-40-10"])
def test_small_networks_have_all_layers(host: ModuleType, name: str) -> None:
    network = host.NETWORKS[name]
    with torch.device("meta"):
        counts = [wnfused.apply(make()).count for make in (network.make, network.small)]
    assert counts[0] == counts[1] > 39
    assert network.small()(torch.randn(network.shape)).shape[0] == 1


def test_tables_of_the_page_are_replaced(host: ModuleType, tmp_path: Path) -> None:
    rows = [host.Row("WRN-40-10", "step", peer, 2e5, 1.0) for peer in (*PEERS, "wnfused model weights")]
    rows += [host.Row("linear", "inference", peer, 8.0, 1.0 + i) for i, peer in enumerate(PEERS)]
    made = host.tables(rows)
    page = tmp_path / "gpu.md"
    page.write_text("".join(f"text\n<!-- {marker} -->\nold\n<!-- end -->\n" for marker in made))
    for _ in range(2):
        host.refresh(page, made)
    text = page.read_text()
    assert "old" not in text and text.count("text\n") == 3
    assert "\n| linear | inference | 8 µs | 2.00 | 3.00 | 4.00 | 5.00 |\n" in text
    assert "\n| WRN-40-10, batch 128 | 25 | 200 | 200 | 200 | 200 | 200 |\n" in text  # the host's time is longer
    page.write_text("no markers")
    with pytest.raises(SystemExit, match="has no markers <!-- host-layers -->"):
        host.refresh(page, made)


def test_the_page_has_all_markers(host: ModuleType) -> None:
    text = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")
    for marker in ("host-layers", "host-networks", "step-model"):
        assert f"<!-- {marker} -->" in text
    assert text.count("<!-- end -->") == 3
