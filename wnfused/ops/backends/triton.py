"""The ``triton`` backend: maps the operators to the launches of ``wnfused.kernels.triton``."""

import functools
import logging
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from wnfused.kernels.triton import recipe, run_conv, run_linear, run_linear_backward, run_multi, run_rows, table
from wnfused.ops import precomputed_norms
from wnfused.ops.backends import launching
from wnfused.ops.backends.torch import laid_out_like
from wnfused.ops.reference import Gradients

Dim = int | None
Operator = TypeVar("Operator", bound=Callable[..., Any])


_interpreter = threading.RLock()  # triton's interpreter has global state
log = logging.getLogger("wnfused")


def _recorded(inputs: int) -> Callable[[Operator], Operator]:
    """Record a call that the C++ launch path does not know yet, so that it need not ask Python again.

    ``inputs`` is the number of leading arguments that are tensors or None, as in ``launched.cpp``.
    """

    def decorate(operator: Operator) -> Operator:
        @functools.wraps(operator)
        def run(*args: Any) -> Any:
            if not table.recording():
                return operator(*args)
            if args[0].is_cuda and torch.cuda.is_current_stream_capturing():
                raise RuntimeError(
                    f"{operator.__name__}: first call with these shapes during CUDA graph capture; call "
                    "wnfused.warm_up(model, example) before the capture"
                )
            outputs, recorded, reason = recipe.record(operator, inputs, args)
            table.install(recorded)
            if recorded is None:
                log.debug("%s runs in Python: %s", operator.__name__, reason)
            return outputs

        return run  # type: ignore[return-value]

    return decorate


def _on_its_device(operator: Operator) -> Operator:
    """Make the tensors' device current: Triton launches on the current device."""

    @functools.wraps(operator)
    def launch(first: Tensor, *rest: Any) -> Any:
        if not first.is_cuda:
            with _interpreter:
                return operator(first, *rest)
        launching.connect()
        if first.device.index == torch.cuda.current_device():
            return operator(first, *rest)
        with torch.cuda.device(first.device):
            return operator(first, *rest)

    return launch  # type: ignore[return-value]


@_on_its_device
def weight_norm(v: Tensor, g: Tensor, dim: Dim, eps: float) -> tuple[Tensor, Tensor]:
    norms = run_rows.row_norms(v, g, dim, eps)
    return laid_out_like(run_rows.normalized(v, g, norms, dim, v.dtype), v), norms


@_on_its_device
def weight_norm_backward(
    dw: Tensor, v: Tensor, g: Tensor, norms: Tensor, dim: Dim, eps: float, mask: list[bool]
) -> Gradients:
    ordered = run_rows.in_memory_order(v, dim)
    dw = torch.empty_like(ordered, dtype=dw.dtype).copy_(dw)  # a copy, because it is projected in place
    dv, dg = run_rows.project(dw, v, g, norms, dim, mask[0], mask[1])
    return laid_out_like(dv, v), dg


@_on_its_device
@_recorded(inputs=4)
def linear(
    x: Tensor, v: Tensor, g: Tensor, bias: Tensor | None, dim: Dim, eps: float, relu: bool
) -> tuple[Tensor, Tensor]:
    return run_linear.forward(x, v, g, bias, dim, eps, relu, precomputed_norms.find(v, dim, eps))


@_on_its_device
@_recorded(inputs=6)
def linear_backward(
    dy: Tensor, x: Tensor, v: Tensor, g: Tensor, norms: Tensor, y: Tensor | None, dim: Dim, eps: float, biased: bool,
    mask: list[bool],
) -> Gradients:  # fmt: skip
    dx, dv, dg, db = run_linear_backward.backward(dy, x, v, g, norms, y, dim, biased, mask)
    return dx, laid_out_like(dv, v), dg, db


@_on_its_device
@_recorded(inputs=4)
def convolution(
    x: Tensor, v: Tensor, g: Tensor, bias: Tensor | None, stride: list[int], padding: list[int], dilation: list[int],
    transposed: bool, output_padding: list[int], groups: int, dim: Dim, eps: float, relu: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    geometry = (stride, padding, dilation, transposed, output_padding, groups)
    return run_conv.forward(x, v, g, bias, geometry, dim, eps, relu, precomputed_norms.find(v, dim, eps))


@_on_its_device
@_recorded(inputs=6)
def convolution_backward(
    dy: Tensor, x: Tensor, v: Tensor, g: Tensor, norms: Tensor, y: Tensor | None, stride: list[int], padding: list[int],
    dilation: list[int], transposed: bool, output_padding: list[int], groups: int, dim: Dim, eps: float,
    mask: list[bool],
) -> Gradients:  # fmt: skip
    geometry = (stride, padding, dilation, transposed, output_padding, groups)
    dx, dv, dg, db = run_conv.backward(dy, x, v, g, norms, y, geometry, dim, mask)
    return laid_out_like(dx, x), laid_out_like(dv, v), dg, db


def takes_many_norms(v: Tensor, dim: Dim) -> bool:
    """Whether ``many_norms`` supports this weight; a very long row is left to its layer, which splits it."""
    return run_multi.supported(v, dim)


def many_norms(weights: list[tuple[Tensor, tuple[int, ...], Dim, float]]) -> list[Tensor]:
    """The norms of each (v, shape of g, dim, eps) in one launch. All weights have the same device and dtype."""
    return run_multi.many_norms([run_multi.Weight(*weight) for weight in weights])
