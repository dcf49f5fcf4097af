"""The measurements behind the rule of the CPU convolutions (kernels/cpu/plan.cpp), and the fit of its constants.

python -m benchmarks.cpu_rule measure [--problems 200] [--seed 0] [--json FILE]
    measures every route of every product, interleaved
python -m benchmarks.cpu_rule fit
    fits the constants to half of the table and writes kernels/cpu/plan_constants.h
python -m benchmarks.cpu_rule check [--json FILE]
    shows how far the choices of the compiled rule are from the best route

Problems are drawn at random: half of them, the even ones, fit the constants, and the odd ones test them.
"""

import argparse
import json
import math
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

import wnfused
from wnfused.benchmarks.suite import environment
from wnfused.diagnostics.cpu_tuning import PRODUCTS, ROUTES, Convolution, measure

TABLE = Path(__file__).parent / "results" / "cpu-routes.json"
HEADER = Path(__file__).parents[1] / "kernels" / "cpu" / "plan_constants.h"
FAMILIES = {"vendor": ROUTES[:3], "patches": ROUTES[3:4], "direct": ROUTES[4:]}  # routes that share their constants
SMALLEST, LARGEST = 1e5, 1.5e9  # products of a problem: up to some 15 ms
MOST_ELEMENTS = 2**23  # of the input


class Problem(NamedTuple):
    x: tuple[int, ...]
    v: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    threads: int

    def convolution(self) -> Convolution:
        """As the operator takes it, once torch uses the problem's number of threads."""
        torch.set_num_threads(self.threads)
        gains, zeros = (self.v[0], *[1] * (len(self.v) - 1)), (0,) * len(self.stride)
        return Convolution(self.x, self.v, gains, self.stride, self.padding, self.dilation, False, zeros, 1, 0)

    def outputs(self) -> tuple[int, ...]:
        sizes = zip(self.x[2:], self.v[2:], self.stride, self.padding, self.dilation, strict=True)
        return tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in sizes)

    def products(self) -> float:
        return float(self.x[0]) * math.prod(self.v) * math.prod(self.outputs())


