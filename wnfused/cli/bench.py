"""``wnfused bench``: measure the speed on this machine, as ``make bench`` does in a checkout."""

import argparse
from importlib import import_module

from wnfused.cli.commands import cannot_write, command, fail

SUITES = {
    "layers": "layers, training and inference, against plain torch.nn and torch's weight_norm (default)",
    "networks": "whole networks: MLP, ResNet, WRN, HiFi-GAN, SDF with an eikonal loss",
    "memory": "bytes saved for the backward and the peak of a training step",
    "scaling": "the ratio over batch, width, depth and threads",
    "training": "steps of the trainer: wnfused, torch's weight_norm, batch norm, no normalization",
    "streaming": "chunks of a few frames through a HiFi-GAN generator, against torch's weight_norm left in place",
}
# An option that the selected suite does not have is refused by its own parser.
OPTIONS = {
    "only": ("TEXT", "layers, networks, memory: measure only rows whose name contains TEXT"),
    "seconds": ("S", "measuring time per row"),
    "threads": ("N", "threads of torch (2); scaling: a list (1,2)"),
    "models": ("NAMES", "training: networks, separated by commas (resnet20,resnet110)"),
    "batches": ("SIZES", "training: batch sizes, separated by commas (128,8)"),
    "frames": ("SIZES", "streaming: frames of a chunk, separated by commas (4,16)"),
    "json": ("FILE", "write the results as JSON"),
    "compare": ("FILE", "layers, networks: show what changed since the results of this file"),
    "plot": ("FILE", "scaling: draw the curves"),
}
FLAGS = {
    "full": "layers, networks: all rows, not only those of a few minutes",
    "compiled": "layers: under torch.compile, too",
}


def _bench_arguments(parser: argparse.ArgumentParser) -> None:
    suites = "; ".join(f"{name}: {about}" for name, about in SUITES.items())
    parser.add_argument("--suite", choices=tuple(SUITES), default="layers", metavar="SUITE", help=suites)
    parser.add_argument("--device", default="cpu", help="cpu (default), or cuda: the layers on a GPU, by dtype")
    for name, (metavar, about) in OPTIONS.items():
        parser.add_argument(f"--{name}", metavar=metavar, help=about)
    for name, about in FLAGS.items():
        parser.add_argument(f"--{name}", action="store_true", help=about)


@command("bench", "measure the speed of layers or networks on this machine", _bench_arguments)
def bench(args: argparse.Namespace) -> int:
    import torch

    on_gpu = args.device != "cpu"
    if on_gpu and not torch.cuda.is_available():
        return fail(
            f"bench: --device: '{args.device}' needs a GPU, and torch sees none; measure on 'cpu' instead", code=2
        )
    if on_gpu and args.suite != "layers":
        return fail(f"bench: --suite: '{args.suite}' runs on the CPU only; on a GPU measure 'layers'", code=2)
    for file in (args.json, args.plot):
        if file and (problem := cannot_write(file)):
            return fail(f"bench: {problem}", code=2)
    given = [(f"--{name}", value) for name in OPTIONS if (value := getattr(args, name)) is not None]
    words = [word for pair in given for word in pair] + [f"--{name}" for name in FLAGS if getattr(args, name)]
    suite = "gpu" if on_gpu else args.suite
    import_module(f"wnfused.benchmarks.{suite}").main([*words, *(["--device", args.device] if on_gpu else [])])
    return 0
