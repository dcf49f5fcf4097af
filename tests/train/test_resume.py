"""A run that is interrupted at any point and resumed ends bit for bit like an uninterrupted one."""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.train_cases import config, same, use
from wnfused.train import Config, Progress, Result, RunError, train
from wnfused.train.checkpoints import KEYS, load, steps
from wnfused.train.loop import Trainer

TIMES = ("seconds", "images_per_second", "median_step_seconds")
RECIPE = {"ema": 0.8, "warmup_epochs": 1.5, "schedule": "0.5@2", "nesterov": True, "init": "data_dependent"}


@pytest.fixture(autouse=True)
def _tiny_images(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch)


def end_of(run_dir: Path) -> dict[str, Any]:
    return load(steps(run_dir / "checkpoints")[0], KEYS)


def figures(run_dir: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl without the times."""
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name not in TIMES} for line in lines]


def assert_same_run(first: Path, second: Path) -> None:
    a, b = end_of(first), end_of(second)
    assert a["position"]["step"] == b["position"]["step"]
    assert (
        same(a["model"], b["model"]) and same(a["optimizer"], b["optimizer"]) and same(a["ema"] or {}, b["ema"] or {})
    )
    assert figures(first) == figures(second)
    best = [load(path / "checkpoints" / "best.pt") for path in (first, second)]
    assert best[0]["epoch"] == best[1]["epoch"] and same(best[0]["model"], best[1]["model"])
    results = [json.loads((path / "result.json").read_text()) | {"seconds": 0} for path in (first, second)]
    assert results[0] == results[1]


class StopAt(Trainer):
    """A trainer that receives Ctrl-C in step ``at``."""

    at = 0

    def train_step(self, images: Any, labels: Any) -> None:
        super().train_step(images, labels)
        if self.step + 1 == self.at:
            os.kill(os.getpid(), signal.SIGINT)


def interrupted(monkeypatch: pytest.MonkeyPatch, settings: Config, run_dir: Path, step: int, **how: Any) -> Result:
    from wnfused.train import run

    with monkeypatch.context() as patch:
        patch.setattr(StopAt, "at", step)
        patch.setattr(run, "Trainer", StopAt)
        return train(settings, run_dir, **how)


def test_n_epochs_and_n_more_equal_2n(tmp_path: Path) -> None:
    settings = {**RECIPE, "checkpoint_seconds": 0.0}
    train(config(**settings, epochs=6), tmp_path / "whole")
    train(config(**settings, epochs=3), tmp_path / "parts")
    random.seed(9), torch.manual_seed(9)  # other code may run in between
    result = train(config(**settings, epochs=6), tmp_path / "parts", resume=True)
    assert result.epochs == 6
    assert_same_run(tmp_path / "parts", tmp_path / "whole")
    environment = json.loads((tmp_path / "parts" / "environment.json").read_text())
    assert len(environment["resumed"]) == 1


@pytest.mark.parametrize("step", [1, 5, 7, 13, 20])
def test_ctrl_c_at_any_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """In the first step, at the end of an epoch, within one, and in the last step."""
    train(config(**RECIPE), tmp_path / "whole")
    before = signal.getsignal(signal.SIGINT)
    result = interrupted(monkeypatch, config(**RECIPE), tmp_path / "parts", step)
    assert (result.status, result.steps) == ("interrupted", step)
    assert signal.getsignal(signal.SIGINT) is before
    assert not (tmp_path / "parts" / "result.json").exists()
    assert train(config(**RECIPE), tmp_path / "parts", resume=True).status == "finished"
    assert_same_run(tmp_path / "parts", tmp_path / "whole")


def test_ctrl_c_while_it_validates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(config(**RECIPE), tmp_path / "whole")
    original, calls = Trainer.evaluate, []

    def disturbed(self: Trainer, which: str) -> tuple[float, float]:
        calls.append(which)
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(self, which)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "evaluate", disturbed)
        assert train(config(**RECIPE), tmp_path / "parts").status == "interrupted"
    assert end_of(tmp_path / "parts")["position"]["batch"] == 5
    train(config(**RECIPE), tmp_path / "parts", resume=True)
    assert_same_run(tmp_path / "parts", tmp_path / "whole")


def test_checkpoints_within_an_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By steps and by seconds; neither changes the result."""
    train(config(**RECIPE), tmp_path / "whole")
    train(config(**RECIPE, checkpoint_steps=3, keep=50), tmp_path / "steps")
    assert [load(path, KEYS)["position"]["step"] for path in reversed(steps(tmp_path / "steps" / "checkpoints"))] == [
        3, 5, 6, 9, 10, 12, 15, 18, 20,
    ]  # fmt: skip
    train(config(**RECIPE, checkpoint_seconds=1e-9, keep=50), tmp_path / "seconds")
    assert len(steps(tmp_path / "seconds" / "checkpoints")) == 20
    assert_same_run(tmp_path / "steps", tmp_path / "whole")
    assert_same_run(tmp_path / "seconds", tmp_path / "whole")
    # Resume from step 3, as if the later checkpoints had been lost.
    for path in steps(tmp_path / "steps" / "checkpoints")[:-1]:
        path.unlink()
    (tmp_path / "steps" / "result.json").unlink()
    train(config(**RECIPE), tmp_path / "steps", resume=True)
    assert_same_run(tmp_path / "steps", tmp_path / "whole")


class Lines(Progress):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)


