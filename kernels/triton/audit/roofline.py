"""DRAM bytes and the shortest time of a layer on each GPU: a model, not a measurement.

Every kernel reads and writes each of its tensors once. The most recently used tensors stay in the L2 cache as long as
whole tensors fit: reading them again is free, and a tensor that is overwritten in the cache is written back once. A
gradient that is stored with the hint to evict it first is not kept. The time of a kernel is the longer of its bytes at
peak bandwidth and its products at the peak rate; gaps between launches are ignored.
"""

from typing import NamedTuple

import torch

from wnfused.kernels.triton.audit.launches import Access, Launch, Layer, backward, forward
from wnfused.kernels.triton.audit.processors import PROCESSORS, Processor

SHAPES = (
    Layer(8, 4096, 4096),
    Layer(128, 512, 512),
    Layer(128, 1024, 1024),
    Layer(128, 3072, 3072),
    Layer(4096, 4096, 4096),
    Layer(16384, 4096, 4096),
    Layer(8, 64, 64, 3, 8),
    Layer(8, 640, 640, 3, 8),
    Layer(32, 256, 256, 3, 56),
)
FORWARD = ("plain", "torch weight_norm", "single pass", "norms first", "norms precomputed")
BACKWARD = ("plain", "torch weight_norm", "two steps", "plain, ReLU and no bias", "one pass, ReLU and no bias")


class Cost(NamedTuple):
    launches: int
    uncached: int  # bytes, as if there were no cache
    dram: int  # bytes
    microseconds: float


def cost(layer: Layer, target: str, direction: str, variant: str) -> Cost:
    launches = launches_of(layer, target, direction, variant)
    p = PROCESSORS[target]
    loads = dram_bytes(launches, int(p.l2 * 2**20))
    seconds = sum(_seconds(p, launch.products, load) for launch, load in zip(launches, loads, strict=True))
    uncached = sum(a.bytes for launch in launches for a in (*launch.reads, *launch.writes))
    return Cost(len(launches), uncached, sum(loads), seconds * 1e6)


def variants(layer: Layer, direction: str) -> tuple[str, ...]:
    """Convolutions have neither a single-pass forward nor a one-pass backward."""
    names = FORWARD if direction == "forward" else BACKWARD
    return tuple(n for n in names if not layer.kernel or not ("pass" in n or "ReLU" in n))


def launches_of(layer: Layer, target: str, direction: str, variant: str) -> list[Launch]:
    if variant.startswith(("plain", "torch")):
        return _theirs(layer, direction, variant)
    if direction == "forward":
        return forward(layer, target, torch.bfloat16, variant)
    return backward(layer, target, torch.bfloat16, variant.startswith("one pass"))


def _theirs(layer: Layer, direction: str, variant: str) -> list[Launch]:
    """torch's own kernels: one per product, one for the bias, one for a ReLU's mask, and one for each weight_norm."""
    pixels = layer.batch * layer.size**2
    sizes = {
        **dict.fromkeys(("x", "dx"), 2 * pixels * layer.inputs),
        **dict.fromkeys(("y", "dy", "dz"), 2 * pixels * layer.outputs),
        **dict.fromkeys(("v", "w", "dw", "dv"), 2 * layer.outputs * layer.inputs * max(1, layer.kernel) ** 2),
        **dict.fromkeys(("g", "bias", "dg", "db"), 2 * layer.outputs),
        "norms": 4 * layer.outputs,
    }

    def launch(name: str, reads: str, writes: str, products: int = 0) -> Launch:
        def named(names: str) -> tuple[Access, ...]:
            return tuple(Access(list(sizes).index(n), sizes[n]) for n in names.split())

        return Launch(name, named(reads), named(writes), products)

    normed = variant.startswith("torch")
    if direction == "forward":
        first = [launch("weight_norm", "v g", "w norms")] if normed else []
        return [*first, launch("product", "x w bias", "y", layer.products)]
    relu = "ReLU" in variant
    dy = "dz" if relu else "dy"
    return [
        *([launch("mask", "dy y", "dz")] if relu else []),
        launch("dx", f"{dy} w", "dx", layer.products),
        launch("dw", f"{dy} x", "dw", layer.products),
        *([] if relu else [launch("db", "dy", "db")]),
        *([launch("weight_norm", "dw v g norms", "dv dg")] if normed else []),
    ]


def dram_bytes(launches: list[Launch], cache: int) -> list[int]:
    """The bytes each launch moves from and to DRAM, with a cache that keeps the most recently used whole tensors."""
    held: dict[int, int] = {}  # tensor -> bytes, oldest first
    loads = []
    for launch in launches:
        # Tensors that are in the cache when a launch begins are read from it, in any order of the operands.
        load = sum(a.bytes for a in launch.reads if held.get(a.tensor, 0) < a.bytes)
        for access in launch.reads:
            _keep(held, access, cache)
        # A tensor that is overwritten while in the cache counts once, for its first writer.
        load += sum(a.bytes for a in launch.writes if held.get(a.tensor, 0) < a.bytes)
        for access in launch.writes:
            _keep(held, access, 0 if access.tensor in launch.streamed else cache)
        loads.append(load)
    return loads


def _keep(held: dict[int, int], access: Access, cache: int) -> None:
    held.pop(access.tensor, None)
    if access.bytes <= cache:
        held[access.tensor] = access.bytes
        while sum(held.values()) > cache:
            del held[next(iter(held))]


def _seconds(p: Processor, products: int, load: int) -> float:
    return max(load / (p.bandwidth * 1e9), 2 * products / (p.tflops * 1e12))
