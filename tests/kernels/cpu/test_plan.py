"""The rule that chooses the route of a convolution on the CPU: every route is right, the choice is stable and good."""

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import wnfused
from wnfused.benchmarks import cpu_rule
from wnfused.benchmarks.cpu_rule import PRODUCTS, ROUTES, Problem
from wnfused.diagnostics import cpu_tuning
from wnfused.ops.backends import native

pytestmark = pytest.mark.skipif(native.load() is not None, reason="the native kernels cannot be built here")
PROBLEMS = [
    Problem((1, 7, 19), (40, 7, 5), (1,), (2,), (1,), 2),
    Problem((3, 5, 11, 9), (13, 5, 3, 3), (1, 1), (1, 1), (1, 1), 2),
    Problem((2, 5, 12, 9), (33, 5, 3, 3), (2, 2), (1, 1), (1, 1), 1),
    Problem((2, 6, 17), (9, 6, 3), (1,), (6,), (3,), 2),
    Problem((1, 17, 6, 5), (31, 17, 1, 1), (1, 1), (0, 0), (1, 1), 2),
]


@pytest.fixture(autouse=True)
def _native_without_answers():
    threads = torch.get_num_threads()
    with wnfused.backend("native"):
        yield
    torch.ops.wnfused_plan.forget_routes()
    torch.set_num_threads(threads)


def _named(problem: Problem):
    convolution = problem.convolution()
    return (*convolution.tensors(), *convolution.geometry(), 0)


def _reference(problem: Problem):
    x, v, g = (t.double().requires_grad_() for t in problem.convolution().tensors())
    norms = v.flatten(1).norm(dim=1).view(g.shape)
    convolve = F.conv1d if x.ndim == 3 else F.conv2d
    y = convolve(x, g * v / norms, None, problem.stride, problem.padding, problem.dilation)
    dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).double()
    return y, torch.autograd.grad(y, (x, v, g), dy)


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: f"{p.x} {p.v}")
@pytest.mark.parametrize("product", range(3), ids=PRODUCTS)
def test_every_possible_route_gives_the_result(problem, product):
    named = _named(problem)
    y, (dx, dv, dg) = _reference(problem)
    expected = ([y], [dx], [dv, dg])[product]
    tried = 0
    for route in range(len(ROUTES)):
        if torch.ops.wnfused_plan.terms(product, route, *named):
            torch.ops.wnfused_plan.set_route(product, route, *named)
            found = [t for t in cpu_tuning.call(problem.convolution(), product)() if t is not None]
            found = found[:1] if product < 2 else found[:2]  # without norms and db
            for ours, theirs in zip(found, expected, strict=True):
                torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-4)
            tried += 1
    assert tried >= 2


def test_the_choice_is_the_same_at_every_call():
    for problem in PROBLEMS:
        named = _named(problem)
        first = torch.ops.wnfused_plan.costs(0, *named)
        assert all(torch.ops.wnfused_plan.costs(0, *named) == first for _ in range(3))


def test_a_route_that_cannot_compute_the_product_is_refused():
    named = _named(PROBLEMS[2])
    with pytest.raises(ValueError, match="route: 4 cannot compute this product"):
        torch.ops.wnfused_plan.set_route(0, 4, *named)  # direct, but strided
    with pytest.raises(ValueError, match="product: 3; expected 0 to 2"):
        torch.ops.wnfused_plan.costs(3, *named)
    with pytest.raises(ValueError, match="route: 5; expected 0 to 4"):
        torch.ops.wnfused_plan.terms(0, 5, *named)


@pytest.mark.parametrize("at", range(3, 6), ids=["stride", "padding", "dilation"])
def test_a_problem_that_is_no_convolution_is_refused(at):
    plan, named = torch.ops.wnfused_plan, _named(PROBLEMS[0])
    for value in ([], [-1], [2**62]):
        wrong = (*named[:at], value, *named[at + 1 :])
        for call in (lambda w: plan.costs(0, *w), lambda w: plan.terms(0, 0, *w), lambda w: plan.set_route(0, 0, *w)):
            with pytest.raises(ValueError, match="wnfused::convolution: (stride|padding|dilation): expected"):
                call(wrong)


def _fits_this_machine() -> bool:
    """Whether this is the kind of CPU that the committed table was measured on."""
    info = Path("/proc/cpuinfo")
    amd = info.exists() and "AuthenticAMD" in info.read_text()
    return amd and torch.backends.cpu.get_cpu_capability() == "AVX512"


@pytest.mark.skipif(not _fits_this_machine(), reason="the committed measurements are from an AMD CPU with AVX-512")
def test_the_rule_is_good_on_the_problems_that_it_was_not_fitted_to():
    rows = json.loads(cpu_rule.TABLE.read_text())["rows"]
    held_out = [row for i, row in enumerate(rows) if i // 3 % 2]
    chosen = [(row["microseconds"], min(row["microseconds"], key=cpu_rule.costs(row).get)) for row in held_out]
    to_best = [times[route] / min(times.values()) for times, route in chosen]
    to_torch = [times[route] / times["scaled weight"] for times, route in chosen]
    assert len(chosen) >= 300
    assert sum(ratio <= 1.05 for ratio in to_best) / len(chosen) > 0.8
    assert sum(ratio <= 1.03 for ratio in to_torch) / len(chosen) > 0.95
    assert max(to_torch) < 1.35
    assert sum(to_torch) / len(chosen) < 0.85  # a good rule gains a fifth on average