def test_a_truncated_checkpoint_costs_one_epoch(tmp_path: Path) -> None:
    train(config(**RECIPE), tmp_path / "whole")
    train(config(**RECIPE), tmp_path / "parts")
    (tmp_path / "parts" / "result.json").unlink()
    last = steps(tmp_path / "parts" / "checkpoints")[0]
    last.write_bytes(last.read_bytes()[:1000])
    progress = Lines()
    train(config(**RECIPE), tmp_path / "parts", resume=True, progress=progress)
    assert progress.lines[0].startswith(f"skipped checkpoint {last}: it is truncated")
    assert_same_run(tmp_path / "parts", tmp_path / "whole")


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def test_lost_best_weights_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(monkeypatch, config(), tmp_path / "a", 13)
    (tmp_path / "a" / "checkpoints" / "best.pt").write_bytes(b"?")
    progress = Lines()
    result = train(config(), tmp_path / "a", resume=True, progress=progress)
    assert "lost the best weights" in progress.lines[0]
    assert result.status == "finished" and result.best_epoch is not None and result.best_epoch > 2


@pytest.mark.parametrize("ema", [0.0, 0.8])
def test_best_weights_lost_after_the_last_epoch(tmp_path: Path, ema: float) -> None:
    """No epoch is left that could become the best, so the last one does."""
    whole = train(config(ema=ema), tmp_path / "a")
    (tmp_path / "a" / "result.json").unlink()
    flip_a_bit(tmp_path / "a" / "checkpoints" / "best.pt")
    last = end_of(tmp_path / "a")
    progress = Lines()
    result = train(config(ema=ema), tmp_path / "a", resume=True, progress=progress)
    assert [line for line in progress.lines if "lost the best weights" in line]
    assert (result.status, result.steps, result.best_epoch) == ("finished", whole.steps, 4)
    assert result.best_validation_accuracy == last["history"][-1]["validation_accuracy"]
    best = load(tmp_path / "a" / "checkpoints" / "best.pt")["model"]
    assert same({name: best[name] for name in last["ema"] or last["model"]}, last["ema"] or last["model"])


DAMAGED_JSON = [
    "",
    "{",
    "[]",
    "3",
    '{"status": "finishfd", "epochs": 4, "steps": 20, "seconds": 1.0}',
    '{"stctus": 1}',
    "\xff",
]


@pytest.mark.parametrize("content", DAMAGED_JSON)
def test_a_damaged_result_is_recomputed(tmp_path: Path, content: str) -> None:
    whole = train(config(), tmp_path / "a")
    (tmp_path / "a" / "result.json").write_text(content, encoding="latin-1")
    progress = Lines()
    again = train(config(), tmp_path / "a", resume=True, progress=progress)
    assert progress.lines[0].startswith(f"skipped the result {tmp_path / 'a' / 'result.json'}: ")
    assert again == whole and json.loads((tmp_path / "a" / "result.json").read_text()) == whole.as_dict()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"resumed": 3}', "\xff"])
def test_a_damaged_environment_is_rewritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str) -> None:
    interrupted(monkeypatch, config(), tmp_path / "a", 7)
    (tmp_path / "a" / "environment.json").write_text(content, encoding="latin-1")
    assert train(config(), tmp_path / "a", resume=True).status == "finished"
    assert len(json.loads((tmp_path / "a" / "environment.json").read_text())["resumed"]) == 1


def test_resuming_a_finished_run_returns_its_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = train(config(epochs=1), tmp_path / "a")
    monkeypatch.setattr(Trainer, "fit", None)
    assert train(config(epochs=1), tmp_path / "a", resume=True) == result


