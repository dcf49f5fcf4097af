"""Leaving a model as it was: gradients, buffers and random states across a measurement."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Inside, the model may run forward and backward; its gradients, buffers and torch's random state come back."""
    gradients = [(p, p.grad) for p in model.parameters()]
    buffers = [(b, b.detach().clone()) for b in model.buffers()]
    for p, _ in gradients:
        p.grad = None
    try:
        with torch.random.fork_rng(devices=sorted({p.device.index for p, _ in gradients if p.device.type == "cuda"})):
            yield
    finally:
        for p, gradient in gradients:
            p.grad = gradient
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
