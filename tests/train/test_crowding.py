"""The notice that other programs use the cores."""

import os
from pathlib import Path

import pytest
import torch

from tests.support.train_cases import config, use
from wnfused.train import Progress, crowding, train
from wnfused.train.crowding import Crowding, crowded


class Clocks:
    """A wall clock and a CPU clock that a test advances."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, load: float, threads: int = 2, cores: int = 2) -> None:
        self.wall = self.cpu = 0.0
        monkeypatch.setattr(crowding.time, "perf_counter", lambda: self.wall)
        monkeypatch.setattr(crowding.time, "process_time", lambda: self.cpu)
        monkeypatch.setattr(crowding, "_load", lambda: load)
        monkeypatch.setattr(crowding, "_cores", lambda: cores)
        monkeypatch.setattr(torch, "get_num_threads", lambda: threads)

    def advance(self, wall: float, cpu: float) -> None:
        self.wall += wall
        self.cpu += cpu


def test_a_crowded_machine_is_noticed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = Clocks(monkeypatch, load=6.2)
    run = Crowding()
    clocks.advance(9, 6)
    assert run.notice() is None  # too early
    clocks.advance(11, 12)
    notice = run.notice()
    assert notice is not None
    assert "load 6.2 on 2 cores; the 2 threads of this run get 45% of their time" in notice
    assert "OMP_NUM_THREADS=1" in notice and "OMP_WAIT_POLICY=passive" in notice
    clocks.advance(20, 12)
    assert run.notice() is None


def test_the_time_before_the_last_look_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = Clocks(monkeypatch, load=6.2)
    run = Crowding()
    clocks.advance(100, 200)
    assert run.notice() is None
    clocks.advance(10, 8)
    assert run.notice() is not None


@pytest.mark.parametrize(("load", "threads", "share"), [(6.2, 2, 0.95), (1.9, 2, 0.4), (6.2, 1, 0.4)])
def test_a_quiet_machine_or_a_single_thread_is_not(
    monkeypatch: pytest.MonkeyPatch, load: float, threads: int, share: float
) -> None:
    clocks = Clocks(monkeypatch, load, threads)
    run = Crowding()
    clocks.advance(20, 20 * threads * share)
    assert run.notice() is None


def test_a_platform_without_a_load_average(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "getloadavg")
    assert crowding._load() is None
    clocks = Clocks(monkeypatch, load=6.2)
    monkeypatch.setattr(crowding, "_load", lambda: None)
    run = Crowding()
    clocks.advance(20, 1)
    assert run.notice() is None


def test_both_signs_are_needed() -> None:
    assert crowded(0.5, 4.0, 2)
    assert not crowded(0.5, 2.0, 2) and not crowded(0.9, 4.0, 2)


def test_a_run_says_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use(monkeypatch)
    messages: list[str] = []

    class Heard(Progress):
        def say(self, text: str) -> None:
            messages.append(text)

    monkeypatch.setattr(Crowding, "notice", lambda self: "slow: other programs" if not messages else None)
    train(config(epochs=1), tmp_path / "a", progress=Heard())
    assert messages == ["slow: other programs"]