def test_resume_without_a_run_starts_one(tmp_path: Path) -> None:
    assert train(config(epochs=1), tmp_path / "a", resume=True).status == "finished"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lr": 0.5, "seed": 4}, "has another configuration: lr was 0.05 and is 0.5, seed was 3 and is 4"),
        ({"schedule": "thirds", "epochs": 9}, "schedule was 'halves' and is 'thirds'"),
        ({"epochs": 2}, "epochs: expected at least 3, the epoch that the run has reached, got 2"),
        (
            {"epochs": 40},
            "epochs: cannot change from 4 to 40: schedule 'halves' would change the learning rate of epoch 3",
        ),
    ],
)
def test_an_incompatible_resume_names_what_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], message: str
) -> None:
    interrupted(monkeypatch, config(schedule="halves"), tmp_path / "a", 12)
    before = {path: path.read_bytes() for path in (tmp_path / "a").rglob("*") if path.is_file()}
    with pytest.raises(RunError) as refusal:
        train(config(**{"schedule": "halves", **changes}), tmp_path / "a", resume=True)
    assert message in str(refusal.value)
    assert {path: path.read_bytes() for path in (tmp_path / "a").rglob("*") if path.is_file()} == before


def test_settings_that_do_not_affect_results_may_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(monkeypatch, config(), tmp_path / "a", 7)
    result = train(config(keep=1, checkpoint_steps=2, data_dir="elsewhere"), tmp_path / "a", resume=True)
    assert result.status == "finished"
    assert json.loads((tmp_path / "a" / "config.json").read_text())["keep"] == 1


def test_a_directory_is_never_overwritten(tmp_path: Path) -> None:
    train(config(epochs=1), tmp_path / "a")
    (tmp_path / "a" / "notes.txt").write_text("mine")
    with pytest.raises(
        RunError, match="run_dir: .*a' already exists; pass resume=True to continue it or force=True to replace it"
    ):
        train(config(epochs=1), tmp_path / "a")
    with pytest.raises(RunError, match="resume, force: both are set; pass"):
        train(config(epochs=1), tmp_path / "a", resume=True, force=True)
    assert train(config(epochs=2, seed=7), tmp_path / "a", force=True).epochs == 2
    assert (tmp_path / "a" / "notes.txt").read_text() == "mine"
    assert len(steps(tmp_path / "a" / "checkpoints")) == 2
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "thesis.tex").write_text("precious")
    for how in ("resume", "force"):
        with pytest.raises(RunError, match="is not a run directory"):
            train(config(epochs=1), tmp_path / "b", **{how: True})
    (tmp_path / "c").write_text("a file")
    with pytest.raises(RunError, match="run_dir: .* is a file"):
        train(config(epochs=1), tmp_path / "c", force=True)
    (tmp_path / "empty").mkdir()
    assert train(config(epochs=1), tmp_path / "empty").status == "finished"


# kill -9: a process that has imported everything forks a run and kills it after a random time, repeatedly.
KILLER = """
import os, random, signal, sys, time
from pathlib import Path
sys.path.insert(0, {root!r})
import torch
torch.set_num_threads(1)
from tests.support.train_cases import config, use_for_good
from wnfused.train import train
from wnfused.train.checkpoints import latest, number, steps
use_for_good()
settings = config(**{recipe!r}, checkpoint_steps=1, keep=2, epochs=8)

def start(folder):
    child = os.fork()
    if child == 0:
        train(settings, folder, resume=True)
        os._exit(0)
    return child

train(settings, "whole")
folder, chance, killed, seen = Path("parts/checkpoints"), random.Random({seed}), 0, set()

def newest():
    return max((number(path) for path in steps(folder)), default=0)

while True:
    goal, child, status = newest() + chance.randrange(8), start("parts"), None
    while status is None and newest() < goal:
        ended, code = os.waitpid(child, os.WNOHANG)
        status = code if ended else time.sleep(0.001)
    if status is None:
        time.sleep(chance.uniform(0, 0.05))
        os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
    messages = []
    found = latest(folder, messages.append)
    assert not messages, messages
    seen.add(found["position"]["step"] if found else 0)
    if status == 0:
        break
    killed += 1
print(killed, len(seen))
"""


def test_a_run_killed_at_any_time_can_be_resumed(tmp_path: Path) -> None:
    code = KILLER.format(root=str(Path(__file__).parents[2]), recipe=RECIPE, seed=5)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    killed, seen = map(int, done.stdout.split())
    assert killed >= 4 and seen >= 4
    assert_same_run(tmp_path / "parts", tmp_path / "whole")
