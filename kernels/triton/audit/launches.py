"""The kernels that a layer launches and their reads and writes, from the launch code run on tensors without data."""

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from wnfused.kernels.triton import run_conv, run_linear, run_linear_backward
from wnfused.kernels.triton.audit.processors import PROCESSORS
from wnfused.kernels.triton.dtypes import linear_dtypes
from wnfused.kernels.triton.launch import Launch as Record
from wnfused.kernels.triton.launch import consumed_by
from wnfused.kernels.triton.rules import Plan, Problem, Target, plan_by_rule


class Access(NamedTuple):
    tensor: int  # identifies the memory: equal for tensors that share it
    bytes: int


class Launch(NamedTuple):
    kernel: str
    reads: tuple[Access, ...]
    writes: tuple[Access, ...]
    products: int = 0  # multiply-adds on the tensor cores
    streamed: tuple[int, ...] = ()  # tensors stored with the hint to evict them first


class Layer(NamedTuple):
    """A linear layer, or a convolution of ``kernel`` taps a side on images of ``size``², in channels-last memory."""

    batch: int
    inputs: int
    outputs: int
    kernel: int = 0  # 0: linear
    size: int = 1

    def __str__(self) -> str:
        if not self.kernel:
            return f"Linear {self.batch},{self.inputs},{self.outputs}"
        return f"Conv2d {self.inputs}→{self.outputs} {self.kernel}×{self.kernel} @{self.size}², batch {self.batch}"

    @property
    def products(self) -> int:
        return self.batch * self.size**2 * self.inputs * self.outputs * max(1, self.kernel) ** 2


_WRITTEN = {
    "y",
    "partial",
    "squares_out",
    "dx",
    "dw",
    "dots",
    "dg",
    "dv",
    "db",
    "out",
    "w",
    "scales",
    "scaled",
    "factor",
    "sums",
}
_WRITTEN_BY = {"partial_norms": {"scales", "squares", "norms", "w"}, "combine_norms": {"norms"}}
_READ_BY = {
    "finish_linear": {"partial"},
    "finish_weight": {"dw", "dots", "sums"},
    "project": {"dw", "dots"},
    "prepare_gradient": {"y"},
    "few_rows_weight_gradient": {"y"},
    "linear_weight_gradient": {"y"},
    "linear_input_gradient": {"y", "factor"},
}
_WRITTEN_FIRST = {"scaled", "factor", "sums"}  # by the preparing programs, which a launch starts with
_STREAMED = {"finish_weight": "dv", "few_rows_weight_gradient": "dv", "linear_weight_gradient": "dw"}
_UNTOUCHED = {"finish_linear": {"v"}}  # read again only if a norm leaves float32's range


def forward(layer: Layer, target: str, dtype: torch.dtype, mode: str) -> list[Launch]:
    """mode: "single pass", "norms first" or "norms precomputed"."""
    x, v, g, norms, bias = _tensors(layer, dtype)
    known = norms if mode == "norms precomputed" else None
    with recorded(layer) as found:
        if layer.kernel:
            run_conv.forward(
                x, v, g, bias, _geometry(layer), 0, 0.0, False, known, plan=_plan(layer, "gather", target, x)
            )
        else:
            plan = _plan(layer, "linear", target, x)._replace(mode="single pass" if mode == "single pass" else mode)
            run_linear.forward(x, v, g, bias, 0, 0.0, False, known, plan=plan)
    return found


def backward(layer: Layer, target: str, dtype: torch.dtype, one_pass: bool = False) -> list[Launch]:
    """In two steps with a bias; in one pass with a fused ReLU and none (linear layers)."""
    x, v, g, norms, _ = _tensors(layer, dtype)
    dy = _output(layer, dtype)
    y = _output(layer, dtype) if one_pass else None
    mask = [True, True, True, not one_pass]
    kernels = ("scatter", "weight_gradient") if layer.kernel else ("linear_dx", "linear_dw")
    plans = (_plan(layer, kernels[0], target, x), _plan(layer, kernels[1], target, x))
    with recorded(layer) as found:
        if layer.kernel:
            run_conv.backward(dy, x, v, g, norms, y, _geometry(layer), 0, mask=mask, plans=plans)
        else:
            run_linear_backward.backward(dy, x, v, g, norms, y, 0, biased=not one_pass, mask=mask, plans=plans)
    return found


