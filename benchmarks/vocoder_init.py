"""How a vocoder's initialization affects its first training steps: ``python -m benchmarks.vocoder_init``.

The generator has the size of HiFi-GAN V3 (1.5 million parameters). It learns to invert log-mel spectrograms of
synthetic harmonic signals with an L1 loss on log-mels, without a discriminator. Three initializations:

- ``shipped``: HiFi-GAN's ``init_weights`` writes N(0, 0.01²) into the computed weights, which is lost; the layers keep
  torch's default.
- ``intended``: the same with ``wnfused.init.normal_``, which is not lost.
- ``robust``: ``wnfused.init.robust_`` with inferred roles.
"""

import argparse
import json
import math
import statistics
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import wnfused
from wnfused import WNConv1d, WNConvTranspose1d

RATE, HOP, WINDOW, MELS = 22_050, 256, 1024, 80
INITS = ("shipped", "intended", "robust")


class ResBlock(nn.Module):
    """HiFi-GAN's second kind of residual block: one dilated convolution per branch."""

    def __init__(self, channels: int, kernel: int, dilations: tuple[int, ...]) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            WNConv1d(channels, channels, kernel, dilation=d, padding=d * (kernel - 1) // 2) for d in dilations
        )

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.convs:
            x = x + conv(F.leaky_relu(x, 0.1))
        return x


class Generator(nn.Module):
    """HiFi-GAN V3's generator: 80 mel bands to samples, 256 per frame."""

    def __init__(self, channels: int = 256) -> None:
        super().__init__()
        self.conv_pre = WNConv1d(MELS, channels, 7, padding=3)
        self.ups, self.blocks = nn.ModuleList(), nn.ModuleList()
        for rate, kernel in ((8, 16), (8, 16), (4, 8)):
            self.ups.append(WNConvTranspose1d(channels, channels // 2, kernel, rate, padding=(kernel - rate) // 2))
            channels //= 2
            dilations = {3: (1, 2), 5: (2, 6), 7: (3, 12)}
            self.blocks.append(nn.ModuleList(ResBlock(channels, k, d) for k, d in dilations.items()))
        self.conv_post = WNConv1d(channels, 1, 7, padding=3)

    def forward(self, mel: Tensor) -> Tensor:
        x = self.conv_pre(mel)
        for up, blocks in zip(self.ups, self.blocks, strict=True):
            x = up(F.leaky_relu(x, 0.1))
            outputs = [block(x) for block in blocks]  # type: ignore[union-attr]
            x = sum(outputs[1:], outputs[0]) / len(outputs)
        return torch.tanh(self.conv_post(F.leaky_relu(x)))


def initialize(model: Generator, init: str, mel: Tensor) -> None:
    wnfused.init.torch_default_(model)
    if init == "robust":
        wnfused.init.robust_(model, mel)
    if init == "intended":  # as HiFi-GAN's code reads: all but the first layer
        for layer in [m for m in model.modules() if isinstance(m, (WNConv1d, WNConvTranspose1d))]:
            if layer is not model.conv_pre:
                wnfused.init.normal_(layer, std=0.01)


def mel_bank() -> Tensor:
    """Triangular filters, evenly spaced on the mel scale up to 8 kHz: [80, 513]."""
    edges = torch.linspace(0, 2595 * math.log10(1 + 8000 / 700), MELS + 2)
    hertz = 700 * (10 ** (edges / 2595) - 1)
    bins = torch.linspace(0, RATE / 2, WINDOW // 2 + 1)
    rise = (bins - hertz[:-2, None]) / (hertz[1:-1] - hertz[:-2])[:, None]
    fall = (hertz[2:, None] - bins) / (hertz[2:] - hertz[1:-1])[:, None]
    return torch.minimum(rise, fall).clamp(min=0)


def log_mel(audio: Tensor, bank: Tensor) -> Tensor:
    """[batch, samples] to [batch, 80, frames]."""
    spectrum = torch.stft(audio, WINDOW, HOP, window=torch.hann_window(WINDOW), return_complex=True).abs()
    return torch.log((bank @ spectrum[..., : audio.shape[1] // HOP]).clamp(min=1e-3))


def harmonics(batch: int, frames: int, generator: torch.Generator) -> Tensor:
    """Gliding tones of 80 to 400 Hz with 12 harmonics of random strength, and a little noise: [batch, samples]."""
    samples = frames * HOP
    ends = 80 * 5 ** torch.rand(batch, 2, 1, generator=generator)
    pitch = torch.lerp(ends[:, 0], ends[:, 1], torch.linspace(0, 1, samples))
    phase = 2 * math.pi * pitch.cumsum(1) / RATE  # [batch, samples]
    order = torch.arange(1, 13)
    strength = torch.rand(batch, 12, 1, generator=generator) / order[:, None]
    shift = 2 * math.pi * torch.rand(batch, 12, 1, generator=generator)
    tone = (strength * torch.sin(phase[:, None] * order[:, None] + shift)).sum(1)
    return 0.2 * tone + 0.003 * torch.randn(batch, samples, generator=generator)


def train(init: str, seed: int, steps: int, batch: int, frames: int) -> list[float]:
    """The loss of each step."""
    torch.manual_seed(seed)
    source, bank = torch.Generator().manual_seed(seed), mel_bank()
    model = Generator()
    initialize(model, init, log_mel(harmonics(batch, frames, source), bank))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, betas=(0.8, 0.99))
    losses = []
    for _ in range(steps):
        target = log_mel(harmonics(batch, frames, source), bank)
        loss = F.l1_loss(log_mel(model(target).squeeze(1), bank), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--frames", type=int, default=12)
    parser.add_argument("--out", type=Path, help="JSON file with all losses")
    arguments = parser.parse_args()
    shape = arguments.steps, arguments.batch, arguments.frames
    runs: dict[str, list[list[float]]] = {init: [] for init in INITS}
    for seed in range(arguments.seeds):
        for init in INITS:
            runs[init].append(train(init, seed, *shape))
            if arguments.out is not None:
                arguments.out.write_text(json.dumps(runs))
    marks = [step for step in (1, 20, 50, 100, 200, 500, 1000) if step <= arguments.steps]
    print(f"| init | {' | '.join(f'step {mark}' for mark in marks)} |")
    for init, losses in runs.items():
        # The mean of the last tenth of the steps up to the mark, for each seed; then mean and range over seeds.
        columns = [[statistics.mean(one[mark - max(1, mark // 10) : mark]) for one in losses] for mark in marks]
        cells = [f"{statistics.mean(c):.3f} ({min(c):.3f} to {max(c):.3f})" for c in columns]
        print(f"| {init} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
