"""Launch records: what a call describes, who consumes it, and that the order of a launch's programs does not matter."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.triton_cases import DEVICE, ON_GPU
from wnfused.kernels.triton.launch import Launch, consumed_by
from wnfused.ops.backends import triton as triton_backend

ALL = [True] * 4
Results = list[Tensor]


def linear(m: int, k: int, n: int, dtype: torch.dtype, relu: bool = False, dim: int | None = 0) -> Results:
    x, v, dy = (torch.randn(shape, dtype=dtype, device=DEVICE) for shape in ((m, k), (n, k), (m, n)))
    g = torch.rand({0: (n, 1), 1: (1, k)}.get(dim, ()), dtype=dtype, device=DEVICE)
    bias = None if relu else torch.randn(n, dtype=dtype, device=DEVICE)
    y, norms = triton_backend.linear(x, v, g, bias, dim, 0.0, relu)
    saved = (x, v, g, norms, y if relu else None, dim, 0.0, bias is not None)
    mask = [True, True, True, bias is not None]
    return [y, norms, *(t for t in triton_backend.linear_backward(dy, *saved, mask) if t is not None)]


def convolution(channels: int, outputs: int, *, groups: int = 1, stride: int = 1, transposed: bool = False) -> Results:
    x = torch.randn(2, channels, 9, 7, device=DEVICE).contiguous(memory_format=torch.channels_last)
    rows, columns = (channels, outputs) if transposed else (outputs, channels)
    v = torch.randn(rows, columns // groups, 3, 3, device=DEVICE).contiguous(memory_format=torch.channels_last)
    g, bias = torch.rand(rows, 1, 1, 1, device=DEVICE), torch.randn(outputs, device=DEVICE)
    walk = ([stride] * 2, [1, 1], [1, 1], transposed, [0, 0], groups)
    y, norms = triton_backend.convolution(x, v, g, bias, *walk, 0, 0.0, False)
    found = triton_backend.convolution_backward(torch.randn_like(y), x, v, g, norms, None, *walk, 0, 0.0, ALL)
    return [y, norms, *(t for t in found if t is not None)]


def model_weights() -> Results:
    v = [torch.randn(shape, device=DEVICE) for shape in ((7, 5), (60, 3), (9, 8, 3), (6, 1048))]
    dims, every = [0, 1, 2, 0], [True] * 4
    g = [
        torch.rand([n if i == dim else 1 for i, n in enumerate(t.shape)], device=DEVICE)
        for t, dim in zip(v, dims, strict=True)
    ]
    w, norms = triton_backend.model_weights(v, g, dims, [0.0] * 4, torch.bfloat16)
    dw = [torch.randn_like(t) for t in w]
    dv, dg = triton_backend.model_weights_backward(dw, v, g, norms, dims, [0.0] * 4, every, every)
    return [*w, norms, *dv, *dg]


CASES: dict[str, Callable[[], Results]] = {
    "linear": lambda: linear(40, 70, 90, torch.float32),
    "linear, one pass": lambda: linear(70, 40, 90, torch.float32, relu=True),
    "linear, few rows": lambda: linear(3, 70, 90, torch.float32),
    "linear, float16": lambda: linear(70, 40, 90, torch.float16),
    "linear, gain per input": lambda: linear(40, 70, 90, torch.float32, dim=1),
    "linear, one norm": lambda: linear(40, 270, 190, torch.float32, dim=None),
    "linear, split-K": lambda: linear(3, 4100, 20, torch.float32),
    "convolution": lambda: convolution(16, 32, stride=2),
    "depthwise": lambda: convolution(40, 40, groups=40),
    "transposed": lambda: convolution(16, 32, stride=2, transposed=True),
    "model weights": model_weights,
}


def permuted(seed: int) -> Callable[[Launch], None]:
    """A consumer that runs each launch's programs in reverse (seed 0) or in a shuffled order."""
    from triton.runtime import interpreter

    builder = interpreter.interpreter_builder

    def run(record: Launch) -> None:
        grid = (*record.grid, 1, 1)[:3]
        programs = [(x, y, z) for x in range(grid[0]) for y in range(grid[1]) for z in range(grid[2])]
        order = [*reversed(programs)]
        if seed:
            random.Random(seed).shuffle(order)
        instead, original = dict(zip(programs, order, strict=True)), builder.set_grid_idx
        builder.set_grid_idx = lambda *program: original(*instead[program])
        try:
            record.run()
        finally:
            del builder.set_grid_idx

    return run


@pytest.mark.skipif(ON_GPU, reason="only the interpreter lets a test choose the order of programs")
@pytest.mark.parametrize("name", CASES)
def test_the_order_of_programs_does_not_matter(name: str) -> None:
    """Bit for bit: otherwise a program would read what another one of the same launch writes."""
    torch.manual_seed(1)
    expected = CASES[name]()
    for seed in (0, 1, 2):
        torch.manual_seed(1)
        with consumed_by(permuted(seed)):
            found = CASES[name]()
        for a, b in zip(expected, found, strict=True):
            assert torch.equal(a, b)


@pytest.mark.skipif(ON_GPU, reason="only the interpreter lets a test choose the order of programs")
def test_an_order_that_matters_would_be_noticed() -> None:
    """Programs that are left out change the result, so the permutation does reach the interpreter."""
    torch.manual_seed(1)
    expected = linear(40, 70, 90, torch.float32)
    torch.manual_seed(1)

    def half(record: Launch) -> None:
        record._replace(grid=(record.grid[0] // 2 or 1, *record.grid[1:])).run()

    with consumed_by(half):
        found = linear(40, 70, 90, torch.float32)
    assert not all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


def test_a_record_describes_its_launch() -> None:
    records: list[Launch] = []

    def consume(record: Launch) -> Any:
        records.append(record)
        record.run()

    with consumed_by(consume):
        linear(40, 70, 90, torch.float32)
    assert [record.name for record in records] == [
        "linear_forward", "linear_weight_gradient", "finish_weight", "linear_input_gradient",
    ]  # fmt: skip
    forward = records[0]
    assert forward.tensors.keys() >= {"x", "v", "g", "norms", "bias", "y"}
    assert forward.tensors["v"].shape == (90, 70) and forward.constants["BLOCK_M"] > 0
    assert len(forward.arguments) + len(forward.constants) == len(forward.kernel.arg_names)
    assert forward.options["num_warps"] in (1, 2, 4, 8)
