"""``warm_up``: plan, compile and record all GPU calls of a model before it is captured or measured."""

from typing import Any

import torch
from torch import nn

from wnfused import checks
from wnfused.model_io import arguments, tensors_in
from wnfused.unchanged import unchanged

__all__ = ["warm_up"]


def warm_up(model: nn.Module, example: Any) -> None:
    """Run ``model`` forward and backward on ``example`` so that later calls of the same shapes compile nothing.

    The first call of a layer with new shapes plans and compiles its kernels, which a CUDA graph cannot record: call
    this before the capture, under the same autocast and with the same ``requires_grad`` as the captured step. The
    example is a tensor, a tuple of arguments or a dict of keyword arguments, as the model takes them. Parameters,
    gradients, buffers and random state are left unchanged. Without gradients (``torch.no_grad()``) only the forward
    runs.
    """
    checks.module("warm_up", model)
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        raise RuntimeError("warm_up: called during CUDA graph capture; call it before the capture")
    given, (args, kwargs) = list(tensors_in(example)), arguments(example)
    for own, copy in zip(given, tensors_in((args, kwargs)), strict=True):
        copy.requires_grad_(own.requires_grad)
    with unchanged(model):
        outputs = [t for t in tensors_in(model(*args, **kwargs)) if t.requires_grad]
        if outputs and torch.is_grad_enabled():
            torch.autograd.backward(outputs, [torch.ones_like(t) for t in outputs])
    if torch.cuda.is_available():
        torch.cuda.synchronize()
