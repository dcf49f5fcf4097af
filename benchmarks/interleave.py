"""Timing of several functions in turns, so that whatever else the machine does disturbs all of them alike."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """One function's share of an interleaved run."""

    seconds: float  # median time of a call
    ratio: float  # median, over rounds, of its time against the first function's in the same round


def interleave(
    functions: Mapping[str, Callable[[], object]], *, seconds: float = 4.0, slice_seconds: float = 0.005
) -> dict[str, Timing]:
    """Time the functions in rounds of short slices; the first is the base of the ratios.

    The order is reversed in every second round, so that no function always runs in its neighbour's warm cache.
    """
    for function in functions.values():
        for _ in range(3):
            function()
    start = time.perf_counter()
    for function in functions.values():
        function()
    one_round = time.perf_counter() - start
    calls = max(1, round(slice_seconds * len(functions) / one_round))
    rounds = max(25, round(seconds / (one_round * calls)))
    samples: dict[str, list[float]] = {name: [] for name in functions}
    for i in range(rounds):
        for name in list(functions) if i % 2 == 0 else reversed(list(functions)):
            samples[name].append(_time(functions[name], calls))
    base = samples[next(iter(functions))]
    return {
        name: Timing(statistics.median(own), statistics.median(a / b for a, b in zip(own, base, strict=True)))
        for name, own in samples.items()
    }


def _time(function: Callable[[], object], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        function()
    return (time.perf_counter() - start) / calls
