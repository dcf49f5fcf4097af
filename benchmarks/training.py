"""Whole training steps (loss, backward, SGD) of one network under each normalization. Run by ``make bench-train``.

python -m benchmarks.training [--threads 2] [--seconds 20] [--models resnet20,resnet110] [--batches 128,8] [--json FILE]
"""

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wnfused.benchmarks.suite import environment
from wnfused.data import Augmentation, Loader, Split
from wnfused.diagnostics.timing import interleave
from wnfused.train import Config, Progress
from wnfused.train.data import Images
from wnfused.train.distributed import World
from wnfused.train.loop import Trainer
from wnfused.train.model import network
from wnfused.train.optimization import sgd
from wnfused.train.run_directory import RunDirectory

SHAPE, CLASSES = (3, 32, 32), 10
# The first is the baseline. All but batch norm start as the same function.
VARIANTS: dict[str, dict[str, Any]] = {
    "no normalization": {"norm": "none"},
    "wnfused": {"norm": "weight"},
    "torch weight_norm": {"norm": "weight", "impl": "torch"},
    "batch norm": {"norm": "batch"},
}
RATE = 1e-4  # small enough that no network diverges


def settings(model: str, batch: int, **changes: Any) -> Config:
    return Config(model=model, batch_size=batch, lr=RATE, device="cpu", validation=0.0, **changes)


def build(config: Config, images: Tensor) -> nn.Module:
    return network(config, SHAPE, CLASSES, lambda: images)


def example(batch: int) -> tuple[Tensor, Tensor]:
    numbers = torch.Generator().manual_seed(0)
    return torch.randn(batch, *SHAPE, generator=numbers), torch.randint(CLASSES, (batch,), generator=numbers)


def bare_step(config: Config, images: Tensor, labels: Tensor) -> Callable[[], None]:
    """The minimal training step: model, loss, optimizer."""
    model = build(config, images)
    optimizer = sgd(model, config)

    def step() -> None:
        F.cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


@contextmanager
def trainer_of(config: Config, images: Tensor) -> Iterator[Trainer]:
    """A trainer on random images, with a temporary run directory."""
    numbers = torch.Generator().manual_seed(0)
    count = 2 * config.batch_size
    bytes_ = torch.randint(256, (count, *SHAPE), generator=numbers, dtype=torch.uint8)
    split = Split(bytes_, torch.randint(CLASSES, (count,), generator=numbers))
    loader = Loader(
        split, config.batch_size, mean=(0.5,) * 3, std=(0.25,) * 3, augmentation=Augmentation(crop=4, flip=True)
    )
    with tempfile.TemporaryDirectory() as folder:
        world = World(0, 1, torch.device("cpu"))
        held = Images(loader, None, loader, images, SHAPE, CLASSES)
        yield Trainer(config, build(config, images), held, RunDirectory(Path(folder)), world, Progress())


def measure_steps(model: str, batch: int, seconds: float) -> dict[str, Any]:
    images, labels = example(batch)
    steps = {name: bare_step(settings(model, batch, **more), images, labels) for name, more in VARIANTS.items()}
    return {name: asdict(timing) for name, timing in interleave(steps, seconds=seconds).items()}


def measure_overhead(batch: int, seconds: float) -> dict[str, float]:
    """Seconds per step that the training loop adds to the bare step, and seconds per batch of the loader.

    Measured on the smallest network: the overhead in Python does not depend on the model, and a few microseconds would
    be lost in the noise of a large one.
    """
    images, labels = example(batch)
    config = settings("mlp-1-1", batch)
    with trainer_of(config, images) as trainer:
        batches = endless(trainer.images.train)

        def loop() -> None:
            trainer.batch = 0
            trainer.advance(images, labels)

        functions: dict[str, Callable[[], object]] = {
            "bare": bare_step(config, images, labels),
            "loop": loop,
            "loader": lambda: next(batches),
        }
        timings = interleave(functions, seconds=seconds)
    return {
        "loop": timings["loop"].seconds - timings["bare"].seconds,
        "loader": timings["loader"].seconds,
    }


def endless(loader: Loader) -> Iterator[tuple[Tensor, Tensor]]:
    epoch = 0
    while True:
        yield from loader.epoch(epoch)
        epoch += 1


def row(model: str, batch: int, timings: dict[str, Any]) -> str:
    base, *others = VARIANTS
    ratios = " | ".join(f"{timings[name]['ratio']:.3f}" for name in others)
    return f"| {model}, batch {batch} | {timings[base]['seconds'] * 1e3:.4g} ms | {ratios} |"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=20.0, help="measuring time per row, at least 25 rounds")
    parser.add_argument("--models", default="resnet20,resnet110")
    parser.add_argument("--batches", default="128,8")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    print(f"Whole training steps, interleaved, relative to no normalization; {environment(options.threads)}.\n")
    print(f"| network | {' | '.join(VARIANTS)} |\n|---|{'---|' * len(VARIANTS)}", flush=True)
    results: dict[str, Any] = {}
    for model in options.models.split(","):
        for batch in map(int, options.batches.split(",")):
            results[f"{model}, batch {batch}"] = timings = measure_steps(model, batch, options.seconds)
            print(row(model, batch, timings), flush=True)
    batch = int(options.batches.split(",")[0])
    overhead = measure_overhead(batch, options.seconds)
    step = results[f"{options.models.split(',')[0]}, batch {batch}"]["wnfused"]["seconds"]
    print(f"\nOverhead outside the model at batch {batch}:")
    for name, seconds in overhead.items():
        share = f"{seconds / step:.2%} of a step of {options.models.split(',')[0]}"
        print(f"- {name}: {seconds * 1e6:.0f} µs per step, {share}")
    if options.json:
        facts = {"environment": environment(options.threads), "steps": results, "overhead": overhead}
        options.json.write_text(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()
