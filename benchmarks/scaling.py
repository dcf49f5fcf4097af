"""How the ratio to the plain network changes with batch, width, depth and threads. ``wnfused bench --suite scaling``.

python -m benchmarks.scaling [--seconds 2] [--threads 1,2] [--json FILE] [--plot FILE]
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from wnfused.benchmarks.peers import PEERS, training_step, with_weight_norm
from wnfused.benchmarks.suite import Result, environment, results_of, table, write
from wnfused.diagnostics.timing import interleave
from wnfused.models import MLP, ResNet
from wnfused.plotting import figure


class Point(NamedTuple):
    axis: str
    value: int
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    threads: int


def points(threads: Sequence[int]) -> Iterator[Point]:
    most = max(threads)
    for batch in (1, 4, 16, 64, 256):
        yield Point("batch of Linear 512→512", batch, lambda: nn.Linear(512, 512), (batch, 512), most)
    for width in (128, 256, 512, 1024, 2048):
        yield Point("width of Linear, batch 128", width, _linear(width), (128, width), most)
    for channels in (16, 32, 64, 128, 256):
        make = _convolution(channels)
        yield Point("channels of Conv2d 3×3 @16², batch 16", channels, make, (16, channels, 16, 16), most)
    for depth in (2, 8, 32, 128):
        yield Point("layers of an MLP of 256, batch 64", depth, _mlp(depth), (64, 784), most)
    for blocks in (1, 3, 9, 18):
        yield Point("layers of a ResNet, batch 8", 6 * blocks + 2, _resnet(blocks), (8, 3, 32, 32), most)
    for count in threads:
        yield Point("threads, ResNet-20, batch 32", count, _resnet(3), (32, 3, 32, 32), count)


def _linear(width: int) -> Callable[[], nn.Module]:
    return lambda: nn.Linear(width, width)


def _convolution(channels: int) -> Callable[[], nn.Module]:
    return lambda: nn.Conv2d(channels, channels, 3, padding=1)


def _mlp(depth: int) -> Callable[[], nn.Module]:
    return lambda: MLP(depth, 256, norm="none")


def _resnet(blocks: int) -> Callable[[], nn.Module]:
    return lambda: ResNet(6 * blocks + 2, norm="none")


def measure(point: Point, seconds: float) -> list[Result]:
    torch.set_num_threads(point.threads)
    torch.manual_seed(0)
    plain, x = point.make(), torch.randn(point.shape)
    steps = {peer: training_step(with_weight_norm(plain, peer), x) for peer in PEERS}
    return results_of(f"{point.axis}: {point.value}", "step", interleave(steps, seconds=seconds))


def draw(results: Sequence[Result], file: Path) -> None:
    by_axis: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for r in results:
        axis, value = r.case.rsplit(": ", 1)
        by_axis.setdefault(axis, {}).setdefault(r.peer, []).append((int(value), r.relative))
    drawing = figure(figsize=(11, 6))
    for index, (axis, curves) in enumerate(by_axis.items(), 1):
        panel = drawing.add_subplot(2, (len(by_axis) + 1) // 2, index)
        for peer, curve in curves.items():
            if peer != "plain":
                panel.plot(*zip(*curve, strict=True), marker="o", label=peer)
        panel.axhline(1, color="gray", linewidth=0.8)
        values = sorted({value for curve in curves.values() for value, _ in curve})
        panel.set(xscale="log", title=axis, ylim=(0, 1.1 * max(y for curve in curves.values() for _, y in curve)))
        panel.set_xticks(values, list(map(str, values)))
        panel.set_xticks([], minor=True)
        panel.title.set_fontsize(9)
        if index == 1:
            panel.set_ylabel("time of a step, plain = 1")
            panel.legend(frameon=False, fontsize=8)
    drawing.tight_layout()
    drawing.savefig(file, dpi=100)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=2.0, help="measuring time per point")
    parser.add_argument("--threads", default="1,2", help="numbers of threads; the other axes use the largest")
    parser.add_argument("--json", type=Path, help="write the results as JSON")
    parser.add_argument("--plot", type=Path, help="draw the curves")
    options = parser.parse_args(argv)
    threads = [int(count) for count in options.threads.split(",")]
    print(
        f"Ratios to the plain network (20th–80th percentile), interleaved; {environment(max(threads))}.\n", flush=True
    )
    results: list[Result] = []
    for point in points(threads):
        rows = measure(point, options.seconds)
        print("\n".join(table(rows)[0 if not results else 2 :]), flush=True)
        results += rows
    if options.json:
        write(options.json, max(threads), results)
    if options.plot:
        draw(results, options.plot)


if __name__ == "__main__":
    main()
