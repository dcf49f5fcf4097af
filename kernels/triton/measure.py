"""Measures plans on the GPU for ``wnfused tune``: the layers whose problems are tuned, and their timing."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from wnfused.kernels.triton import rules, run_conv, run_linear, run_linear_backward, run_rows, support, tune
from wnfused.kernels.triton.rules import Plan, Problem

Calls = dict[Problem, Callable[[Plan], object]]  # a layer's problems, each with what runs it under a plan


class Layer(NamedTuple):
    """A layer at a batch size: a linear one [m, k] → n, or a 3×3 channels-last convolution of size×size images."""

    kind: str  # "linear" or "conv"
    batch: int
    inputs: int
    outputs: int
    size: int = 1

    def __str__(self) -> str:
        image = "" if self.kind == "linear" else f" @{self.size}²"
        return f"{self.kind} {self.batch},{self.inputs},{self.outputs}{image}"


LAYERS = (
    Layer("linear", 16, 4096, 4096),
    Layer("linear", 128, 1024, 1024),
    Layer("linear", 2048, 1024, 1024),
    Layer("linear", 4096, 4096, 4096),
    Layer("conv", 128, 64, 64, 32),
    Layer("conv", 128, 160, 160, 32),
    Layer("conv", 128, 640, 640, 8),
)


def tune_layers(
    layers: Sequence[Layer], dtype: torch.dtype, weights: torch.dtype, device: torch.device,
    progress: Callable[[Layer], None],
) -> dict[Problem, Plan]:  # fmt: skip
    """The winners for activations of one dtype and weights of another, or the same."""
    winners: dict[Problem, Plan] = {}
    for layer in layers:
        progress(layer)
        with support.on_device(device):
            measurable = calls(layer, dtype, weights, device)
            winners |= tune.tune(measurable, device, lambda problem, plan, m=measurable: _time(m[problem], plan))
    return winners


def _time(call: Callable[[Plan], object], plan: Plan) -> float:
    """In a CUDA graph: layers that take less time than the host needs to launch them would be ranked by noise."""
    return triton.testing.do_bench_cudagraph(lambda: call(plan), return_mode="median") * 1e-3


def calls(layer: Layer, dtype: torch.dtype, weights: torch.dtype, device: torch.device) -> Calls:
    found = (_linear if layer.kind == "linear" else _conv)(layer, dtype, weights, device)
    return {rules.bucketed(problem): call for problem, call in found.items()}


def _linear(layer: Layer, dtype: torch.dtype, weights: torch.dtype, device: torch.device) -> Calls:
    m, k, n = layer.batch, layer.inputs, layer.outputs
    x, v = torch.randn(m, k, dtype=dtype, device=device), torch.randn(n, k, dtype=weights, device=device)
    g, dy = torch.ones(n, 1, dtype=weights, device=device), torch.randn(m, n, dtype=dtype, device=device)
    norms = run_rows.row_norms(v, g, 0, 0.0)
    alone = run_linear.forward_gain(x, v, 0) == "output"  # the forward may compute the norms itself
    forward, known = (run_linear.problem_of("linear", m, n, k, x, v, single) for single in (alone, False))
    dx, dw = run_linear_backward.problems(x, v)
    arguments = (dy, x, v, g, norms, None, 0, True)
    return {
        known: lambda plan: run_linear.forward(x, v, g, None, 0, 0.0, False, norms, plan),
        forward: lambda plan: run_linear.forward(x, v, g, None, 0, 0.0, False, None, plan),
        dx: _backward(run_linear_backward.backward, arguments, [True, False, False, False]),
        dw: _backward(run_linear_backward.backward, arguments, [False, True, True, True]),
    }


def _conv(layer: Layer, dtype: torch.dtype, weights: torch.dtype, device: torch.device) -> Calls:
    def images(channels: int) -> Tensor:
        t = torch.randn(layer.batch, channels, layer.size, layer.size, dtype=dtype, device=device)
        return t.contiguous(memory_format=torch.channels_last)

    x, dy = images(layer.inputs), images(layer.outputs)
    v = torch.randn(layer.outputs, layer.inputs, 3, 3, dtype=weights, device=device)
    v = v.contiguous(memory_format=torch.channels_last)
    g = torch.ones(layer.outputs, 1, 1, 1, dtype=weights, device=device)
    geometry = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    norms = run_rows.row_norms(v, g, 0, 0.0)
    walk = run_conv.walk_of(v, [1, 1], [1, 1], [1, 1], 1)
    arguments = (dy, x, v, g, norms, None, geometry, 0)
    return {
        run_conv.gather_problem(x, dy, v, walk): lambda plan: run_conv.forward(
            x, v, g, None, geometry, 0, 0.0, False, plan=plan
        ),
        run_conv.scatter_problem(dy, x, v, walk): _backward(run_conv.backward, arguments, [True, False, False, False]),
        run_conv.weight_problem(dy, x, v, walk): _backward(run_conv.backward, arguments, [False, True, True, True]),
    }


def _backward(run: Callable[..., object], arguments: tuple, mask: list[bool]) -> Callable[[Plan], object]:
    """Under a plan for both kernels: the mask leaves only the one that is measured."""
    return lambda plan: run(*arguments, mask, plans=(plan, plan))


def why_not(device: torch.device) -> str | None:
    """None if plans can be measured on this device."""
    if device.type != "cuda":
        return f"tuning measures on a GPU, not on {device.type!r}"
    if not torch.cuda.is_available():
        return "no GPU is visible to torch"
    return "TRITON_INTERPRET is set" if support.interpreted() else support.why_not(device)
