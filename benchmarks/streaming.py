"""Streaming inference: chunks of a few frames, batch 1, through a generator of HiFi-GAN's size.

python -m benchmarks.streaming [--threads 2] [--frames 4,16] [--rounds 25] [--channels 512] [--json FILE]

Compared: torch's weight_norm left in place (either API), wnfused's layers, the same inside ``wnfused.frozen``, folded.
"""

import argparse
import copy
import json
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import wnfused
from wnfused.benchmarks.peers import inference
from wnfused.benchmarks.suite import environment
from wnfused.diagnostics.timing import Timing, interleave

UPSAMPLING = ((8, 16), (8, 16), (2, 4), (2, 4))  # (stride, kernel): those of HiFi-GAN V1, 256 samples a frame
KERNELS, DILATIONS = (3, 7, 11), (1, 3, 5)


class Block(nn.Module):
    """Pairs of a dilated and an ordinary convolution, each pair added to its input."""

    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__()

        def convolution(dilation: int) -> nn.Conv1d:
            return nn.Conv1d(channels, channels, kernel, dilation=dilation, padding=dilation * (kernel // 2))

        self.pairs = nn.ModuleList(nn.ModuleList([convolution(d), convolution(1)]) for d in DILATIONS)

    def forward(self, x: Tensor) -> Tensor:
        for dilated, ordinary in self.pairs:
            x = x + ordinary(F.leaky_relu(dilated(F.leaky_relu(x, 0.1)), 0.1))
        return x


class Generator(nn.Module):
    """A mel spectrogram [B, 80, T] to a waveform [B, 1, 256 T]; each stage averages its blocks."""

    def __init__(self, channels: int = 512) -> None:
        super().__init__()
        self.first = nn.Conv1d(80, channels, 7, padding=3)
        self.upsamplers, self.stages = nn.ModuleList(), nn.ModuleList()
        for stride, kernel in UPSAMPLING:
            padding = (kernel - stride) // 2
            self.upsamplers.append(nn.ConvTranspose1d(channels, channels // 2, kernel, stride, padding))
            channels //= 2
            self.stages.append(nn.ModuleList(Block(channels, k) for k in KERNELS))
        self.last = nn.Conv1d(channels, 1, 7, padding=3)

    def forward(self, mel: Tensor) -> Tensor:
        x = self.first(mel)
        for upsampler, blocks in zip(self.upsamplers, self.stages, strict=True):
            x = upsampler(F.leaky_relu(x, 0.1))
            x = torch.stack([block(x) for block in blocks]).mean(0)
        return torch.tanh(self.last(F.leaky_relu(x)))


def variants(plain: nn.Module) -> dict[str, nn.Module]:
    """The same function five times; the first is the baseline."""
    models: dict[str, nn.Module] = {}
    norms = {"torch parametrized": nn.utils.parametrizations.weight_norm, "torch hook": nn.utils.weight_norm}
    for name, norm in norms.items():
        models[name] = copy.deepcopy(plain)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # the hook API is deprecated, but most vocoders still use it
            for layer in list(models[name].modules()):
                if isinstance(layer, nn.Conv1d | nn.ConvTranspose1d):
                    norm(layer)
    for name in ("wnfused", "wnfused, frozen", "wnfused, folded"):
        models[name] = copy.deepcopy(plain)
        wnfused.apply(models[name])
    wnfused.fold(models["wnfused, folded"])
    return {name: model.eval() for name, model in models.items()}


def measure(models: dict[str, nn.Module], frames: int, rounds: int) -> dict[str, Timing]:
    mel = torch.randn(1, 80, frames)
    steps: dict[str, Callable[[], None]] = {name: inference(model, mel) for name, model in models.items()}
    with ExitStack() as stack:
        stack.enter_context(wnfused.frozen(models["wnfused, frozen"]))
        return interleave(steps, rounds=rounds)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--frames", default="4,16", help="frames of a chunk, separated by commas")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--channels", type=int, default=512, help="of the first layer: 512 is HiFi-GAN V1, 128 is V2")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    models = variants(Generator(options.channels))
    print(f"Chunks through a HiFi-GAN generator, batch 1, interleaved; {environment(options.threads)}.\n")
    print(f"| frames | {' | '.join(models)} |\n|---|{'---|' * len(models)}", flush=True)
    results = {}
    for frames in map(int, options.frames.split(",")):
        timings = measure(models, frames, options.rounds)
        results[f"{frames} frames"] = {name: asdict(timing) for name, timing in timings.items()}
        cells = [f"{timing.seconds * 1e3:.3g} ms ({timing.ratio:.2f})" for timing in timings.values()]
        print(f"| {frames} | {' | '.join(cells)} |", flush=True)
    if options.json:
        options.json.write_text(json.dumps({"environment": environment(options.threads), "results": results}, indent=1))


if __name__ == "__main__":
    main()
