"""The rule that selects kernel, tile and split-K for a problem from shapes, dtype and target, without a GPU.

Plans measured by ``wnfused tune`` on a given machine (``tune.py``) take precedence. Sizes are bucketed by powers of
two, so that a ragged last batch gets the same plan as full batches.
"""

import functools
from typing import NamedTuple

from wnfused.kernels.triton import costs
from wnfused.kernels.triton.tiles import FEW_ROWS, Tile, gain_hides, single_pass_pays, tiles_for


class Target(NamedTuple):
    family: str  # a key of tiles.TILES
    processors: int  # streaming multiprocessors or compute units


TARGETS = {"sm_80": 108, "sm_90": 132, "sm_100": 148, "gfx942": 304}  # A100, H100, B200, MI300X


class Problem(NamedTuple):
    """One matmul-like kernel call: an [m, k] times a [k, n] operand, ``repeats`` times (groups, phases, taps)."""

    kernel: str  # "linear", "linear_dx", "linear_dw", "gather", "scatter", "weight_gradient"
    m: int
    n: int
    k: int
    dtypes: str  # as dtypes.py names them
    repeats: int = 1
    single_pass_allowed: bool = False  # a norm per output row of v, norms not known yet
    channels_last: bool = True  # layout of a convolution's images; contiguous ones need narrow loads
    aligned: bool = True  # all loads can be 16 bytes wide, and all addresses fit into 32 bits


# How the forward computes the norms, linear dx applies the gain and linear dW computes dv; and the vendor's library.
MODES = ("norms first", "single pass", "in registers", "scaled first", "few rows", "two steps", "vendor")


class Plan(NamedTuple):
    mode: str  # one of MODES
    tile: Tile
    splits: int = 1


def bucket(size: int) -> int:
    """The power of two at or above size."""
    return 1 << max(0, size - 1).bit_length()


def cdiv(a: int, b: int) -> int:
    """a / b, rounded up. Outside a kernel triton's own takes microseconds, and a launch asks for several."""
    return -(-a // b)


def bucketed(problem: Problem) -> Problem:
    return problem._replace(
        m=bucket(problem.m), n=bucket(problem.n), k=bucket(problem.k), repeats=bucket(problem.repeats)
    )


@functools.lru_cache(maxsize=4096)
def plan_by_rule(problem: Problem, target: Target, vendor: bool = True) -> Plan:
    """Without ``vendor``, the best of the Triton kernels."""
    problem = bucketed(problem)
    if problem.kernel == "linear_dw" and problem.k <= FEW_ROWS:
        return Plan("few rows", tiles_for("few_rows", target.family, problem.dtypes, problem.aligned)[0])
    tile = _tile(problem, target)
    if vendor and _belongs_to_the_vendor(problem, target):
        return Plan("vendor", tile)
    return Plan(_mode(problem, tile, target), tile, _splits(problem, tile, target))


def _belongs_to_the_vendor(problem: Problem, target: Target) -> bool:
    # With one channel per group (a depthwise layer) there is no matmul; across channels its own kernels read slowly.
    if problem.n == 1:
        return not problem.channels_last
    m, n, k = problem.m, problem.n, problem.k
    if problem.kernel in ("linear_dw", "weight_gradient"):  # m × n are a weight's, k the batch rows or pixels
        weight, images = m * n * problem.repeats, k * (m + n)
    else:
        weight, images = n * k * problem.repeats, m * n + m * k
    return costs.vendor_wins(
        problem.kernel, m * n * k * problem.repeats, weight, images, problem.dtypes, target.family,
        problem.aligned and problem.channels_last, problem.channels_last,
    )  # fmt: skip


def _tiles_of(problem: Problem, tile: Tile) -> int:
    return cdiv(problem.m, tile.m) * cdiv(problem.n, tile.n) * problem.repeats


def _tile(problem: Problem, target: Target) -> Tile:
    """The largest tile that the problem fills and that still gives every processor one; else the smallest that fits."""
    candidates = tiles_for(problem.kernel, target.family, problem.dtypes, problem.aligned)
    fitting = [t for t in candidates if t.m <= max(16, problem.m) and t.n <= max(64, problem.n)] or [candidates[-1]]
    for tile in fitting:
        if _tiles_of(problem, tile) >= target.processors:
            return tile
    return fitting[-1] if problem.m <= 16 else next((t for t in reversed(fitting) if t.m >= 64), fitting[-1])


def _mode(problem: Problem, tile: Tile, target: Target) -> str:
    """Each row of tiles sums Σv² again: up to four of them this is cheaper than a launch and a separate pass over v."""
    if problem.kernel == "linear_dx":
        return "in registers" if gain_hides(target.family, tile, problem.dtypes) else "scaled first"
    if problem.kernel == "linear_dw":
        return "two steps"
    if (
        problem.single_pass_allowed
        and single_pass_pays(tile, target.family, problem.dtypes)
        and cdiv(problem.m, tile.m) <= 4
    ):
        return "single pass"
    return "norms first"


# A forward is split, at the cost of a second launch, only if its tiles would occupy less than 1/IDLE of the processors:
# otherwise, by the roofline, splitting saves less than a launch costs.
IDLE = 4
LONG_SUM = 4096


def _splits(problem: Problem, tile: Tile, target: Target) -> int:
    """Split-K: the number of parts, if there are too few tiles to fill the machine and K is long enough."""
    if problem.kernel in ("linear_dx", "gather", "scatter"):
        return 1
    tiles = max(1, _tiles_of(problem, tile))
    if problem.kernel == "linear" and (tiles * IDLE > target.processors or problem.k < LONG_SUM):
        return 1
    return max(1, min(target.processors // tiles, problem.k // (8 * tile.k), 32))
