"""Layers to run on the emulator, forward and backward, against float64; drawn from a seed, or written out.

A failure prints the call that repeats it, for the top of the checkout:

    TRITON_INTERPRET=0 python -c 'from tests.support.ptx.layers import *; check(Layer(...))'
"""

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from unittest import mock

import torch
from torch import Tensor

from tests.support.reference import TF32_TOLERANCE, TOLERANCE, errors
from wnfused.kernels.triton import dtypes as dtype_names
from wnfused.kernels.triton import (
    run_conv,
    run_finish,
    run_linear,
    run_linear_backward,
    run_rows,
    run_vendor,
    support,
    tune,
)
from wnfused.kernels.triton.rules import Plan, Problem
from wnfused.ops import reference as formulas
from wnfused.ops.backends import triton as triton_backend

from .launch import POISONS, Conditions, Launches, emulated

DTYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
Tensors = tuple[Tensor | None, ...]
Numbers = tuple[int, ...]


@dataclass(frozen=True)
class Layer:
    """``kind``: "weight_norm", "linear", "convolution", "transposed"; ``dtypes``: as kernels/triton/dtypes.py says."""

    kind: str
    v: Numbers
    x: Numbers = ()
    dtypes: str = "fp32"
    dim: int | None = 0
    eps: float = 0.0
    relu: bool = False
    bias: bool = True
    stride: Numbers = ()
    padding: Numbers = ()
    dilation: Numbers = ()
    groups: int = 1
    last: bool = False  # channels last
    offset: int = 0  # elements by which x, v and dy start past an aligned address
    gap: int = 0  # elements between a linear layer's rows of x
    far: bool = False  # 64-bit addresses
    scale: float = 1.0  # of v
    plan: int | None = None  # draws a plan of each kernel; None: the rule's

    @property
    def types(self) -> tuple[torch.dtype, torch.dtype]:
        activations, _, weights = self.dtypes.partition("/")
        return DTYPES[activations], DTYPES[weights or activations]

    @property
    def geometry(self) -> tuple:
        n = len(self.v) - 2
        numbers = (list(self.stride) or [1] * n, list(self.padding) or [0] * n, list(self.dilation) or [1] * n)
        return *numbers, self.kind == "transposed", [0] * n, self.groups


def placed(t: Tensor, offset: int, gap: int = 0, last: bool = False) -> Tensor:
    """t's values, starting so many elements past an aligned address, with gaps after its rows or channels last."""
    shape = (*t.shape[:-1], t.shape[-1] + gap)
    room = torch.empty(offset + torch.Size(shape).numel(), dtype=t.dtype)[offset:]
    if last and t.ndim > 2:
        order = (0, *range(2, t.ndim), 1)
        back = (0, t.ndim - 1, *range(1, t.ndim - 1))
        return room.view([t.shape[i] for i in order]).permute(back).copy_(t)
    return room.view(shape)[..., : t.shape[-1]].copy_(t)


def tensors_of(layer: Layer) -> list[Tensor | None]:
    """x (if there is one), v, g, bias."""
    numbers = torch.Generator().manual_seed(7)
    activations, weights = layer.types

    def random_(shape: Numbers, dtype: torch.dtype) -> Tensor:
        return torch.randn(shape, generator=numbers, dtype=torch.float64).to(dtype)

    v = placed((random_(layer.v, torch.float64) * layer.scale).to(weights), layer.offset, last=layer.last)
    gain = formulas.gain_shape(layer.v, layer.dim)
    g = (torch.rand(gain, generator=numbers, dtype=torch.float64) + 0.5).to(weights)
    if layer.kind == "weight_norm":
        return [None, v, g, None]
    x = placed(random_(layer.x, activations), layer.offset, layer.gap, layer.last)
    outputs = layer.v[1] * layer.groups if layer.kind == "transposed" else layer.v[0]
    return [x, v, g, random_((outputs,), weights) if layer.bias else None]


def _forward(operators: object, layer: Layer, x: Tensor | None, v: Tensor, g: Tensor, b: Tensor | None) -> Tensors:
    if layer.kind == "weight_norm":
        return operators.weight_norm(v, g, layer.dim, layer.eps)
    if layer.kind == "linear":
        return operators.linear(x, v, g, b, layer.dim, layer.eps, layer.relu)
    return operators.convolution(x, v, g, b, *layer.geometry, layer.dim, layer.eps, layer.relu)


