"""The ``triton`` backend: maps the operators to the launches of ``wnfused.kernels.triton``."""

import functools
import logging
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from wnfused.kernels.triton import (
    fitting,
    launch,
    recipe,
    replay,
    run_conv,
    run_linear,
    run_linear_backward,
    run_rows,
    support,
    table,
)
from wnfused.kernels.triton import model_weights as many
from wnfused.ops.backends import launching
from wnfused.ops.backends.torch import laid_out_like
from wnfused.ops.reference import Gradients

Dim = int | None
Operator = TypeVar("Operator", bound=Callable[..., Any])


_interpreter = threading.RLock()  # triton's interpreter has global state
log = logging.getLogger("wnfused")


INPUTS = {"linear": 4, "linear_backward": 6, "convolution": 4, "convolution_backward": 6}  # tensors or None


def _is_capturing(t: Tensor) -> bool:
    return t.is_cuda and torch.cuda.is_current_stream_capturing()


def _may_repeat() -> bool:
    """Recorded calls launch at once."""
    return not launch.has_consumer()


def repeat(name: str, args: tuple[Any, ...]) -> Any:
    """The outputs of a call that Python recorded before, whose arguments need no check; None for any other call."""
    inputs = INPUTS.get(name)
    if inputs is None or not replay.any_known() or table.recording() or not _may_repeat():
        return None
    first = args[0]
    key = replay.key_of(name, inputs, args)
    if first.is_cuda and first.device.index != torch.cuda.current_device():
        with torch.cuda.device(first.device):
            return replay.repeat(key, args[:inputs])
    return replay.repeat(key, args[:inputs])


def _recorded(operator: Operator) -> Operator:
    """Record a call that is not known yet, so that it need not be checked, planned and bound again."""
    name = operator.__name__
    inputs = INPUTS[name]

    @functools.wraps(operator)
    def run(*args: Any) -> Any:
        for_table = table.recording()
        if not _may_repeat() or (support.interpreted() and not for_table):
            return operator(*args)
        key = () if for_table else replay.key_of(name, inputs, args)
        if not for_table and replay.is_known(key):
            return operator(*args)
        if _is_capturing(args[0]):
            raise RuntimeError(
                f"{name}: first call with these shapes during CUDA graph capture; call "
                "wnfused.warm_up(model, example) before the capture"
            )
        if not for_table:
            return replay.record(key, operator, inputs, args)
        outputs, recorded, reason = recipe.record(operator, inputs, args)
        table.install(recorded)
        if recorded is None:
            log.debug("%s runs in Python: %s", name, reason)
        return outputs

    return run  # type: ignore[return-value]


def _on_its_device(operator: Operator) -> Operator:
    """Make the tensors' device current: Triton launches on the current device."""

    @functools.wraps(operator)
    def run(first: Tensor, *rest: Any) -> Any:
        if not first.is_cuda:
            with _interpreter:
                return operator(first, *rest)
        launching.connect()
        if first.device.index == torch.cuda.current_device():
            return operator(first, *rest)
        with torch.cuda.device(first.device):
            return operator(first, *rest)

    return run  # type: ignore[return-value]


@_on_its_device
def weight_norm(v: Tensor, g: Tensor, dim: Dim, eps: float) -> tuple[Tensor, Tensor]:
    norms, w = run_rows.norms_and_weight(v, g, dim, eps, v.dtype)
    return laid_out_like(w, v), norms


@_on_its_device
def weight_norm_backward(
    dw: Tensor, v: Tensor, g: Tensor, norms: Tensor, dim: Dim, eps: float, mask: list[bool]
) -> Gradients:
    ordered = run_rows.in_memory_order(v, dim)
    dw = torch.empty_like(ordered, dtype=dw.dtype).copy_(dw)  # a copy, because it is projected in place
    dv, dg = run_rows.project(dw, v, g, norms, dim, mask[0], mask[1])
    return laid_out_like(dv, v), dg


