"""The largest learning rate that an initialization survives: bisection with short runs."""

from collections.abc import Callable, Mapping, Sequence

from wnfused.experiments.jobs import Job, Outcome
from wnfused.experiments.sweep import Sweep


def survived(outcome: Outcome) -> bool:
    """By the paper's rule: no loss was NaN or infinite."""
    return outcome["diverged_step"] is None


def largest_stable(
    sweep: Sweep,
    what: str,
    jobs: Mapping[str, Callable[[float], Job]],
    rates: Sequence[float],
    stable: Callable[[Outcome], bool] = survived,
) -> dict[str, float | None]:
    """For each of ``jobs`` the largest of the rising ``rates`` whose run is stable; None where the smallest is not.

    A job that survives a rate is assumed to survive smaller ones. All searches advance together, one run of each per
    round, so that the workers have enough to do.
    """
    low = dict.fromkeys(jobs, -1)  # the largest known to be stable
    high = dict.fromkeys(jobs, len(rates))  # the smallest known not to be
    while active := [name for name in jobs if high[name] - low[name] > 1]:
        middle = {name: (low[name] + high[name]) // 2 for name in active}
        outcomes = sweep.run(f"{what}, search", [jobs[name](rates[middle[name]]) for name in active])
        for name, outcome in zip(active, outcomes, strict=True):
            (low if stable(outcome) else high)[name] = middle[name]
    return {name: rates[index] if index >= 0 else None for name, index in low.items()}
