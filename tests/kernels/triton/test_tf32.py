"""float32 products that torch's flags allow to be rounded to tf32: rounded to nearest.

The interpreter multiplies what tensor cores would (tests/support/tensor_cores.py), so that these tests fail if a kernel
leaves the rounding to them.
"""

from collections.abc import Iterator

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from tests.support.reference import TF32_TOLERANCE, errors
from tests.support.triton_cases import DEVICE, ON_GPU, gains, wide
from wnfused.kernels.triton import language, run_conv, run_linear, run_linear_backward
from wnfused.kernels.triton.rules import Plan
from wnfused.kernels.triton.tiles import Tile
from wnfused.ops import reference as formulas

ALL = [True] * 4
TILE = Tile(64, 64, 32, 4, 3)


@pytest.fixture(autouse=True)
def _rounded() -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


@triton.jit
def multiply(a, b, c, SIZE: tl.constexpr, ROUND: tl.constexpr):
    i = tl.arange(0, SIZE)
    at = i[:, None] * SIZE + i[None, :]
    a_tile, b_tile, acc = tl.load(a + at), tl.load(b + at), tl.zeros([SIZE, SIZE], tl.float32)
    tl.store(c + at, language.dot(a_tile, b_tile, acc, "tf32") if ROUND else tl.dot(a_tile, b_tile, acc))


def product(a: Tensor, b: Tensor, round: bool) -> Tensor:
    c = torch.empty_like(a)
    multiply[(1,)](a, b, c, SIZE=a.shape[0], ROUND=round)
    return c.double().cpu()


def bias(found: Tensor, exact: Tensor) -> float:
    return ((found.double().cpu() - exact) / exact).mean().item()


def test_tensor_cores_truncate_and_the_kernels_round() -> None:
    a, b = (torch.rand(64, 64, device=DEVICE) + 1 for _ in range(2))
    exact = a.double().cpu() @ b.double().cpu()
    assert -8e-4 < bias(product(a, b, round=False), exact) < -5e-4
    assert abs(bias(product(a, b, round=True), exact)) < 2e-5
    digits = lambda t: (t.abs() * 2 ** (10 - t.abs().log2().floor()) + 0.5).floor()  # noqa: E731 - of positive numbers
    near = [digits(t.double().cpu()) / 1024 for t in (a, b)]
    torch.testing.assert_close(product(a, b, round=True), near[0] @ near[1], rtol=1e-6, atol=0)


def test_nan_and_infinity_pass() -> None:
    """NVIDIA's own NaN has all bits set: rounding it as a number would make it -0."""
    bad = torch.tensor([0x7FFFFFFF, -1, 0x7F800000, -0x800000], dtype=torch.int32).view(torch.float32)
    a, b = torch.zeros(16, 16, device=DEVICE), torch.ones(16, 16, device=DEVICE)
    a[:4, 0] = bad.to(DEVICE)
    found = product(a, b, round=True)[:4, 0]
    assert found[:2].isnan().all() and found[2:].tolist() == [float("inf"), float("-inf")]


def linear_results(positive: bool, plan: Plan, rows: int = 40) -> list[tuple[str, Tensor, Tensor]]:
    draw = torch.rand if positive else torch.randn
    x, v, dy = (draw(shape).to(DEVICE) for shape in ((rows, 70), (67, 70), (rows, 67)))
    g = gains(v, 0)
    y, norms = run_linear.forward(x, v, g, None, 0, 0.0, False, plan=plan)
    own = run_linear_backward.backward(dy, x, v, g, norms, None, 0, True, ALL, (plan, plan))
    y_wide, _ = formulas.linear(*wide(x, v, g), None, 0, 0.0, False)
    wanted = formulas.linear_backward(*wide(dy, x, v, g), None, None, 0, 0.0, True, ALL)
    return [*zip(["y", "dx", "dv", "dg"], [y, *own[:3]], [y_wide, *wanted[:3]], strict=True)]


def convolution_results(positive: bool, transposed: bool) -> list[tuple[str, Tensor, Tensor]]:
    draw = torch.rand if positive else torch.randn
    geometry = ([2, 1], [1, 1], [1, 1], transposed, [0, 0], 1)
    x, v = draw(2, 20, 7, 6).to(DEVICE), draw(20, 20, 3, 3).to(DEVICE)
    g, plan = gains(v, 0), Plan("norms first", TILE)
    y, norms = run_conv.forward(x, v, g, None, geometry, 0, 0.0, False, plan=plan)
    dy = draw(y.shape).to(DEVICE)
    own = run_conv.backward(dy, x, v, g, norms, None, geometry, 0, ALL, (plan, plan))
    y_wide, _ = formulas.convolution(*wide(x, v, g), None, *geometry, 0, 0.0, False)
    wanted = formulas.convolution_backward(*wide(dy, x, v, g), None, None, *geometry, 0, 0.0, ALL)
    return [*zip(["y", "dx", "dv", "dg"], [y, *own[:3]], [y_wide, *wanted[:3]], strict=True)]


def results(case: str, positive: bool) -> list[tuple[str, Tensor, Tensor]]:
    if case == "few rows":
        return linear_results(positive, Plan("few rows", Tile(16, 16, 64, 4, 3)), rows=9)
    if case in ("norms first", "single pass", "in registers"):
        return linear_results(positive, Plan(case, TILE))
    return convolution_results(positive, case == "transposed")


def check(case: str) -> None:
    for name, own, exact in results(case, positive=False):
        largest, rms = errors(own.cpu(), exact)
        assert largest <= TF32_TOLERANCE[0] and rms <= TF32_TOLERANCE[1], (name, largest, rms)
    for name, own, exact in results(case, positive=True):
        if name in ("y", "dx"):  # the others subtract
            assert abs(bias(own, exact)) < 5e-5, name


CASES = ["norms first", "single pass", "in registers", "few rows", "convolution", "transposed"]


@pytest.mark.parametrize("case", CASES)
def test_layers_round_their_operands(case: str) -> None:
    check(case)


@pytest.mark.skipif(
    ON_GPU, reason="compiled kernels cannot be patched; in the interpreter this shows that the tests fail"
)
@pytest.mark.parametrize("case", CASES)
def test_truncated_operands_fail(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language, "rounded_to_tf32", lambda value, PRECISION: value)
    with pytest.raises(AssertionError):
        check(case)


def test_products_are_rounded_at_all() -> None:
    """With the flags off the same layers are a hundred times closer."""
    y = results("norms first", positive=False)[0]
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(0)
    exact = results("norms first", positive=False)[0]
    assert errors(y[1].cpu(), y[2])[1] > 1e-5 > 10 * errors(exact[1].cpu(), exact[2])[1]
