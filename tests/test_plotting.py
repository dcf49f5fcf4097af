"""What all plots share."""

import subprocess
import sys
from pathlib import Path

import pytest

from wnfused import plotting


@pytest.mark.parametrize(
    ("low", "high", "labels"),
    [(0.5, 2.0, {"0.5", "1", "2"}), (0.9, 60.0, {"1", "2", "5", "10", "20", "50"}), (1e-9, 2.0, None)],
)
def test_a_logarithmic_axis_has_few_labels(low: float, high: float, labels: set[str] | None, tmp_path: Path) -> None:
    figure = plotting.figure(layout="constrained")
    panel = figure.subplots()
    plotting.log_scale(panel, low, high)
    figure.savefig(tmp_path / "axis.png")
    assert panel.get_ylim() == (low, high)
    ticks = [*panel.yaxis.get_major_ticks(), *panel.yaxis.get_minor_ticks()]
    shown = {t.label1.get_text() for t in ticks if low <= t.get_loc() <= high and t.label1.get_text()}
    assert shown == labels if labels else 3 <= len(shown) <= 12


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="matplotlib is not installed; install the extra 'train': pip install"):
        plotting.figure()


def test_importing_it_does_not_import_matplotlib() -> None:
    code = "import sys, wnfused.plotting, wnfused.diagnostics, wnfused.report; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
