"""wn_convNd and wn_conv_transposeNd on every backend against float64: values, gradients and every option."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import wnfused
from tests.support.chosen_backends import BACKENDS
from tests.support.convolution_cases import (
    Shape,
    as_channels_last,
    check_against_float64,
    expected,
    gradient_of,
    make,
    run,
)
from tests.support.reference import assert_close, assert_gradients_close, doubles, gradients, normalized

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same'")  # torch's remark on even kernels

# x, v, arguments: one of each number of dimensions, none of the sizes equal
PLAIN = [
    ((2, 6, 11), (5, 6, 3), {"padding": 1}),
    ((2, 6, 7, 9), (5, 6, 3, 2), {"stride": (2, 1), "padding": (1, 0)}),
    ((2, 4, 4, 5, 3), (3, 4, 2, 3, 1), {"dilation": (1, 2, 1), "padding": 1}),
]
TURNED = [
    ((2, 6, 11), (6, 5, 3), {"padding": 1}),
    ((2, 6, 4, 5), (6, 5, 3, 2), {"stride": (2, 1), "padding": (1, 0), "output_padding": (1, 0)}),
    ((2, 4, 3, 2, 3), (4, 3, 2, 3, 1), {"dilation": (1, 2, 1)}),
]
CASES = [(*case, False) for case in PLAIN] + [(*case, True) for case in TURNED]
CASE_IDS = [f"{'transposed ' if case[3] else ''}{len(case[0]) - 2}d" for case in CASES]
each_convolution = pytest.mark.parametrize(("x", "v", "arguments", "transposed"), CASES, ids=CASE_IDS)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@each_convolution
def test_values_and_gradients(
    backend: str, x: Shape, v: Shape, arguments: dict[str, Any], transposed: bool, dtype: torch.dtype
) -> None:
    for dim in (*range(len(v)), None):
        check_against_float64(make(x, v, dim, dtype, transposed=transposed), transposed, dim=dim, **arguments)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("eps", [0.0, 1e-3])
@each_convolution
def test_options(
    backend: str, x: Shape, v: Shape, arguments: dict[str, Any], transposed: bool, eps: float, bias: bool, relu: bool
) -> None:
    check_against_float64(make(x, v, 0, bias=bias, transposed=transposed), transposed, relu, eps=eps, **arguments)


@pytest.mark.parametrize("dim", [0, 1, 2, None])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("per_group", [1, 3])
def test_groups(backend: str, per_group: int, transposed: bool, dim: int | None) -> None:
    """Also depthwise, with one and with two outputs for each input channel."""
    groups, outputs = 4, 2 * per_group
    v = (groups * per_group, outputs, 3) if transposed else (groups * outputs, per_group, 3)
    arguments = {"groups": groups, "stride": 2, "padding": 1, "dim": dim}
    check_against_float64(
        make((2, groups * per_group, 9), v, dim, transposed=transposed, groups=groups), transposed, **arguments
    )


@pytest.mark.parametrize("transposed", [False, True])
def test_depthwise(backend: str, transposed: bool) -> None:
    for dim in (0, 1, 3, None):
        inputs = make((2, 6, 5, 4), (6, 1, 3, 3), dim, transposed=transposed, groups=6)
        check_against_float64(inputs, transposed, dim=dim, groups=6, padding=1)


@pytest.mark.parametrize("padding", ["same", "valid", 2, (2,), [2]], ids=str)
@pytest.mark.parametrize("kernel", [1, 2, 3, 4])
@pytest.mark.parametrize("dilation", [1, 2, 3])
def test_padding_of_one_dimension(backend: str, kernel: int, dilation: int, padding: Any) -> None:
    check_against_float64(make((2, 3, 13), (4, 3, kernel), 0), padding=padding, dilation=dilation)


@pytest.mark.parametrize("padding", ["same", "valid", (0, 2), (3, 1)], ids=str)
def test_padding_of_two_dimensions(backend: str, padding: Any) -> None:
    check_against_float64(make((2, 3, 9, 8), (4, 3, 4, 3), 0), padding=padding, dilation=(1, 2))


def test_same_padding_of_three_dimensions(backend: str) -> None:
    check_against_float64(make((2, 3, 4, 5, 6), (4, 3, 2, 3, 4), 0), padding="same")


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular", "zeros"])
@pytest.mark.parametrize("padding", [0, 2, "same", "valid"], ids=str)
@pytest.mark.parametrize("n", [1, 2, 3])
def test_padding_modes(backend: str, n: int, padding: Any, mode: str) -> None:
    """As nn.ConvNd pads, batched and not; with an even kernel "same" is one wider on the right."""
    kernel, sizes = (4, 3, 2)[:n], (7, 5, 6)[:n]
    layer = getattr(nn, f"Conv{n}d")(3, 4, kernel, padding=padding, padding_mode=mode, dtype=torch.float64)
    for batch in ((2,), ()):
        inputs = make((*batch, 3, *sizes), (4, 3, *kernel), 0)
        y = run(inputs, padding=padding, padding_mode=mode)
        wide = doubles(*inputs)
        x, v, g, b = wide
        weights = {"weight": normalized(v, g, 0), "bias": b}
        y_wide = torch.func.functional_call(layer, weights, (x,))
        assert_close(y, y_wide, what="y")
        dy = gradient_of(y_wide).float()
        assert_gradients_close(gradients(y, inputs, dy), gradients(y_wide, wide, dy.double()), v, g, 0)


def test_numpy_integers_are_integers(backend: str) -> None:
    """Sizes computed with numpy work in torch's layers, and go on working when those are converted."""
    one, two = np.int64(1), np.int32(2)
    inputs = make((2, 4, 9), (6, 2, 3), 0, groups=2)
    sizes = {"stride": two, "padding": (one,), "dilation": [one], "groups": two}
    assert_close(run(inputs, **sizes), expected(doubles(*inputs), stride=2, padding=1, groups=2))
    layer = nn.Conv1d(two, two, two, stride=two, padding=one, dilation=one, groups=two)
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(layer))
    x = torch.randn(2, 2, 9)
    before = model(x)
    wnfused.convert(model)
    assert_close(model(x), before.double())
    own = wnfused.WNConv1d(two, two, two, stride=two, padding=one, dilation=one, groups=two)
    assert own(x).shape == before.shape
    assert wnfused.WNLinear(two, one)(torch.ones(3, 2)).shape == (3, 1)


