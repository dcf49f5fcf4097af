"""Running a model once without leaving a trace in it: mode, buffers, attributes and random numbers come back."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """A context in eval mode and without gradients, after which the model is what it was before."""
    modules = [module for module in model.modules() if not isinstance(module, torch.jit.ScriptModule)]
    # Also the attributes: torch's weight_norm sets `weight` anew, and models count calls or keep their last output.
    attributes = [(module.__dict__, dict(module.__dict__)) for module in modules]
    tables = [
        (table, dict(table)) for module in modules for table in (module._parameters, module._buffers, module._modules)
    ]
    buffers = [(buffer, buffer._version, buffer.clone()) for buffer in model.buffers() if not buffer.is_inference()]
    try:
        for module in modules:
            module.training = False
        with torch.no_grad(), _same_random_numbers(model):
            yield
    finally:
        for now, before in [*attributes, *tables]:
            now.clear()
            now.update(before)
        with torch.no_grad():
            for buffer, version, value in buffers:
                if buffer._version != version:
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
