"""Layers that together launch every kernel, and what the tests ask of one in a process that compiles."""

from collections import Counter
from typing import Any
from unittest import mock

import torch
from triton.runtime.jit import JITFunction, mangle_type

from . import models
from .launch import Conditions, Launch
from .layers import Layer, differences, forward_and_backward, run, tensors_of
from .mutations import mutations, verdict

LAYERS = [
    Layer("linear", (70, 96), (40, 96), "bf16"),
    Layer("linear", (17, 45), (33, 45)),
    Layer("linear", (64, 96), (70, 96), "tf32", relu=True, bias=False),
    Layer("linear", (40, 64), (9, 64), "bf16/fp32", eps=1e-3),
    Layer("linear", (40, 64), (40, 64), "fp16", offset=1, gap=3),
    Layer("linear", (40, 50), (33, 50), "fp16/fp32", relu=True),
    Layer("linear", (33, 40), (21, 40), "bf16", dim=1),
    Layer("linear", (17, 45), (33, 45), far=True, scale=1e-30),
    Layer("linear", (20, 4096), (5, 4096), "bf16"),
    Layer("convolution", (32, 32, 3, 3), (2, 32, 6, 6), "bf16", padding=(1, 1), last=True),
    Layer("convolution", (16, 3, 3, 3), (2, 3, 9, 9), "tf32", stride=(2, 2), padding=(1, 1), relu=True),
    Layer("convolution", (6, 4, 3), (2, 4, 9), dim=2, dilation=(2,)),
    Layer("convolution", (8, 4, 2, 1, 3), (1, 8, 3, 4, 5), "fp16", groups=2, offset=1, bias=False),
    Layer("convolution", (32, 1, 3, 3), (2, 32, 6, 6), "fp32", groups=32, last=True, relu=True),
    Layer("transposed", (4, 6, 3), (1, 4, 9), stride=(2,)),
    Layer("transposed", (16, 16, 2, 2), (2, 16, 3, 3), "bf16/fp32", stride=(2, 2), last=True, far=True),
    Layer("linear", (90, 40), (3, 40), "fp64"),
    Layer("weight_norm", (7, 5), dtypes="fp64", eps=1e-3),
    Layer("weight_norm", (300, 257), dtypes="fp64", dim=None),
    Layer("weight_norm", (70, 40, 3), dtypes="bf16", dim=1, offset=1),
]


def pointers_launched(layer: Layer) -> list[tuple[str, dict[str, str]]]:
    """The kernels a layer launches, without running them: names, and their tensors' types as triton writes them."""
    found: list[tuple[str, dict[str, str]]] = []

    def note(kernel: JITFunction, *arguments: Any, **options: Any) -> None:
        values = {**dict(zip(kernel.arg_names, arguments, strict=False)), **options}
        types = {name: mangle_type(t) for name, t in values.items() if isinstance(t, torch.Tensor)}
        found.append((kernel.__name__, types))

    with mock.patch.object(JITFunction, "run", note):
        forward_and_backward(layer, *tensors_of(layer))
    return found


def check_zeros(layer: Layer) -> None:
    """Fails with what a comparison says of results that are all zeros, after it passed the right ones."""
    found, dy, _ = run(layer, Conditions())
    assert not differences(layer, found, dy)
    zeros = {name: torch.zeros_like(t) for name, t in found.items()}
    said = differences(layer, zeros, dy)
    assert not said, "\n".join(said)


def first_launch(kernel: str) -> Launch:
    """Of a kernel, in the first of the layers that launch it, or in a model."""
    if kernel in models.KERNELS:
        recorded = models.run(models.FAULTY, Conditions(), record=True)[1].recorded
    else:
        (layer, *_) = (layer for layer in LAYERS if kernel in dict(pointers_launched(layer)))
        recorded = run(layer, Conditions(), record=True)[2].recorded
    (launch, *_) = (launch for launch in recorded if launch.program.kernel.name == kernel)
    return launch


def verdicts(kernel: str) -> Counter[tuple[str, str]]:
    """Of each fault in a kernel: how many, by kind and verdict."""
    launch = first_launch(kernel)
    whole = launch.copied()
    assert not whole.run()
    faults = mutations(launch.program.kernel)
    return Counter((fault.kind, verdict(launch, whole.tensors(), fault)) for fault in faults)
