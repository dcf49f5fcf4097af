"""Summaries of repeated runs."""

import math
import statistics
from collections.abc import Sequence

Z = 1.959964  # of a 95% interval


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Wilson's 95% interval of a share, which stays sensible at 0 and 1 and with few trials."""
    if trials < 1 or not 0 <= successes <= trials:
        raise ValueError(f"wilson: successes, trials: expected 0 <= successes <= trials, got {successes}, {trials}")
    share, weight = successes / trials, Z * Z / trials
    middle = (share + weight / 2) / (1 + weight)
    reach = Z * math.sqrt(share * (1 - share) / trials + weight / (4 * trials)) / (1 + weight)
    return max(0.0, middle - reach), min(1.0, middle + reach)


def mean_std(values: Sequence[float]) -> tuple[float, float]:
    """The mean and the sample standard deviation, 0 for a single value."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def plus_minus(values: Sequence[float], digits: int = 2) -> str:
    """ "4.68 ± 0.60"; a single value has no ±, and no values give "–"."""
    if not values:
        return "–"
    mean, std = mean_std(values)
    return f"{mean:.{digits}f}" + (f" ± {std:.{digits}f}" if len(values) > 1 else "")