def _backward(
    operators: object,
    layer: Layer,
    dy: Tensor,
    x: Tensor | None,
    v: Tensor,
    g: Tensor,
    norms: Tensor | None,
    y: Tensor | None,
) -> Tensors:
    saved, mask = y if layer.relu else None, [True, True, True, layer.bias]
    if layer.kind == "weight_norm":
        return operators.weight_norm_backward(dy, v, g, norms, layer.dim, layer.eps, mask[:2])
    if layer.kind == "linear":
        return operators.linear_backward(dy, x, v, g, norms, saved, layer.dim, layer.eps, layer.bias, mask)
    return operators.convolution_backward(dy, x, v, g, norms, saved, *layer.geometry, layer.dim, layer.eps, mask)


@contextmanager
def _as_the_layer_says(layer: Layer) -> Iterator[None]:
    """Rounded products, 64-bit addresses and drawn plans, for launches inside."""
    rule = tune.plan

    def drawn(problem: Problem, device: torch.device) -> Plan:
        if layer.plan is None:
            return rule(problem, device)
        plans = [*tune.candidates(problem, support.target_of(device))]
        return random.Random(f"{layer.plan} {problem.kernel}").choice([p for p in plans if p.mode != "vendor"] or plans)

    name = lambda x, v: layer.dtypes if x.dtype != torch.float64 else "fp64"  # noqa: E731
    with ExitStack() as changed:
        changed.enter_context(mock.patch.object(tune, "plan", drawn))
        for module in (dtype_names, run_linear, run_linear_backward, run_conv):
            for function in ("linear_dtypes", "convolution_dtypes"):
                if hasattr(module, function):
                    changed.enter_context(mock.patch.object(module, function, name))
        if layer.far:
            for module in (run_conv, run_finish, run_linear, run_linear_backward, run_rows, run_vendor):
                changed.enter_context(mock.patch.object(module, "index64", return_value=True))
            run_rows._partition_of.cache_clear()
            changed.callback(run_rows._partition_of.cache_clear)
        yield


def forward_and_backward(
    layer: Layer, x: Tensor | None, v: Tensor | None, g: Tensor | None, b: Tensor | None
) -> tuple[dict[str, Tensor], Tensor]:
    """Results by name, and the dy that was used."""
    assert v is not None and g is not None
    with _as_the_layer_says(layer):
        y, norms = _forward(triton_backend, layer, x, v, g, b)
        assert y is not None and norms is not None
        noise = torch.randn(y.shape, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
        # Leaning towards y: dg = <dw, u> is then no sum of terms that cancel.
        dy = placed((noise + y.double()).to(y.dtype), layer.offset, last=layer.last)
        gradients = _backward(triton_backend, layer, dy, x, v, g, norms, y)
    return _named(layer, y, norms, gradients), dy


def _named(layer: Layer, y: Tensor, norms: Tensor, gradients: Tensors) -> dict[str, Tensor]:
    names = ["dv", "dg"] if layer.kind == "weight_norm" else ["dx", "dv", "dg", "db"]
    found = {"y": y, "norms": norms, **dict(zip(names, gradients, strict=True))}
    return {name: t for name, t in found.items() if t is not None}


def run(layer: Layer, conditions: Conditions, record: bool = False) -> tuple[dict[str, Tensor], Tensor, Launches]:
    """Results by name, the dy that was used, and what was launched."""
    inputs = tensors_of(layer)
    before = [None if t is None else t.clone() for t in inputs]
    with emulated(conditions, record) as launches:
        found, dy = forward_and_backward(layer, *inputs)
    for t, was in zip(inputs, before, strict=True):
        assert t is None or torch.equal(t, was), f"{layer}: an input was written to"
    return found, dy, launches


def wanted(layer: Layer, dy: Tensor, y: Tensor) -> dict[str, Tensor]:
    """The same in float64."""
    x, v, g, b = (None if t is None else t.double() for t in tensors_of(layer))
    assert v is not None and g is not None
    y_wide, norms = _forward(formulas, layer, x, v, g, b)
    gradients = _backward(formulas, layer, dy.double(), x, v, g, None, y.double())
    return _named(layer, y_wide, norms, gradients)


def differences(layer: Layer, found: dict[str, Tensor], dy: Tensor) -> list[str]:
    """What is not within the tolerance of its dtype, or of the products' where that is wider."""
    expected = wanted(layer, dy, found["y"])
    assert found.keys() == expected.keys(), layer
    wide = max(layer.types, key=lambda dtype: TOLERANCE[dtype])
    # dv = g/n (dw − c u): where the two cancel no result is closer than relative to them
    g = (tensors_of(layer)[2]).double()
    terms = (g * expected["dg"].view(g.shape) / expected["norms"].view(g.shape)).nan_to_num().abs().max().item()
    problems = []
    for name, t in found.items():
        if t.shape != expected[name].shape:
            problems.append(f"{name}: shape {tuple(t.shape)}, expected {tuple(expected[name].shape)}")
            continue
        largest, rms = errors(t, expected[name], terms if name == "dv" else 0.0)
        exact = name in ("norms", "db") and t.dtype == torch.float32
        allowed = TOLERANCE[torch.float32 if exact else wide]
        if layer.dtypes == "tf32" and not exact:
            allowed = TF32_TOLERANCE
        if not (largest <= allowed[0] and rms <= (allowed[0] if t.numel() < 16 else allowed[1])):
            problems.append(f"{name}: errors {largest:.2e}, {rms:.2e}, allowed {allowed}")
    return problems


def check(layer: Layer, seed: int = 0) -> set[str]:
    """Runs a layer under two conditions: results are right, the same bits, and no store is ambiguous. Its opcodes."""
    found, dy, launches = run(layer, Conditions(seed, POISONS[0]))
    again, _, _ = run(layer, Conditions(seed + 1, POISONS[1]))
    problems = differences(layer, found, dy)
    problems += [
        f"{name}: other bits in another order or with another poison"
        for name in found
        if _differ(found[name], again[name])
    ]
    problems += [
        f"{kernel}, PTX line {line}: lanes store different values to one address"
        for kernel, line in launches.conflicting
    ]
    assert not problems, "\n".join([f"check({layer}, seed={seed})", *problems])
    return launches.opcodes


def _differ(a: Tensor, b: Tensor) -> bool:
    return not torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))


