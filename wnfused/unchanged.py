"""Run a model to inspect it and restore everything afterwards: mode, buffers, attributes, gradients, random state."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """A context in which the model may run forward and backward, in either mode; it is restored on exit.

    ``.grad`` is None inside the context. Gradients accumulated there are discarded.
    """
    modules = [module for module in model.modules() if not isinstance(module, torch.jit.ScriptModule)]
    # Attributes too: torch's weight_norm replaces `weight`, and some models count calls or keep their last output.
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
                # Compare values: batch norm writes its buffers without incrementing their version.
                if not torch.equal(buffer, value):
                    buffer.copy_(value)


@contextmanager
def _same_random_numbers(model: nn.Module) -> Iterator[None]:
    gpus = sorted({p.device.index for p in model.parameters() if p.is_cuda})
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - global state, used by models without a generator
    try:
        with torch.random.fork_rng(devices=gpus):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
