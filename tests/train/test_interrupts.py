"""Ctrl-C and SIGTERM at every place of a run: none is swallowed, none costs more than a step, an interrupt wins."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.train_cases import config, same, use
from wnfused.train import Config, Result, checkpoints, run, train
from wnfused.train.checkpoints import KEYS, load, steps
from wnfused.train.interrupts import Interrupts, passed_on
from wnfused.train.loop import Trainer
from wnfused.train.run_folder import RunFolder

BOTH = [signal.SIGINT, signal.SIGTERM]
WILD = {"lr": 1e5, "max_loss": 1000.0}  # diverges at step 2


@pytest.fixture(autouse=True)
def _tiny_images(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch)


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    """Python's own, also where the tests run in the background, and the same after each test."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in BOTH}
    yield
    found = [signal.getsignal(number) for number in BOTH]
    for number, handler in before.items():
        signal.signal(number, handler)
    assert found == [signal.default_int_handler] * 2


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


def before_call(patch: pytest.MonkeyPatch, owner: Any, name: str, number: signal.Signals, at: int = 1) -> None:
    """The signal arrives as ``owner.name`` is called for the ``at``-th time."""
    original: Callable[..., Any] = getattr(owner, name)
    calls: list[None] = []

    def disturbed(*arguments: Any, **options: Any) -> Any:
        calls.append(None)
        if len(calls) == at:
            send(number)
        return original(*arguments, **options)

    patch.setattr(owner, name, disturbed)


def after_call(patch: pytest.MonkeyPatch, owner: Any, name: str, number: signal.Signals, at: int = 1) -> None:
    original: Callable[..., Any] = getattr(owner, name)
    calls: list[None] = []

    def disturbed(*arguments: Any, **options: Any) -> Any:
        result = original(*arguments, **options)
        calls.append(None)
        if len(calls) == at:
            send(number)
        return result

    patch.setattr(owner, name, disturbed)


def assert_goes_on(settings: Config, folder: Path, wanted: Result) -> None:
    """Nothing says that the run is over, and a resumption ends as if nothing had been."""
    assert not (folder / "result.json").exists()
    assert not list(folder.rglob("*.tmp"))
    again = train(settings, folder, resume=True)
    times = {"seconds": 0}
    assert again.as_dict() | times == wanted.as_dict() | times


def is_finite(folder: Path) -> bool:
    kept = [load(path, KEYS)["model"] for path in steps(folder / "checkpoints")]
    return all(bool(torch.isfinite(tensor).all()) for model in kept for tensor in model.values())


@pytest.mark.parametrize("number", BOTH)
@pytest.mark.parametrize("step", [1, 2, 3, 4, 5])
def test_an_interrupt_wins_over_divergence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, number: signal.Signals
) -> None:
    """The loss is read after step 5, at the end of the epoch, and by the checkpoint of the interrupt."""
    wanted = train(config(**WILD), tmp_path / "whole")
    assert (wanted.status, wanted.diverged_step) == ("diverged", 2)
    with monkeypatch.context() as patch:
        after_call(patch, Trainer, "train_step", number, at=step)
        result = train(config(**WILD), tmp_path / "a")
    assert (result.status, result.steps, result.stopped_by) == ("interrupted", step, number.name)
    assert is_finite(tmp_path / "a") and len(steps(tmp_path / "a" / "checkpoints")) == (step == 1)
    assert "diverged" not in (tmp_path / "a" / "metrics.jsonl").read_text()
    assert_goes_on(config(**WILD), tmp_path / "a", wanted)


def test_while_the_losses_are_read_that_show_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = train(config(**WILD), tmp_path / "whole")
    with monkeypatch.context() as patch:
        before_call(patch, Trainer, "read_losses", signal.SIGINT)
        assert train(config(**WILD), tmp_path / "a").status == "interrupted"
    assert_goes_on(config(**WILD), tmp_path / "a", wanted)