def drawn(seed: int) -> Iterator[Problem]:
    """Endless problems in the ranges of the networks that people train, and around them."""
    draw = random.Random(seed)
    while True:
        dims = draw.choice((1, 2, 2))
        batch = draw.choice((1, 1, 2, 4, 8, 16, 32, 64, 128))
        inputs = _channels(draw)
        outputs = inputs if draw.random() < 0.5 else _channels(draw)
        if dims == 2:
            kernel = draw.choice(((3, 3), (3, 3), (3, 3), (1, 1), (5, 5), (5, 1), (7, 7)))
            side = draw.choice((4, 7, 8, 8, 14, 16, 16, 28, 32, 32, 56, 64))
            sizes, dilation = (side, side), (1, 1)
            stride = draw.choice(((1, 1), (1, 1), (1, 1), (2, 2), (3, 1)))
        else:
            kernel = (draw.choice((1, 3, 3, 5, 7, 7, 11, 15)),)
            sizes, dilation = (round(2 ** draw.uniform(3, 13)),), (draw.choice((1, 1, 1, 3, 5, 9)),)
            stride = (draw.choice((1, 1, 1, 1, 2, 4)),)
        padding = tuple((k - 1) * d // 2 for k, d in zip(kernel, dilation, strict=True))
        problem = Problem(
            (batch, inputs, *sizes), (outputs, inputs, *kernel), stride, padding, dilation, draw.choice((1, 2, 2))
        )
        if SMALLEST < problem.products() < LARGEST and math.prod(problem.x) <= MOST_ELEMENTS:
            yield problem


def _channels(draw: random.Random) -> int:
    if draw.random() < 0.7:
        return draw.choice((16, 32, 64, 80, 96, 128, 160, 256, 320, 512, 640))
    return round(2 ** draw.uniform(0, 9.5))


def table(problems: int, seed: int, seconds: float) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    measure(next(drawn(seed)).convolution(), 0, seconds)  # warms the machine up
    for problem, _ in zip(drawn(seed), range(problems), strict=False):
        for product, name in enumerate(PRODUCTS):
            row = {
                **problem._asdict(),
                "product": name,
                "microseconds": measure(problem.convolution(), product, seconds),
            }
            rows.append(row)
        print(f"{len(rows) // 3}/{problems} {problem.x} {problem.v}", flush=True)
    return rows


def problem_of(row: dict[str, Any]) -> Problem:
    values = [tuple(value) if isinstance(value, list) else value for value in (row[n] for n in Problem._fields)]
    return Problem(*values)


def named(row: dict[str, Any]) -> tuple[Any, ...]:
    """The row's problem as the operators of ``wnfused_plan`` take it."""
    problem = problem_of(row).convolution()
    return (*problem.tensors(), *problem.geometry(), problem.dim)


def terms(row: dict[str, Any], route: str) -> list[float]:
    return torch.ops.wnfused_plan.terms(PRODUCTS.index(row["product"]), ROUTES.index(route), *named(row))


def fitted(rows: Sequence[dict[str, Any]], family: str) -> NDArray[np.float64]:
    """Non-negative prices of the terms, by least squares of the relative error."""
    from scipy.optimize import nnls

    pairs = [
        (terms(row, route), time)
        for row in rows
        for route, time in row["microseconds"].items()
        if route in FAMILIES[family]
    ]
    features, times = np.array([p[0] for p in pairs]), np.array([p[1] for p in pairs])
    weights = 1 / times
    for _ in range(20):  # towards the least absolute error, so that single outliers do not bend the rest
        prices, _ = nnls(features * weights[:, None], times * weights)
        errors = np.abs(features @ prices / times - 1)
        weights = 1 / times / np.sqrt(np.maximum(errors, 0.02))
    return np.asarray(prices)


def header(constants: Sequence[dict[str, NDArray[np.float64]]]) -> str:
    def block(prices: NDArray[np.float64]) -> str:
        return "{" + ", ".join(f"{price:.4g}" for price in prices) + "}"

    lines = [f"    {{{', '.join(block(product[family]) for family in FAMILIES)}}}," for product in constants]
    return "\n".join(
        [
            "// Written by `python -m benchmarks.cpu_rule fit` from benchmarks/results/cpu-routes.json.",
            "#pragma once",
            "",
            "#include <array>",
            "",
            "namespace wnfused {",
            "",
            f"constexpr int kTerms = {len(constants[0]['vendor'])};",
            "using Terms = std::array<double, kTerms>;",
            "",
            "struct Constants {",
            "  Terms vendor, patches, direct;  // microseconds per unit of each term (plan.cpp)",
            "};",
            "",
            "constexpr std::array<Constants, 3> kConstants{{  // y, dx, dw",
            *lines,
            "}};",
            "",
            "}  // namespace wnfused",
            "",
        ]
    )


def loss(row: dict[str, Any], costs: dict[str, float]) -> float:
    """How much longer the route with the least cost takes than the best one."""
    times = row["microseconds"]
    return times[min(times, key=lambda route: costs[route])] / min(times.values()) - 1


def costs(row: dict[str, Any]) -> dict[str, float]:
    found = torch.ops.wnfused_plan.costs(PRODUCTS.index(row["product"]), *named(row))
    return dict(zip(ROUTES, found, strict=True))


def summary(name: str, losses: Sequence[float]) -> str:
    within = sum(x <= 0.05 for x in losses) / len(losses)
    mean, worst = statistics.mean(losses), max(losses)
    return f"{name:32s} {len(losses):4d}  within 5%: {within:.1%}  mean {mean:.2%}  worst {worst:.0%}"


def report(rows: Sequence[dict[str, Any]], of: Callable[[dict[str, Any]], dict[str, float]]) -> None:
    for name in (*PRODUCTS, "all"):
        for half, part in (("fitted", 0), ("held out", 1)):
            chosen = [
                loss(r, of(r)) for i, r in enumerate(rows) if i // 3 % 2 == part and name in (r["product"], "all")
            ]
            print(summary(f"{name}, {half}", chosen))


def fit(rows: Sequence[dict[str, Any]]) -> list[dict[str, NDArray[np.float64]]]:
    half = [row for i, row in enumerate(rows) if i // 3 % 2 == 0]
    return [
        {family: fitted([row for row in half if row["product"] == product], family) for family in FAMILIES}
        for product in PRODUCTS
    ]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("action", choices=("measure", "fit", "check"))
    parser.add_argument("--problems", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=0.15, help="measuring time per product")
    parser.add_argument("--json", type=Path, default=TABLE)
    options = parser.parse_args(argv)
    wnfused.backend("native")
    if options.action == "measure":
        rows = table(options.problems, options.seed, options.seconds)
        lines = ",\n".join(json.dumps(row) for row in rows)
        options.json.write_text(f'{{"environment": {json.dumps(environment(2))},\n"rows": [\n{lines}\n]}}\n')
        return
    rows = json.loads(options.json.read_text())["rows"]
    if options.action == "check":
        report(rows, costs)
        return
    constants = fit(rows)

    def predicted(row: dict[str, Any]) -> dict[str, float]:
        prices = constants[PRODUCTS.index(row["product"])]
        return {
            route: float(np.dot(terms(row, route), prices[family]))
            for family, routes in FAMILIES.items()
            for route in routes
            if route in row["microseconds"]
        }

    report(rows, predicted)
    HEADER.write_text(header(constants))


if __name__ == "__main__":
    main()
