"""The ``triton`` backend: the operators' signatures onto the launches of ``wnfused.kernels.triton``."""

import functools
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from wnfused.kernels.triton import run_conv, run_linear, run_linear_backward, run_multi, run_rows
from wnfused.ops import known_norms
from wnfused.ops.backends.torch import laid_out_like
from wnfused.ops.reference import Gradients

Dim = int | None
Operator = TypeVar("Operator", bound=Callable[..., Any])


_interpreter = threading.RLock()  # triton's interpreter keeps the program it runs in one place for all threads


def _on_its_device(operator: Operator) -> Operator:
    """Triton launches on the current device, which need not be that of the tensors."""

    @functools.wraps(operator)
    def launch(first: Tensor, *rest: Any) -> Any:
        if not first.is_cuda:
            with _interpreter:
                return operator(first, *rest)
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
    dw = torch.empty_like(ordered, dtype=dw.dtype).copy_(dw)  # projected in place, and the caller's stays
    dv, dg = run_rows.project(dw, v, g, norms, dim, mask[0], mask[1])
    return laid_out_like(dv, v), dg


@_on_its_device
def linear(
    x: Tensor, v: Tensor, g: Tensor, bias: Tensor | None, dim: Dim, eps: float, relu: bool
) -> tuple[Tensor, Tensor]:
    return run_linear.forward(x, v, g, bias, dim, eps, relu, known_norms.find(v, dim, eps))


@_on_its_device
def linear_backward(
    dy: Tensor, x: Tensor, v: Tensor, g: Tensor, norms: Tensor, y: Tensor | None, dim: Dim, eps: float, biased: bool,
    mask: list[bool],
) -> Gradients:  # fmt: skip
    dx, dv, dg, db = run_linear_backward.backward(dy, x, v, g, norms, y, dim, biased, mask)
    return dx, laid_out_like(dv, v), dg, db


@_on_its_device
def convolution(
    x: Tensor, v: Tensor, g: Tensor, bias: Tensor | None, stride: list[int], padding: list[int], dilation: list[int],
    transposed: bool, output_padding: list[int], groups: int, dim: Dim, eps: float, relu: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    geometry = (stride, padding, dilation, transposed, output_padding, groups)
    return run_conv.forward(x, v, g, bias, geometry, dim, eps, relu, known_norms.find(v, dim, eps))


@_on_its_device
def convolution_backward(
    dy: Tensor, x: Tensor, v: Tensor, g: Tensor, norms: Tensor, y: Tensor | None, stride: list[int], padding: list[int],
    dilation: list[int], transposed: bool, output_padding: list[int], groups: int, dim: Dim, eps: float,
    mask: list[bool],
) -> Gradients:  # fmt: skip
    geometry = (stride, padding, dilation, transposed, output_padding, groups)
    dx, dv, dg, db = run_conv.backward(dy, x, v, g, norms, y, geometry, dim, mask)
    return laid_out_like(dx, x), laid_out_like(dv, v), dg, db


def takes_many_norms(v: Tensor, dim: Dim) -> bool:
    """Whether ``many_norms`` serves this weight; a very long row is better shared out by its own layer."""
    return run_multi.supported(v, dim)


def many_norms(weights: list[tuple[Tensor, tuple[int, ...], Dim, float]]) -> list[Tensor]:
    """The norms of each (v, shape of g, dim, eps), all on one device and of one dtype, in one launch."""
    return run_multi.many_norms([run_multi.Weight(*weight) for weight in weights])
