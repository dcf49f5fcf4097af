"""Axes: from a range of values to a scale and its ticks."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Axis:
    """Values from ``low`` to ``high`` onto 0 to 1, linear or logarithmic, with the ticks to draw."""

    low: float
    high: float
    ticks: tuple[float, ...]
    logarithmic: bool = False

    def place(self, value: float) -> float:
        """Where a value lies; what is beyond the range lies on its edge."""
        value = min(max(value, self.low), self.high)
        if self.logarithmic:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def linear(low: float, high: float, count: int = 5) -> Axis:
    """An axis of about ``count`` round steps that holds both values, and at least some room where they are equal."""
    if low == high:
        room = abs(low) / 2 or 0.5
        low, high = low - room, high + room
    step = _round_step((high - low) / count)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = tuple(_clean(i * step, step) for i in range(first, last + 1))
    return Axis(ticks[0], ticks[-1], ticks)


def logarithmic(low: float, high: float) -> Axis:
    """An axis with ticks at powers of ten, and at 2 and 5 times them where there would be few."""
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    powers = [10.0**i for i in range(first, last + 1)]
    if len(powers) > 6:
        powers = powers[:: math.ceil(len(powers) / 6)]
    if len(powers) > 3:
        return Axis(min(low, powers[0]), max(high, powers[-1]), tuple(powers), True)
    marks = [m * 10.0**i for i in range(first - 1, last + 1) for m in (1, 2, 5)]
    below, above = (m for m in marks if m <= low * 1.0001), (m for m in marks if m >= high * 0.9999)
    start, end = max(below), min(above)
    if start == end:
        end = marks[marks.index(end) + 1] if end != marks[-1] else 2 * end
    return Axis(start, end, tuple(m for m in marks if start <= m <= end), True)


def whole(low: int, high: int, count: int = 6) -> Axis:
    """An axis of whole numbers, as epochs are, that ends where the values end."""
    if low == high:
        return Axis(low - 1, high + 1, (low,))
    step = max(1, round(_round_step((high - low) / count)))
    ticks = list(range(math.ceil(low / step) * step, high + 1, step))
    if ticks[0] != low and ticks[0] - low >= 0.6 * step:
        ticks.insert(0, low)
    if high - ticks[-1] >= 0.6 * step:
        ticks.append(high)
    return Axis(low, high, tuple(ticks))


def spread(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """The places, moved to lie ``gap`` apart and, as far as they fit, between ``low`` and ``high``."""
    order = sorted(range(len(places)), key=lambda i: places[i])
    moved = [min(max(places[i], low), high) for i in order]
    for i in range(1, len(moved)):
        moved[i] = max(moved[i], moved[i - 1] + gap)
    if moved and moved[-1] > high:
        moved[-1] = high
        for i in range(len(moved) - 2, -1, -1):
            moved[i] = min(moved[i], moved[i + 1] - gap)
    result = [0.0] * len(places)
    for position, i in enumerate(order):
        result[i] = moved[position]
    return result


def _round_step(step: float) -> float:
    """The smallest of 1, 2, 2.5, 5 times a power of ten that is not smaller."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= step * 0.999)


def _clean(value: float, step: float) -> float:
    """0.30000000000000004 is 0.3."""
    return round(value, max(0, 2 - math.floor(math.log10(step))))
