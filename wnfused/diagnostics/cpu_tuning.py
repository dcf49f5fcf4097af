"""Measures the routes of a model's convolutions on this CPU (``wnfused tune --device cpu``).

The rule in ``kernels/cpu/plan.cpp`` chooses a route by shape. A model can be measured instead. The answers are
stored in a file, which is read only if ``WNFUSED_CPU_ROUTES`` names it.
"""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from wnfused.diagnostics.timing import interleave
from wnfused.files import write_atomically
from wnfused.model_io import arguments
from wnfused.ops.backends import native
from wnfused.ops.backends.native import PRODUCTS, ROUTES

__all__ = ["PRODUCTS", "ROUTES", "Convolution", "convolutions", "measure", "save", "tune"]


class Convolution(NamedTuple):
    """A convolution of contiguous float32 tensors, as the operator takes it."""

    x: tuple[int, ...]
    v: tuple[int, ...]
    g: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    output_padding: tuple[int, ...]
    groups: int
    dim: int | None

    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        numbers = torch.Generator().manual_seed(0)
        x, v = torch.randn(self.x, generator=numbers), torch.randn(self.v, generator=numbers)
        return x, v, torch.ones(self.g)

    def geometry(self) -> tuple[Any, ...]:
        return self.stride, self.padding, self.dilation, self.transposed, self.output_padding, self.groups


class _Recorder(TorchDispatchMode):
    """Notes the convolutions that a model calls."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: dict[Convolution, None] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.wnfused.convolution.default:
            x, v, g, _, *geometry, dim, _, _ = args
            if all(t.dtype == torch.float32 and t.is_contiguous() for t in (x, v)):
                fields = (x.shape, v.shape, g.shape, *geometry, dim)
                hashable = (tuple(f) if isinstance(f, list | torch.Size) else f for f in fields)
                self.found[Convolution._make(hashable)] = None
        return func(*args, **(kwargs or {}))


def convolutions(model: nn.Module, example: Any) -> list[Convolution]:
    """The weight-normalized convolutions of ``model`` on ``example``, each once, in the order of their calls."""
    with _Recorder() as recorder, torch.no_grad():
        args, kwargs = arguments(example)
        model(*args, **kwargs)
    return list(recorder.found)


def call(problem: Convolution, product: int) -> Callable[[], object]:
    """A function that computes one product with the operator."""
    (x, v, g), geometry, dim = problem.tensors(), problem.geometry(), problem.dim
    y, norms = torch.ops.wnfused.convolution(x, v, g, None, *geometry, dim, 0.0, False)
    if product == 0:
        return lambda: torch.ops.wnfused.convolution(x, v, g, None, *geometry, dim, 0.0, False)
    dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
    mask = [True, False, False, False] if product == 1 else [False, True, True, True]
    backward = torch.ops.wnfused.convolution_backward
    return lambda: backward(dy, x, v, g, norms, None, *geometry, dim, 0.0, mask)


def measure(problem: Convolution, product: int, seconds: float) -> dict[str, float]:
    """Microseconds of each route that can compute the product, interleaved."""
    plan, named = torch.ops.wnfused_plan, (*problem.tensors(), *problem.geometry(), problem.dim)
    function = call(problem, product)

    def on(route: int) -> Callable[[], object]:
        def run() -> None:
            plan.set_route(product, route, *named)
            function()

        return run

    routes = {name: on(r) for r, name in enumerate(ROUTES) if plan.terms(product, r, *named)}
    try:
        timings = interleave(routes, seconds=seconds, slice_seconds=0.002)
    finally:
        plan.forget_routes()
    base = timings[ROUTES[0]].seconds * 1e6
    return {name: round(base * timing.ratio, 2) for name, timing in timings.items()}


def tune(problems: Iterable[Convolution], seconds: float = 0.3) -> list[dict[str, Any]]:
    """The fastest route of each product: entries for ``save``."""
    if reason := native.load():
        raise RuntimeError(f"tune: the native kernels cannot be used: {reason}")
    answers = []
    for problem in problems:
        for product, name in enumerate(PRODUCTS):
            times = measure(problem, product, seconds)
            answers.append(
                {
                    **problem._asdict(),
                    "product": name,
                    "route": min(times, key=times.__getitem__),
                    "microseconds": times,
                }
            )
    return answers


def save(answers: list[dict[str, Any]], file: Path) -> None:
    lines = ",\n".join(json.dumps(answer) for answer in answers)
    threads = torch.get_num_threads()
    write_atomically(
        file, f'{{"torch": "{torch.__version__}", "threads": {threads}, "routes": [\n{lines}\n]}}\n'.encode()
    )
