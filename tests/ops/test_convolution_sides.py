"""Convolutions for which the native kernel scales the output, the input or the weight: values, options, accuracy."""

from typing import Any

import pytest
import torch

import wnfused
from tests.support.chosen_backends import OTHER
from tests.support.convolution_cases import (
    Shape,
    as_channels_last,
    check_against_float64,
    each_side,
    expected,
    gradient_of,
    one_of_each_side,
    run,
    sided,
    taking,
)
from tests.support.reference import CONVS, TRANSPOSED, assert_gradients_close, doubles, errors, gradients


@each_side
def test_native_kernel_can_scale_each_side(
    side: str, x: Shape, v: Shape, transposed: bool, arguments: dict[str, Any]
) -> None:
    """Its temporaries show the side: a scaled weight, a scaled input, or neither."""
    inputs = sided(x, v, transposed, arguments)
    profiler = torch.autograd.profiler.profile(record_shapes=True)
    with wnfused.backend("native"), taking(side, inputs, transposed, arguments), torch.no_grad(), profiler as profile:
        run(inputs, transposed, **arguments)
    temporaries = [e.input_shapes[0] for e in profile.function_events if e.name == "aten::empty_like"]
    taken = {"weight": list(v) in temporaries, "input": list(x) in temporaries}
    assert taken == {"weight": side == "weight", "input": side == "input"}, f"temporaries {temporaries}"


@pytest.mark.parametrize("channels_last", [False, True])
@each_side
def test_every_side(
    backend: str, side: str, x: Shape, v: Shape, transposed: bool, arguments: dict[str, Any], channels_last: bool
) -> None:
    inputs = sided(x, v, transposed, arguments)
    if channels_last:
        inputs[0] = as_channels_last(inputs[0])
    with taking(side, inputs, transposed, arguments):
        check_against_float64(inputs, transposed, relu=channels_last, **arguments)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("relu", [False, True])
@one_of_each_side
def test_options_of_every_side(
    backend: str,
    side: str,
    x: Shape,
    v: Shape,
    transposed: bool,
    arguments: dict[str, Any],
    relu: bool,
    bias: bool,
) -> None:
    inputs = sided(x, v, transposed, arguments, bias=bias)
    with taking(side, inputs, transposed, arguments):
        check_against_float64(inputs, transposed, relu, eps=3.0, **arguments)


@one_of_each_side
def test_forward_and_backward_may_use_different_backends(
    side: str, x: Shape, v: Shape, transposed: bool, arguments: dict[str, Any]
) -> None:
    inputs = sided(x, v, transposed, arguments)
    wide = doubles(*inputs)
    y_wide = expected(wide, transposed, **arguments)
    dy = gradient_of(y_wide).float()
    wanted = gradients(y_wide, wide, dy.double())
    for forward, backward in (("native", OTHER), (OTHER, "native")):
        with taking(side, inputs, transposed, arguments):
            with wnfused.backend(forward):
                y = run(inputs, transposed, **arguments)
            with wnfused.backend(backward):
                own = gradients(y, inputs, dy)
        assert_gradients_close(own, wanted, wide[1], wide[2], arguments["dim"])


@one_of_each_side
def test_results_are_reproducible_bit_for_bit(
    backend: str, side: str, x: Shape, v: Shape, transposed: bool, arguments: dict[str, Any]
) -> None:
    inputs = sided(x, v, transposed, arguments)
    runs = []
    with taking(side, inputs, transposed, arguments):
        for _ in range(3):
            y = run(inputs, transposed, **arguments)
            runs.append([y, *gradients(y, inputs, torch.ones_like(y))])
    for other in runs[1:]:
        for a, b in zip(runs[0], other, strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@one_of_each_side
def test_no_less_accurate_than_torch(
    backend: str, side: str, x: Shape, v: Shape, transposed: bool, arguments: dict[str, Any], dtype: torch.dtype
) -> None:
    """Errors against float64, averaged over draws, are no larger than torch's in the same dtype."""
    plain = TRANSPOSED if transposed else CONVS
    options = {key: value for key, value in arguments.items() if key != "dim"}
    dim = arguments["dim"]
    totals = torch.zeros(2, 2, dtype=torch.float64)
    for seed in range(3):
        torch.manual_seed(seed)
        inputs = sided(x, v, transposed, arguments, dtype=dtype)
        y_torch = plain[2](inputs[0], torch._weight_norm(inputs[1], inputs[2], dim), inputs[3], **options)
        wide = doubles(*inputs)
        y_wide = expected(wide, transposed, **arguments)
        dy = torch.randn_like(y_torch)
        wanted = [y_wide, *gradients(y_wide, wide, dy.double())]
        with taking(side, inputs, transposed, arguments):
            y_own = run(inputs, transposed, **arguments)
            found = [[y, *gradients(y, inputs, dy)] for y in (y_own, y_torch)]
        for i, each in enumerate(found):
            for own, want in zip(each, wanted, strict=True):
                totals[i] += torch.tensor(errors(own, want), dtype=torch.float64)
    assert (totals[0] <= totals[1] * 1.1).all(), f"(largest, rms) own {totals[0]}, torch {totals[1]}"
