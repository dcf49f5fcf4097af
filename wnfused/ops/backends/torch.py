"""The ``torch`` backend: the reference formulas, with gradients in the memory layout of their parameters.

It runs wherever PyTorch does. The formulas themselves ignore memory layout, because they are also differentiated,
vmapped and traced.
"""

from typing import Any

import torch
from torch import Tensor

from wnfused.ops import reference
from wnfused.ops.reference import Gradients, convolution, linear

__all__ = [
    "convolution",
    "convolution_backward",
    "linear",
    "linear_backward",
    "model_weights",
    "model_weights_backward",
    "weight_norm",
    "weight_norm_backward",
]


def laid_out_like(t: Tensor | None, like: Tensor) -> Any:
    if t is None or t.stride() == like.stride():
        return t
    return torch.empty_like(like, dtype=t.dtype).copy_(t)


def weight_norm(v: Tensor, g: Tensor, dim: int | None, eps: float) -> tuple[Tensor, Tensor]:
    w, norms = reference.weight_norm(v, g, dim, eps)
    return laid_out_like(w, v), norms


def weight_norm_backward(dw: Tensor, v: Tensor, g: Tensor, *rest: Any) -> Gradients:
    dv, dg = reference.weight_norm_backward(dw, v, g, *rest)
    return laid_out_like(dv, v), dg


def linear_backward(dy: Tensor, x: Tensor, v: Tensor, *rest: Any) -> Gradients:
    dx, dv, dg, db = reference.linear_backward(dy, x, v, *rest)
    return dx, laid_out_like(dv, v), dg, db


def convolution_backward(dy: Tensor, x: Tensor, v: Tensor, *rest: Any) -> Gradients:
    dx, dv, dg, db = reference.convolution_backward(dy, x, v, *rest)
    return laid_out_like(dx, x), laid_out_like(dv, v), dg, db


def model_weights(v: list[Tensor], *rest: Any) -> tuple[list[Tensor], Tensor]:
    weights, norms = reference.model_weights(v, *rest)
    return [laid_out_like(w, like) for w, like in zip(weights, v, strict=True)], norms


def model_weights_backward(dw: list[Tensor], v: list[Tensor], *rest: Any) -> tuple[list[Tensor], list[Tensor]]:
    dv, dg = reference.model_weights_backward(dw, v, *rest)
    like = [t for t, wanted in zip(v, rest[-2], strict=True) if wanted]
    return [laid_out_like(t, own) for t, own in zip(dv, like, strict=True)], dg
