"""Running a model to look at it, without leaving a trace: mode, buffers, attributes, gradients, random numbers."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Inside, the model may run forward and backward, in either mode; afterwards it is what it was before.

    Gradients are out of the way meanwhile: what a backward pass leaves there is dropped.
    """
    modules = [module for module in model.modules() if not isinstance(module, torch.jit.ScriptModule)]
    # Also the attributes: torch's weight_norm sets `weight` anew, and models count calls or keep their last output.
    tables = [
        (table, dict(table))
        for module in modules
        for table in (module.__dict__, module._parameters, module._buffers, module._modules)
    ]
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    buffers = [(b, b.clone()) for b in model.buffers() if not b.is_meta and not b.is_inference()]
    for parameter, _ in gradients:
        parameter.grad = None
    try:
        with _same_random_numbers(model):
            yield
    finally:
        for now, before in tables:
            now.clear()
            now.update(before)
        for parameter, gradient in gradients:
            parameter.grad = gradient
        with torch.no_grad():
            for buffer, value in buffers:
                if not torch.equal(
                    buffer, value
                ):  # its version does not tell: batch norm writes without counting it up
                    buffer.copy_(value)


@contextmanager
def _same_random_numbers(model: nn.Module) -> Iterator[None]:
    gpus = sorted({p.device.index for p in model.parameters() if p.is_cuda})
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - the state that models without a generator use
    try:
        with torch.random.fork_rng(devices=gpus):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