def test_while_a_validation_shows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from wnfused.train import loop

    def hopeless(*arguments: Any, **options: Any) -> tuple[float, float]:
        if interrupt:
            send(signal.SIGTERM)
        return float("nan"), 0.0

    monkeypatch.setattr(loop, "evaluate", hopeless)
    interrupt = False
    wanted = train(config(), tmp_path / "whole")
    assert wanted.status == "diverged" and "validation loss" in (wanted.reason or "")
    interrupt = True
    result = train(config(), tmp_path / "a")
    assert (result.status, result.stopped_by) == ("interrupted", "SIGTERM")
    interrupt = False
    assert_goes_on(config(), tmp_path / "a", wanted)


PLACES: dict[str, tuple[Callable[..., None], Any, str, int]] = {
    "before the first step": (before_call, Trainer, "train_epoch", 1),
    "in a step": (before_call, Trainer, "train_step", 7),
    "in the last step": (after_call, Trainer, "train_step", 20),
    "while it validates": (before_call, Trainer, "evaluate", 2),
    "after a validation": (after_call, Trainer, "evaluate", 2),
    "while the best weights are written": (before_call, Trainer, "_save_best", 1),
    "while a checkpoint is written": (before_call, checkpoints, "save_step", 2),
    "while the last checkpoint is written": (before_call, checkpoints, "save_step", 4),
    "while it tests": (before_call, Trainer, "evaluate", 5),
    "after the test": (after_call, Trainer, "evaluate", 5),
    "as the result is made": (before_call, Trainer, "_result", 1),
    "as the handlers are restored": (before_call, Interrupts, "__exit__", 1),
}


@pytest.mark.parametrize("number", BOTH)
@pytest.mark.parametrize("place", PLACES)
def test_a_signal_at_any_place_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, number: signal.Signals
) -> None:
    wanted = train(config(), tmp_path / "whole")
    disturb, owner, name, at = PLACES[place]
    with monkeypatch.context() as patch:
        disturb(patch, owner, name, number, at)
        result = train(config(), tmp_path / "a")
    assert (result.status, result.stopped_by) == ("interrupted", number.name)
    assert_goes_on(config(), tmp_path / "a", wanted)
    ends = [load(steps(tmp_path / run / "checkpoints")[0], KEYS) for run in ("a", "whole")]
    assert same(ends[0]["model"], ends[1]["model"]) and same(ends[0]["optimizer"], ends[1]["optimizer"])


def test_the_first_signal_counts_and_a_second_ctrl_c_stops_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        before_call(patch, Trainer, "train_step", signal.SIGTERM, at=3)
        after_call(patch, Trainer, "train_step", signal.SIGTERM, at=3)
        assert train(config(), tmp_path / "a").stopped_by == "SIGTERM"
    with monkeypatch.context() as patch:
        before_call(patch, Trainer, "train_step", signal.SIGTERM, at=3)
        after_call(patch, Trainer, "train_step", signal.SIGINT, at=3)
        with pytest.raises(KeyboardInterrupt):
            train(config(), tmp_path / "b")
    assert train(config(), tmp_path / "b", resume=True).status == "finished"


@pytest.mark.parametrize(("owner", "name"), [(RunFolder, "write"), (run, "_plot"), (Trainer, "__init__")])
def test_outside_the_loop_it_is_an_ordinary_ctrl_c(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    """While the run is set up, and while the result is written and drawn: it reaches the caller."""
    with monkeypatch.context() as patch:
        before_call(patch, owner, name, signal.SIGINT, at=3 if name == "write" else 1)  # result.json is the third
        with pytest.raises(KeyboardInterrupt):
            train(config(), tmp_path / "a")
    assert (tmp_path / "a" / "result.json").exists() == (name == "_plot")
    assert train(config(), tmp_path / "a", resume=True).status == "finished"
    assert json.loads((tmp_path / "a" / "result.json").read_text())["stopped_by"] is None


def test_callers_pass_it_on() -> None:
    assert passed_on("SIGTERM").args == (signal.SIGTERM,)
    assert passed_on(None).args == (signal.SIGINT,)
