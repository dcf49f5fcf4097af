"""Times several functions in turns, so that other load on the machine affects all of them equally."""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """The result for one of the functions."""

    seconds: float  # median time of a call
    ratio: float  # median over rounds of its time divided by the first function's time in the same round
    low: float = math.nan  # the 20th and the 80th percentile of that ratio
    high: float = math.nan


def interleave(
    functions: Mapping[str, Callable[[], object]],
    *,
    seconds: float = 4.0,
    slice_seconds: float = 0.005,
    rounds: int | None = None,
    clock: Callable[[], float] | None = None,
) -> dict[str, Timing]:
    """Time the functions in alternating rounds; the first one is the baseline of the ratios.

    Every second round runs in reverse order, so that no function always follows the same neighbour in the cache.
    A round calls each function as often as fits into ``slice_seconds``, and there are as many rounds as fit into
    ``seconds``, but at least 15. With ``rounds`` there are exactly that many, of one call each.
    ``clock`` is the wall clock; with ``time.process_time`` other programs on the machine do not count.
    """
    for function in functions.values():
        for _ in range(3 if rounds is None else 2):  # warm-up
            function()
    calls = 1
    if rounds is None:
        one_round = sum(_seconds_per_call(function, 1, clock) for function in functions.values())
        calls = max(1, round(slice_seconds * len(functions) / one_round))
        rounds = max(15, round(seconds / (one_round * calls)))
    samples: dict[str, list[float]] = {name: [] for name in functions}
    for i in range(rounds):
        for name in list(functions) if i % 2 == 0 else reversed(list(functions)):
            samples[name].append(_seconds_per_call(functions[name], calls, clock))
    base = samples[next(iter(functions))]
    return {name: _timing(own, base) for name, own in samples.items()}


def _timing(own: Sequence[float], base: Sequence[float]) -> Timing:
    ratios = sorted(a / b for a, b in zip(own, base, strict=True))
    last = len(ratios) - 1
    return Timing(
        statistics.median(own), statistics.median(ratios), ratios[round(0.2 * last)], ratios[round(0.8 * last)]
    )


def _seconds_per_call(function: Callable[[], object], calls: int, clock: Callable[[], float] | None) -> float:
    now = clock or time.perf_counter
    start = now()
    for _ in range(calls):
        function()
    return (now() - start) / calls