def drawn(seed: int) -> Layer:
    """Any layer: kinds, dtypes, dims, options, geometry, layouts, alignments and plans."""
    draws = random.Random(seed)
    kind = draws.choice(["linear", "linear", "convolution", "convolution", "transposed", "weight_norm"])
    names = ["fp32", "tf32", "bf16", "fp16", "bf16/fp32", "fp16/fp32"]
    common = {
        "eps": draws.choice([0.0, 0.0, 1e-3]), "offset": draws.choice([0, 0, 0, 1, 2, 4]),
        "far": draws.random() < 0.15, "scale": draws.choice([1.0, 1.0, 1.0, 1e-3, 10.0]),
    }  # fmt: skip
    if kind == "weight_norm":
        shape = tuple(draws.choice([1, 2, 3, 5, 16, 33, 100, 300]) for _ in range(draws.randint(1, 3)))
        dim = draws.choice([None, *range(len(shape))])
        return Layer(kind, shape, dtypes=draws.choice([*names[:1], *names[2:4], "fp64"]), dim=dim, **common)
    common |= {
        "dtypes": draws.choice(names), "relu": draws.random() < 0.4, "bias": draws.random() < 0.6,
        "plan": draws.choice([None, draws.randrange(1000)]),
    }  # fmt: skip
    if kind == "linear":
        m, k, n = (draws.choice([1, 3, 8, 16, 17, 33, 64, 80, 96, 130, 160]) for _ in range(3))
        return Layer(
            kind, (n, k), (m, k), dim=draws.choice([0, 0, 0, 1, None]), gap=draws.choice([0, 0, 3, 16]), **common
        )
    return _drawn_convolution(kind, draws, common)


def _drawn_convolution(kind: str, draws: random.Random, common: dict) -> Layer:
    n = draws.choice([1, 2, 2, 3])
    kernel, stride, dilation = (tuple(draws.randint(1, most) for _ in range(n)) for most in (3, 3, 2))
    padding = tuple(
        draws.randint(0, d * (k - 1) // 2 if kind == "transposed" else 2) for k, d in zip(kernel, dilation, strict=True)
    )
    groups = draws.choice([1, 1, 1, 2, 3])
    inputs, outputs = (groups * draws.choice([1, 2, 5, 16, 32]) for _ in range(2))
    if draws.random() < 0.2:  # depthwise
        groups = inputs = outputs = draws.choice([3, 16, 40])
    v = (inputs, outputs // groups, *kernel) if kind == "transposed" else (outputs, inputs // groups, *kernel)
    size = tuple(d * (k - 1) + draws.randint(1, 12 if n == 1 else 5) for k, d in zip(kernel, dilation, strict=True))
    return Layer(
        kind, v, (draws.randint(1, 3), inputs, *size), dim=draws.choice([0, 0, 0, 1, None, 2]), stride=stride,
        padding=padding, dilation=dilation, groups=groups, last=draws.random() < 0.5, **common,
    )  # fmt: skip
