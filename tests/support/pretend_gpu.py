"""The launches of real layers, specialised and compiled as on a GPU, but not run. As a script: python pretend_gpu.py

The interpreter takes Python's numbers as they are, and the audit writes its own signatures. Here triton's launcher
makes them, from the arguments that the layers' code gives it: 1 becomes a constant, a float a float32, None goes away.
Prints a JSON object: for every case the kernels launched forward, and backward.
"""

import json
import os

os.environ["TRITON_INTERPRET"] = "0"

from typing import Any

import torch
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from wnfused.ops.backends import triton as triton_backend

GRID_LIMITS = (2**31 - 1, 65535, 65535)
ALL = [True, True, True, True]
launched: list[str] = []


class PretendDriver:
    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 80, 32)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


_run = JITFunction.run


def compile_only(kernel: JITFunction, *arguments: Any, grid: tuple[int, ...], warmup: bool, **options: Any) -> None:
    assert all(0 < size <= limit for size, limit in zip(grid, GRID_LIMITS, strict=False)), (kernel.__name__, grid)
    types = _run(kernel, *arguments, grid=grid, warmup=True, **options).src.signature
    assert types.get("v") != "*fp64" or types.get("eps", "fp64") == "fp64", "eps would be rounded on its way"
    launched.append(kernel.__name__)


def launches(call: Any) -> tuple[list[str], Any]:
    launched.clear()
    result = call()
    return [*launched], result


def linear(m: int, k: int, n: int, dtype: torch.dtype, weights: torch.dtype, relu: bool, dim: int = 0) -> list[Any]:
    x, v, dy = torch.randn(m, k, dtype=dtype), torch.randn(n, k, dtype=weights), torch.randn(m, n, dtype=dtype)
    g, bias = torch.ones((n, 1) if dim == 0 else (1, k), dtype=weights), None if relu else torch.ones(n, dtype=dtype)
    forward, (y, norms) = launches(lambda: triton_backend.linear(x, v, g, bias, dim, 1e-3, relu))
    saved = (x, v, g, norms, y if relu else None, dim, 1e-3, bias is not None)
    mask = [True, True, True, bias is not None]
    return [forward, launches(lambda: triton_backend.linear_backward(dy, *saved, mask))[0]]


def convolution(
    shape: tuple[int, ...], outputs: int, dtype: torch.dtype, *, groups: int = 1, stride: int = 1,
    transposed: bool = False, last: bool = False,
) -> list[Any]:  # fmt: skip
    x, spatial = torch.randn(shape, dtype=dtype), len(shape) - 2
    rows, columns = (shape[1], outputs) if transposed else (outputs, shape[1])
    v = torch.randn(rows, columns // groups, *(3,) * spatial, dtype=dtype)
    if last:
        x, v = (t.contiguous(memory_format=torch.channels_last) for t in (x, v))
    g = torch.ones(rows, *(1,) * (spatial + 1), dtype=dtype)
    walk = ([stride] * spatial, [1] * spatial, [1] * spatial, transposed, [0] * spatial, groups)
    bias: Tensor | None = torch.ones(outputs, dtype=dtype)
    forward, (y, norms) = launches(lambda: triton_backend.convolution(x, v, g, bias, *walk, 0, 0.0, False))
    dy = torch.empty_like(y)
    saved = (x, v, g, norms, None, *walk, 0, 0.0)
    return [forward, launches(lambda: triton_backend.convolution_backward(dy, *saved, ALL))[0]]


def weight_norm(shape: tuple[int, ...], dim: int | None, dtype: torch.dtype) -> list[Any]:
    v = torch.randn(shape, dtype=dtype)
    g = torch.ones([size if i == dim else 1 for i, size in enumerate(shape)], dtype=dtype)
    forward, (w, norms) = launches(lambda: triton_backend.weight_norm(v, g, dim, 1e-3))
    return [forward, launches(lambda: triton_backend.weight_norm_backward(w, v, g, norms, dim, 1e-3, [True, True]))[0]]


def cases() -> dict[str, list[Any]]:
    bf16, fp16, fp32, fp64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
    return {
        "linear, bf16": linear(64, 64, 128, bf16, bf16, relu=False),
        "linear, ReLU and no bias": linear(64, 64, 128, bf16, bf16, relu=True),
        "linear, few rows": linear(8, 64, 128, bf16, fp32, relu=False),
        "linear, odd": linear(33, 5, 7, fp32, fp32, relu=True),
        "linear, all ones": linear(1, 1, 1, fp32, fp32, relu=False),
        "linear, fp16/fp32": linear(64, 64, 64, fp16, fp32, relu=False),
        "linear, gain per input": linear(64, 64, 64, bf16, bf16, relu=False, dim=1),
        "images": convolution((2, 32, 8, 8), 16, bf16, last=True),
        "images, three channels": convolution((2, 3, 8, 8), 16, fp32, stride=2),
        "images, depthwise": convolution((2, 32, 8, 8), 32, bf16, groups=32, last=True),
        "signal": convolution((2, 4, 9), 6, fp32),
        "signal, transposed": convolution((1, 4, 9), 6, fp32, transposed=True, stride=2),
        "weight norm, fp64": weight_norm((7, 5), 0, fp64),
        "weight norm, one over all, fp64": weight_norm((300, 257), None, fp64),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    driver.set_active(PretendDriver())
    JITFunction.run = compile_only
    print(json.dumps(cases()))  # noqa: T201 - what the test reads
