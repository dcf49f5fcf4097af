"""Convolutions of tensors in any memory layout: values, and the strides of outputs and gradients."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.support.convolution_cases import (
    Shape,
    as_channels_last,
    check_against_float64,
    expected,
    gradient_of,
    make,
    one_of_each_side,
    run,
    sided,
    taking,
)
from tests.support.reference import CONVS, TRANSPOSED, assert_gradients_close, doubles, gradients


def significant(t: Tensor) -> list[int]:
    """The strides of all dimensions with more than one element; others are meaningless."""
    return [stride for stride, size in zip(t.stride(), t.shape, strict=True) if size > 1]


@one_of_each_side
def test_channels_last_stays_channels_last(
    backend: str, side: str, x: Shape, v: Shape, transposed: bool, arguments: dict[str, Any]
) -> None:
    """If the input is channels-last, so are output and input gradient; dv and dg have their parameter's strides."""
    for weight_too in (False, True):
        for relu in (False, True):
            inputs = sided(x, v, transposed, arguments)
            inputs[0] = as_channels_last(inputs[0])
            if weight_too:
                inputs[1] = as_channels_last(inputs[1])
            with taking(side, inputs, transposed, arguments):
                y = run(inputs, transposed, relu, **arguments)
                results = gradients(y, inputs, torch.randn_like(y))
            assert y.is_contiguous(memory_format=torch.channels_last)
            for own, like in zip(results, inputs, strict=True):
                assert significant(own) == significant(like)


@pytest.mark.parametrize("dim", [0, 1, 2, 3, None])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("x_last", [False, True])
@pytest.mark.parametrize("v_last", [False, True])
def test_output_has_the_strides_of_torchs_output(
    backend: str, v_last: bool, x_last: bool, transposed: bool, dim: int | None
) -> None:
    """torch's output is channels-last if input or weight is; the fake implementation agrees."""
    inputs = make((2, 6, 7, 8), (6, 6, 3, 3), dim, transposed=transposed)
    for i, last in enumerate((x_last, v_last)):
        inputs[i] = as_channels_last(inputs[i]) if last else inputs[i]
    x, v, _, b = inputs
    y = run(inputs, transposed, dim=dim)
    plain = TRANSPOSED if transposed else CONVS
    assert y.stride() == plain[2](x, v, b).stride()
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(t) for t in inputs if t is not None]
        assert run(fakes, transposed, dim=dim).stride() == y.stride()
    results = gradients(y, inputs, torch.randn_like(y))
    assert [t.stride() for t in results] == [t.stride() for t in inputs]


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dy_last", [False, True])
@pytest.mark.parametrize("x_last", [False, True])
@pytest.mark.parametrize("v_last", [False, True])
def test_accumulated_gradients_have_the_strides_of_torchs(
    backend: str, v_last: bool, x_last: bool, dy_last: bool, transposed: bool
) -> None:
    """After ``backward``, ``x.grad`` and ``v.grad`` are in the memory format that torch's own convolution leaves."""
    x, v, g, b = make((2, 6, 7, 8), (6, 6, 3, 3), 0, transposed=transposed)
    x, v = (as_channels_last(t) if last else t for t, last in ((x, x_last), (v, v_last)))
    strides = []
    for own in (True, False):
        x, v = (t.detach().requires_grad_() for t in (x, v))
        y = run([x, v, g, b], transposed, dim=0) if own else (TRANSPOSED if transposed else CONVS)[2](x, v, b)
        dy = torch.ones(y.shape, dtype=y.dtype)
        y.backward(as_channels_last(dy) if dy_last else dy)
        assert x.grad is not None
        assert v.grad is not None
        strides.append((x.grad.stride(), v.grad.stride()))
    assert strides[0] == strides[1]


def reversed_in_memory(t: Tensor) -> Tensor:
    """The same values with the dimensions in the opposite order in memory."""
    order = tuple(reversed(range(t.ndim)))
    return t.permute(order).contiguous().permute(order)


@pytest.mark.parametrize("dim", [0, 1, 4, None])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_parameters_in_any_strides(backend: str, n: int, dim: int | None) -> None:
    """With a weight in another memory order and a strided gain, values are correct and dv has the weight's strides."""
    shape = (5, 4, 3, 2, 3)[: n + 2]
    dim = min(dim, n + 1) if dim is not None else None
    inputs = make((2, 4, *[6] * n), shape, dim)
    v, gain = inputs[1], inputs[2]
    assert v is not None and gain is not None
    inputs[1] = reversed_in_memory(v.detach()).requires_grad_()
    inputs[2] = torch.stack([gain.detach(), gain.detach() - 9], dim=-1)[..., 0].requires_grad_()
    check_against_float64(inputs, dim=dim)
    y = run(inputs, dim=dim)
    assert gradients(y, inputs, torch.randn_like(y))[1].stride() == inputs[1].stride()


GRADIENTS = {
    "expanded": lambda dy: torch.ones(()).expand_as(dy),
    "one per channel": lambda dy: torch.randn(dy.shape[1], 1, 1).expand_as(dy),
    "reversed": reversed_in_memory,
    "channels last": lambda dy: dy.contiguous(memory_format=torch.channels_last),
    "strided": lambda dy: torch.stack([dy, dy - 9], dim=-1)[..., 0],
}


@pytest.mark.parametrize("kind", GRADIENTS)
@one_of_each_side
def test_output_gradients_of_any_layout(
    backend: str, side: str, x: Shape, v: Shape, transposed: bool, arguments: dict[str, Any], kind: str
) -> None:
    for relu in (False, True):
        inputs = sided(x, v, transposed, arguments)
        wide = doubles(*inputs)
        y_wide = expected(wide, transposed, relu, **arguments)
        dy = GRADIENTS[kind](gradient_of(y_wide).float())
        with taking(side, inputs, transposed, arguments):
            y = run(inputs, transposed, relu, **arguments)
            assert dy.shape == y.shape
            own = gradients(y, inputs, dy)
        assert_gradients_close(own, gradients(y_wide, wide, dy.double()), wide[1], wide[2], arguments["dim"])


def test_inputs_of_any_layout(backend: str) -> None:
    """Expanded, strided and permuted inputs, with a small and a large weight."""
    for v in ((6, 4, 3, 3), (128, 128, 3, 3)):
        channels = v[1]
        for x in (
            torch.randn(1, channels, 1, 1).expand(2, channels, 3, 3),
            torch.randn(2, channels, 3, 6)[..., ::2],
            torch.randn(3, 3, channels, 2).permute(3, 2, 0, 1),
        ):
            for dim in (0, 1, None):
                inputs = make(tuple(x.shape), v, dim)
                inputs[0] = x.detach().requires_grad_()
                check_against_float64(inputs, dim=dim, padding=1)