@each_convolution
def test_unbatched(backend: str, x: Shape, v: Shape, arguments: dict[str, Any], transposed: bool) -> None:
    for relu in (False, True):
        check_against_float64(make(x[1:], v, 0, transposed=transposed), transposed, relu, **arguments)


@each_convolution
def test_empty_batch(backend: str, x: Shape, v: Shape, arguments: dict[str, Any], transposed: bool) -> None:
    for dim in (0, 1, None):
        inputs = make((0, *x[1:]), v, dim, transposed=transposed)
        y = run(inputs, transposed, relu=True, dim=dim, **arguments)
        assert y.shape == expected(inputs, transposed, dim=dim, **arguments).shape
        for own, like in zip(gradients(y, inputs, torch.ones_like(y)), inputs, strict=True):
            assert own.shape == like.shape
            assert not own.any()  # NaN counts as True


@pytest.mark.parametrize("dim", [0, 1, 2, None])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("v", [(1, 1, 1), (1, 5, 1), (5, 1, 1), (5, 5, 1), (1, 1, 4)], ids=str)
def test_single_rows_and_kernels_of_one_element(backend: str, v: Shape, transposed: bool, dim: int | None) -> None:
    inputs = make((3, v[0] if transposed else v[1], 6), v, dim, torch.float64, transposed=transposed)
    check_against_float64(inputs, transposed, dim=dim)


@st.composite
def convolutions(draw: st.DrawFn) -> dict[str, Any]:
    n, transposed = draw(st.integers(1, 3)), draw(st.booleans())
    groups, each_in, each_out = (draw(st.integers(1, 3)) for _ in range(3))
    kernel, stride, dilation = (draw(st.tuples(*[st.integers(1, 3)] * n)) for _ in range(3))
    padding = draw(st.tuples(*[st.integers(0, 2)] * n))
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    arguments = {"stride": stride, "dilation": dilation, "groups": groups}
    if transposed:
        padding = tuple(min(p, (r - 1) // 2) for p, r in zip(padding, reach, strict=True))
        least = [1] * n
        limits = [max(s, d) - 1 for s, d in zip(stride, dilation, strict=True)]
        arguments["output_padding"] = draw(st.tuples(*[st.integers(0, limit) for limit in limits]))
    else:
        least = [max(1, r - 2 * p) for r, p in zip(reach, padding, strict=True)]
    arguments["padding"] = padding
    sizes = [low + draw(st.integers(0, 4)) for low in least]
    v = (groups * each_in, each_out, *kernel) if transposed else (groups * each_out, each_in, *kernel)
    x = (draw(st.integers(1, 3)), groups * each_in, *sizes)
    arguments["dim"] = draw(st.sampled_from([*range(len(v)), None]))
    return {"x": x, "v": v, "transposed": transposed, "arguments": arguments}


@given(
    case=convolutions(),
    relu=st.booleans(),
    bias=st.booleans(),
    channels_last=st.booleans(),
    name=st.sampled_from(BACKENDS),
)
def test_any_shape(case: dict[str, Any], relu: bool, bias: bool, channels_last: bool, name: str) -> None:
    arguments, transposed = case["arguments"], case["transposed"]
    inputs = make(
        case["x"],
        case["v"],
        arguments["dim"],
        torch.float64,
        bias=bias,
        transposed=transposed,
        groups=arguments["groups"],
    )
    if channels_last:
        inputs[:2] = [as_channels_last(t) for t in inputs[:2]]
    with wnfused.backend(name):
        check_against_float64(inputs, transposed, relu, **arguments)