@contextlib.contextmanager
def recorded(layer: Layer) -> Iterator[list[Launch]]:
    """A context that records kernel launches instead of running them."""
    found: list[Launch] = []
    alive: list[Record] = []  # keeps tensors alive, so that addresses are not reused

    def consume(record: Record) -> None:
        alive.append(record)
        found.append(_accesses(record, layer))

    with consumed_by(consume):
        yield found


def _accesses(record: Record, layer: Layer) -> Launch:
    kernel, tensors, constants = record.name, record.tensors, record.constants
    written = _written(kernel, tensors, constants)
    untouched = _untouched(kernel, tensors, constants) | (written - _READ_BY.get(kernel, set()))
    products = layer.products if "BLOCK_K" in constants else 0
    if kernel == "few_rows_weight_gradient":
        products *= 2  # x · vᵀ and dyᵀ · x
    reads = tuple(_access(t) for n, t in tensors.items() if n not in untouched)
    writes = tuple(_access(tensors[n]) for n in sorted(written, key=lambda name: (name not in _WRITTEN_FIRST, name)))
    return Launch(kernel, reads, writes, products, _streamed(kernel, tensors, constants))


def _streamed(kernel: str, tensors: dict[str, Tensor], constants: dict[str, Any]) -> tuple[int, ...]:
    name = _STREAMED.get(kernel)
    if name not in tensors or constants.get("ONE_PASS", True) is False:
        return ()
    return (_access(tensors[name]).tensor,)


def _written(kernel: str, tensors: dict[str, Tensor], constants: dict[str, Any]) -> set[str]:
    written = set(_WRITTEN_BY.get(kernel, _WRITTEN)) & tensors.keys()
    written -= _READ_BY.get(kernel, set())
    if constants.get("ONE_PASS"):
        written.discard("dots")
    if constants.get("SPLIT") and kernel == "linear_forward":
        written.discard("y")
    elif constants.get("SINGLE_PASS"):
        written.add("norms")
    return written


def _untouched(kernel: str, tensors: dict[str, Tensor], constants: dict[str, Any]) -> set[str]:
    untouched = set(_UNTOUCHED.get(kernel, set()))
    if constants.get("SPLIT") and kernel == "linear_forward":
        untouched |= {"y", "g", "bias", "norms"}
    if kernel.endswith("weight_gradient") and "dots" not in tensors and not constants.get("ONE_PASS"):
        untouched |= {"v", "g", "norms"}
    return untouched


def _access(t: Tensor) -> Access:
    return Access(t.untyped_storage()._cdata, t.numel() * t.element_size())


def _tensors(layer: Layer, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    shape = (layer.batch, layer.inputs, *(layer.size,) * 2) if layer.kernel else (layer.batch, layer.inputs)
    taps = (layer.kernel,) * 2 if layer.kernel else ()
    g = _empty((layer.outputs, 1, *(1,) * len(taps)), dtype)
    v = _empty((layer.outputs, layer.inputs, *taps), dtype)
    return _empty(shape, dtype), v, g, g.float(), _empty((layer.outputs,), dtype)


def _output(layer: Layer, dtype: torch.dtype) -> Tensor:
    return _empty((layer.batch, layer.outputs, *((layer.size,) * 2 if layer.kernel else ())), dtype)


def _empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    format = torch.channels_last if len(shape) == 4 else torch.contiguous_format
    return torch.empty(shape, dtype=dtype, device="meta", memory_format=format)


def _geometry(layer: Layer) -> tuple:
    return [1, 1], [layer.kernel // 2] * 2, [1, 1], False, [0, 0], 1


def _plan(layer: Layer, kernel: str, target: str, x: Tensor) -> Plan:
    m, n, k = layer.batch * layer.size**2, layer.outputs, layer.inputs * max(1, layer.kernel) ** 2
    if kernel in ("linear_dx", "scatter"):
        n, k = layer.inputs, layer.outputs * max(1, layer.kernel) ** 2
    if kernel in ("linear_dw", "weight_gradient"):
        m, n, k = layer.outputs, layer.inputs, m
    taps = layer.kernel**2 if kernel == "weight_gradient" else 1
    problem = Problem(kernel, m, n, k, linear_dtypes(x, x), taps, kernel == "linear")
    return plan_by_rule(problem, Target(target, PROCESSORS[target].count), vendor=False)
