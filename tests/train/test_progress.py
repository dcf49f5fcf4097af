"""Progress: plain lines, a live bar, and the TensorBoard log."""

import io
import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from tests.support.train_cases import config, use
from wnfused.train import Lines, Live, Progress, train
from wnfused.train.progress import Moment, choose, epoch_text

MOMENT = Moment(2, 9, 3, 40, 43, 360, 1.25, 0.5, 321.4, 3725.0)
EARLY = Moment(1, 9, 1, 40, 1, 360, None, None, None, None)
LINE = {
    "epoch": 2, "train_loss": 1.25, "train_accuracy": 0.5, "validation_loss": 1.0, "validation_accuracy": 0.625,
    "images_per_second": 321.4, "seconds": 3.21,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _tiny_images(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch)


def test_lines() -> None:
    file = io.StringIO()
    lines = Lines(file)
    lines.moment(EARLY)
    lines.moment(MOMENT)
    lines.epoch(LINE, 9)
    assert file.getvalue().splitlines() == [
        "epoch 1/9, step 1/40: ",
        "epoch 2/9, step 3/40: loss 1.250 accuracy 50.0%  321 images/s  1 h 02 min left",
        "epoch 2/9  loss 1.250 (50.0%)  validation 1.000 (62.5%)  321 images/s  3.2 s",
    ]


HEADER = "resnet110 (norm weight, init robust; 1,730,768 parameters) on cifar10: 182 × 352 steps, in runs/resnet110"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("width", [40, 80])
def test_long_lines_break_between_words_on_a_terminal(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    from rich.console import Console

    monkeypatch.setenv("COLUMNS", str(width))
    plain, screen = Terminal(), io.StringIO()
    live = Live()
    live.bars.live.console = live.console = Console(file=screen, force_terminal=True, width=width)
    for progress, file in ((Lines(plain), plain), (live, screen)):
        progress.begin(HEADER)
        progress.epoch({**LINE, "epoch": 100}, 182)
        progress.end(None)
        lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue()).splitlines()
        assert max(len(line.rstrip()) for line in lines) <= width
        assert " ".join(lines).split() == [*HEADER.split(), *epoch_text({**LINE, "epoch": 100}, 182).split()]


def test_an_epoch_of_a_long_run_fits_80_columns() -> None:
    long = {**LINE, "epoch": 100, "images_per_second": 12345.6, "seconds": 1234.5}
    assert len(epoch_text(long, 182)) <= 80
    assert epoch_text({**LINE, "validation_loss": None}, 9).endswith("  321 images/s  3.2 s")


def test_a_file_gets_each_line_whole() -> None:
    file = io.StringIO()
    Lines(file).begin(HEADER)
    assert file.getvalue() == HEADER + "\n"


def test_the_line_of_a_diverged_epoch() -> None:
    bare = {**LINE, "validation_loss": None, "images_per_second": None, "diverged": True}
    assert epoch_text(bare, 100) == "epoch   2/100  loss 1.250 (50.0%)  DIVERGED"


def test_moments_are_shown_at_intervals() -> None:
    lines = Lines(io.StringIO())
    assert not lines.due()
    lines.every = 0.0
    assert lines.due()
    assert not Progress().due()


def test_live_on_a_terminal(tmp_path: Path) -> None:
    from rich.console import Console

    live = Live()
    screen = io.StringIO()
    live.bars.live.console = live.console = Console(file=screen, force_terminal=True, width=80)
    live.every = 0.0
    train(config(epochs=2), tmp_path / "a", progress=live)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    assert "epoch 1/2" in text and "5/5" in text and "images/s" in text and "0.0 s left" in text
    assert re.search(r"epoch 2/2  loss \d\.\d{3} \(.*%\)  validation .*%\)  \d+ images/s  \d\.\d s", text)


def test_a_narrow_terminal_shows_every_number() -> None:
    from rich.console import Console

    live = Live()
    screen = io.StringIO()
    live.bars.live.console = Console(file=screen, force_terminal=True, width=80)
    live.begin("title")
    live.moment(Moment(100, 182, 37, 352, 43, 64064, 2.2791, 0.164, 1234.0, 3725.0))
    live.end(None)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    assert re.search(r"epoch 100/182 .+ 37/352 loss 2\.279 accuracy 16\.4%  1234 images/s  1 h 02 min left", text)


def test_the_live_bar_needs_a_terminal_and_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(choose()) is Lines  # pytest captures the output
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert type(choose()) is Live
    monkeypatch.setitem(sys.modules, "rich.progress", None)
    assert type(choose()) is Lines


def test_moments_of_a_run(tmp_path: Path) -> None:
    class Noted(Progress):
        every = 0.0
        moments: list[Moment] = []  # noqa: RUF012

        def show(self, moment: Moment) -> None:
            self.moments.append(moment)

    train(config(epochs=3), tmp_path / "a", progress=Noted())
    found = Noted.moments
    assert [(moment.epoch, moment.batch, moment.step) for moment in found] == [
        (epoch, batch, 5 * (epoch - 1) + batch) for epoch in (1, 2, 3) for batch in range(1, 6)
    ]
    assert found[-1].seconds_left == 0 and found[0].steps == 15 and found[0].batches == 5
    assert found[0].images_per_second is not None and found[0].loss is None  # known before the first reading
    assert found[9].loss is not None and found[9].accuracy is not None


def test_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is logged at which step, with a stand-in for the writer of the large package."""
    log: list[tuple[str, float, int]] = []
    opened: list[dict[str, Any]] = []

    class SummaryWriter:
        def __init__(self, log_dir: str, purge_step: int) -> None:
            opened.append({"folder": log_dir, "purge_step": purge_step, "closed": False})

        def add_scalar(self, name: str, value: float, step: int) -> None:
            log.append((name, value, step))

        def flush(self) -> None: ...

        def close(self) -> None:
            opened[-1]["closed"] = True

    stand_in = types.ModuleType("torch.utils.tensorboard")
    stand_in.SummaryWriter = SummaryWriter
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", stand_in)
    train(config(epochs=2, tensorboard=True), tmp_path / "a")
    train(config(epochs=3, tensorboard=True), tmp_path / "a", resume=True)
    folder = str(tmp_path / "a" / "tensorboard")
    assert opened == [{"folder": folder, "purge_step": step, "closed": True} for step in (0, 10)]
    assert [step for name, _, step in log if name == "step/train_loss"] == list(range(1, 16))
    assert [step for name, _, step in log if name == "epoch/validation_accuracy"] == [5, 10, 15]
    assert {name.partition("/")[2] for name, _, _ in log} >= {"lr", "train_accuracy", "images_per_second"}