def model_weights(
    v: list[Tensor], g: list[Tensor], dims: list[int], eps: list[float], dtype: torch.dtype
) -> tuple[list[Tensor], Tensor]:
    if _is_capturing(v[0]):  # the table of addresses is written by the host, and a graph's replay would not repeat that
        made = [run_rows.norms_and_weight(*one, dtype) for one in zip(v, g, _dims(dims), eps, strict=True)]
        weights, norms = [w for _, w in made], torch.cat([own.reshape(-1) for own, _ in made])
    else:
        weights, norms = _with_device(v[0], many.forward, v, g, _dims(dims), eps, dtype)
    return [laid_out_like(w, t) for w, t in zip(weights, v, strict=True)], norms


def model_weights_backward(
    dw: list[Tensor], v: list[Tensor], g: list[Tensor], norms: Tensor, dims: list[int], eps: list[float],
    want_v: list[bool], want_g: list[bool],
) -> tuple[list[Tensor], list[Tensor]]:  # fmt: skip
    if _is_capturing(v[0]):
        own = norms.split([t.numel() for t in g])
        parts = zip(dw, v, g, own, dims, eps, want_v, want_g, strict=True)
        made = [
            weight_norm_backward(a, b, c, n.view(c.shape), None if dim < 0 else dim, added, [one, other])
            for a, b, c, n, dim, added, one, other in parts
        ]
        dv, dg = [one for one, _ in made], [other for _, other in made]
    else:
        dv, dg = _with_device(v[0], many.backward, dw, v, g, norms, _dims(dims), want_v, want_g)
    laid_out = [laid_out_like(t, like) for t, like in zip(dv, v, strict=True) if t is not None]
    return laid_out, [t for t in dg if t is not None]


def _dims(dims: list[int]) -> list[Dim]:
    return [None if dim < 0 else dim for dim in dims]


def _with_device(first: Tensor, run: Callable[..., Any], *args: Any) -> Any:
    return _on_its_device(lambda _, *rest: run(*rest))(first, *args)


@_on_its_device
@fitting.retried
@_recorded
def linear(
    x: Tensor, v: Tensor, g: Tensor, bias: Tensor | None, dim: Dim, eps: float, relu: bool
) -> tuple[Tensor, Tensor]:
    return run_linear.forward(x, v, g, bias, dim, eps, relu, None)


@_on_its_device
@fitting.retried
@_recorded
def linear_backward(
    dy: Tensor, x: Tensor, v: Tensor, g: Tensor, norms: Tensor, y: Tensor | None, dim: Dim, eps: float, biased: bool,
    mask: list[bool],
) -> Gradients:  # fmt: skip
    dx, dv, dg, db = run_linear_backward.backward(dy, x, v, g, norms, y, dim, biased, mask)
    return dx, laid_out_like(dv, v), dg, db


@_on_its_device
@fitting.retried
@_recorded
def convolution(
    x: Tensor, v: Tensor, g: Tensor, bias: Tensor | None, stride: list[int], padding: list[int], dilation: list[int],
    transposed: bool, output_padding: list[int], groups: int, dim: Dim, eps: float, relu: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    geometry = (stride, padding, dilation, transposed, output_padding, groups)
    return run_conv.forward(x, v, g, bias, geometry, dim, eps, relu, None)


@_on_its_device
@fitting.retried
@_recorded
def convolution_backward(
    dy: Tensor, x: Tensor, v: Tensor, g: Tensor, norms: Tensor, y: Tensor | None, stride: list[int], padding: list[int],
    dilation: list[int], transposed: bool, output_padding: list[int], groups: int, dim: Dim, eps: float,
    mask: list[bool],
) -> Gradients:  # fmt: skip
    geometry = (stride, padding, dilation, transposed, output_padding, groups)
    dx, dv, dg, db = run_conv.backward(dy, x, v, g, norms, y, geometry, dim, mask)
    return laid_out_like(dx, x), laid_out_like(dv, v), dg, db
