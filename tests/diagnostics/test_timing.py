"""The interleaved timer, on a clock that the timed functions themselves advance."""

from collections.abc import Callable

import pytest

from wnfused.diagnostics import timing


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
    return now


def takes(seconds: float, name: str, clock: list[float], calls: list[str]) -> Callable[[], None]:
    def function() -> None:
        calls.append(name)
        clock[0] += seconds

    return function


def test_medians_and_ratios_to_the_first_function(clock):
    calls: list[str] = []
    functions = {name: takes(s, name, clock, calls) for name, s in (("a", 0.5), ("b", 1.0), ("c", 0.25))}
    times = timing.interleave(functions, rounds=3)
    assert {name: (t.seconds, t.ratio) for name, t in times.items()} == {"a": (0.5, 1), "b": (1, 2), "c": (0.25, 0.5)}


def test_every_second_round_runs_in_reverse_order(clock):
    calls: list[str] = []
    timing.interleave({name: takes(1, name, clock, calls) for name in "abc"}, rounds=3)
    assert "".join(calls) == "aabbcc" + "abc" + "cba" + "abc"


def test_a_ratio_is_taken_within_a_round(clock):
    """The machine gets slower from round to round; the ratio does not change."""
    rounds = [0]

    def function(factor: int) -> Callable[[], None]:
        def run() -> None:
            clock[0] += factor * 2.0 ** (rounds[0] // 2)
            rounds[0] += 1

        return run

    times = timing.interleave({"base": function(1), "twice": function(2)}, rounds=4)
    assert times["twice"].ratio == 2


@pytest.mark.parametrize(
    ("slice_seconds", "seconds", "timed"),
    [
        (4.0, 400.0, 50 * 8),  # 8 calls of 0.5 s fill a slice; a round of two slices takes 8 s
        (0.1, 1.0, 15),  # at least 15 rounds of at least one call
    ],
)
def test_slices_and_rounds_fill_the_time(slice_seconds, seconds, timed, clock):
    called: list[str] = []
    functions = {name: takes(0.5, name, clock, called) for name in "ab"}
    timing.interleave(functions, seconds=seconds, slice_seconds=slice_seconds)
    warm_up, estimate = 3, 1
    assert called.count("a") == called.count("b") == warm_up + estimate + timed


def test_another_clock(clock):
    cpu = [0.0]

    def works(seconds: float) -> None:
        cpu[0] += seconds
        clock[0] += 100  # waits for other programs

    functions = {"a": lambda: works(1.0), "b": lambda: works(3.0)}
    assert timing.interleave(functions, rounds=3, clock=lambda: cpu[0])["b"].ratio == 3
