"""The pictures a run ends with."""

import subprocess
import sys

import pytest

from tests.support.run_folders import diverged, epoch, write_run
from wnfused.train.plots import plot_run
from wnfused.train.records import RecordError

matplotlib_image = pytest.importorskip("matplotlib.image")


def test_three_small_pictures(tmp_path):
    folder = write_run(tmp_path / "run", [epoch(n, lr=0.1**n) for n in range(1, 61)])
    files = plot_run(folder)
    assert files == [folder / "plots" / name for name in ("loss.png", "accuracy.png", "lr.png")]
    for file in files:
        picture = matplotlib_image.imread(file)  # [H, W, RGBA]
        assert picture.shape[:2] == (408, 672)
        assert picture[..., :3].std() > 0.02  # something is drawn
        assert file.stat().st_size < 60_000
    assert plot_run(folder) == files  # drawn anew, as after a resumed run


def test_a_run_that_diverged_has_the_pictures_it_can_have(tmp_path):
    assert [file.name for file in plot_run(write_run(tmp_path / "early", [diverged(1)]))] == ["lr.png"]
    late = write_run(tmp_path / "late", [epoch(1), diverged(2)])
    assert [file.name for file in plot_run(late)] == ["loss.png", "accuracy.png", "lr.png"]


def test_no_run(tmp_path):
    with pytest.raises(RecordError, match="no such run folder"):
        plot_run(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(RecordError, match="no metrics.jsonl"):
        plot_run(tmp_path / "empty")
    assert not (tmp_path / "empty" / "plots").exists()


def test_importing_it_does_not_import_matplotlib():
    code = "import sys, wnfused.train.plots; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
