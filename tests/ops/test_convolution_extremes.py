"""Convolutions with extreme values: tiny, huge and zero rows, zero gains, NaN and infinity."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.convolution_cases import (
    Shape,
    check_against_float64,
    expected,
    gradient_of,
    make,
    one_of_each_side,
    run,
    sided,
    taking,
)
from tests.support.reference import assert_close, doubles, gradients


def along(t: Tensor, dim: int | None, rows: slice) -> Tensor:
    """The part of v, w or g that belongs to these rows."""
    return t if dim is None else t.movedim(dim, 0)[rows]


EVEN, ODD = slice(0, None, 2), slice(1, None, 2)


@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1e-9, 1e9, 1e20, 1e30])
@one_of_each_side
def test_extreme_norms(
    backend: str, side: str, x: Shape, v: Shape, transposed: bool, arguments: dict[str, Any], scale: float
) -> None:
    """Every other row is tiny or huge; both kinds are compared separately, because their dv differ by magnitudes."""
    dim = arguments["dim"]
    inputs = sided(x, v, transposed, arguments)
    with torch.no_grad():
        along(inputs[1], dim, EVEN).mul_(scale)
    y = run(inputs, transposed, **arguments)
    wide = doubles(*inputs)
    y_wide = expected(wide, transposed, **arguments)
    assert_close(y, y_wide, what="y")
    dy = gradient_of(y_wide).float()
    own, wanted = gradients(y, inputs, dy), gradients(y_wide, wide, dy.double())
    for i, name in ((0, "dx"), (2, "dg"), (3, "db")):
        assert_close(own[i], wanted[i], what=name)
    for rows in (EVEN, ODD):
        assert_close(along(own[1], dim, rows), along(wanted[1], dim, rows), what="dv")


@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1e20, 1e30])
@pytest.mark.parametrize("transposed", [False, True])
def test_extreme_norm_of_the_whole_weight(backend: str, transposed: bool, scale: float) -> None:
    for v in ((6, 6, 3), (160, 160, 3)):
        inputs = make((2, v[0], 4), v, None, transposed=transposed)
        with torch.no_grad():
            inputs[1].mul_(scale)
        check_against_float64(inputs, transposed, dim=None, padding=1)


@one_of_each_side
def test_zero_rows_give_zero_weight_and_gradients(
    backend: str, side: str, x: Shape, v: Shape, transposed: bool, arguments: dict[str, Any]
) -> None:
    """The other results are those of any direction with gain 0; the gradients of the row itself are zero too."""
    dim = arguments["dim"]
    inputs = sided(x, v, transposed, arguments)
    like = doubles(*inputs)
    with torch.no_grad():
        along(inputs[1], dim, EVEN).zero_()
        along(like[2], dim, EVEN).zero_()
    y_wide = expected(like, transposed, **arguments)
    dy = gradient_of(y_wide).float()
    with taking(side, inputs, transposed, arguments):
        y = run(inputs, transposed, **arguments)
        own = gradients(y, inputs, dy)
    wanted = gradients(y_wide, like, dy.double())
    assert_close(y, y_wide, what="y")
    assert_close(own[0], wanted[0], what="dx")
    assert_close(own[3], wanted[3], what="db")
    for i, name in ((1, "dv"), (2, "dg")):
        assert not along(own[i], dim, EVEN).any()
        assert_close(along(own[i], dim, ODD), along(wanted[i], dim, ODD), what=name)


def test_weight_of_zeros(backend: str) -> None:
    for v in ((6, 4, 3), (160, 160, 3)):
        inputs = make((2, v[1], 5), v, None)
        _, weight, _, b = inputs
        with torch.no_grad():
            weight.zero_()
        y = run(inputs, dim=None)
        assert torch.equal(y, b[:, None].expand_as(y))
        dx, dv, dg, db = gradients(y, inputs, torch.ones_like(y))
        assert not dx.any() and not dv.any() and not dg.any()
        assert torch.equal(db, torch.full_like(db, 6.0))


def test_zero_gain(backend: str) -> None:
    for v in ((6, 4, 3), (160, 160, 3)):
        inputs = make((2, v[1], 5), v, 0)
        with torch.no_grad():
            inputs[2].zero_()
        check_against_float64(inputs)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("v", [(5, 6, 3), (160, 160, 3)], ids=str)
def test_nan_and_infinity_stay_visible(backend: str, v: Shape, relu: bool) -> None:
    for bad in (math.nan, math.inf):
        inputs = make((2, v[1], 4), v, 0)
        with torch.no_grad():
            inputs[1][2, 1, 0] = bad
        y = run(inputs, relu=relu)
        assert y[:, 2].isnan().all()
        assert y[:, [0, 1, 3, 4]].isfinite().all()
    inputs = make((2, v[1], 4), v, 0)
    with torch.no_grad():
        inputs[0][1, 2, 3] = math.nan
    y = run(inputs, relu=relu)
    assert y[1, :, -1].isnan().all()
    assert y[0].isfinite().all()


@pytest.mark.parametrize("v", [(5, 6, 3), (160, 160, 3)], ids=str)
def test_relu_stops_infinite_gradients(backend: str, v: Shape) -> None:
    """Where the output is zero the gradient is 0, even if the incoming one is infinite."""
    inputs = make((2, v[1], 6), v, 0)
    y = run(inputs, relu=True)
    dy = torch.where(y > 0, 1.0, math.inf)
    assert dy.isinf().any()
    for own in gradients(y, inputs, dy):
        assert own.isfinite().all()
