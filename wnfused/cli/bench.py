"""``wnfused bench``: measure the speed on this machine, as ``make bench`` does in a checkout."""

import argparse
from importlib import import_module

from wnfused.cli.commands import cannot_write, command, fail

SUITES = {
    "layers": "layers, forward + backward, against plain torch.nn and torch's weight_norm (default)",
    "training": "whole training steps: wnfused, torch's weight_norm, batch norm, no normalization",
    "streaming": "chunks of a few frames through a HiFi-GAN generator, against torch's weight_norm left in place",
    "gpu": "the layers on a GPU, by dtype",
}
# An option that the selected suite does not have is refused by its own parser.
OPTIONS = {
    "only": ("TEXT", "layers, gpu: measure only rows whose name contains TEXT"),
    "seconds": ("S", "measuring time per row"),
    "threads": ("N", "layers, training, streaming: threads of torch (2)"),
    "models": ("NAMES", "training: networks, separated by commas (resnet20,resnet110)"),
    "batches": ("SIZES", "training: batch sizes, separated by commas (128,8)"),
    "frames": ("SIZES", "streaming: frames of a chunk, separated by commas (4,16)"),
    "device": ("DEVICE", "gpu: device (cuda)"),
    "json": ("FILE", "write the results as JSON"),
    "markdown": ("FILE", "layers: write the table as Markdown"),
}


def _bench_arguments(parser: argparse.ArgumentParser) -> None:
    suites = "; ".join(f"{name}: {about}" for name, about in SUITES.items())
    parser.add_argument("--suite", choices=tuple(SUITES), default="layers", metavar="SUITE", help=suites)
    for name, (metavar, about) in OPTIONS.items():
        parser.add_argument(f"--{name}", metavar=metavar, help=about)


@command("bench", "measure the speed of layers or training steps on this machine", _bench_arguments)
def bench(args: argparse.Namespace) -> int:
    import torch

    if args.suite == "gpu" and not torch.cuda.is_available() and (args.device or "cuda").startswith("cuda"):
        return fail("bench: --suite: 'gpu' needs a GPU, and torch sees none; measure 'layers' instead", code=2)
    for file in (args.json, args.markdown):
        if file and (problem := cannot_write(file)):
            return fail(f"bench: {problem}", code=2)
    given = [(f"--{name}", value) for name in OPTIONS if (value := getattr(args, name)) is not None]
    import_module(f"wnfused.benchmarks.{args.suite}").main([word for pair in given for word in pair])
    return 0
