"""Convert a HiFi-GAN-style generator from torch's weight_norm to wnfused and fine-tune it with the same optimizer.

python examples/convert_vocoder.py [--steps 10]
"""

import argparse

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

import wnfused


class ResidualBlock(nn.Module):
    """Dilated convolutions, each added to its input."""

    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            weight_norm(nn.Conv1d(channels, channels, kernel, dilation=d, padding=d * (kernel // 2))) for d in (1, 3, 5)
        )

    def forward(self, x: Tensor) -> Tensor:
        for convolution in self.convolutions:
            x = x + convolution(F.leaky_relu(x, 0.1))
        return x


class Generator(nn.Module):
    """A mel spectrogram [B, 80, T] to a waveform [B, 1, 64 T]: upsample, then residual blocks, stage by stage."""

    def __init__(self, channels: int = 64) -> None:
        super().__init__()
        self.first = weight_norm(nn.Conv1d(80, channels, 7, padding=3))
        self.upsamplers, self.blocks = nn.ModuleList(), nn.ModuleList()
        for _ in range(2):
            self.upsamplers.append(weight_norm(nn.ConvTranspose1d(channels, channels // 2, 16, stride=8, padding=4)))
            channels //= 2
            self.blocks.append(nn.Sequential(ResidualBlock(channels, 3), ResidualBlock(channels, 7)))
        self.last = weight_norm(nn.Conv1d(channels, 1, 7, padding=3))

    def forward(self, mel: Tensor) -> Tensor:
        x = self.first(mel)
        for upsampler, blocks in zip(self.upsamplers, self.blocks, strict=True):
            x = blocks(upsampler(F.leaky_relu(x, 0.1)))
        return torch.tanh(self.last(F.leaky_relu(x, 0.1)))


def main() -> None:
    parser = argparse.ArgumentParser(description="Convert and fine-tune a vocoder generator.")
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()
    torch.manual_seed(0)
    model = Generator()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)  # made before the conversion, as in a running job
    mel = torch.randn(2, 80, 16)
    target = 0.5 * torch.sin(torch.arange(64 * 16) / 10).expand(2, 1, -1)

    with torch.no_grad():
        before = model(mel)
        print(wnfused.convert(model))  # in place: the parameters stay the same objects
        print(f"largest difference of the outputs: {(model(mel) - before).abs().max():.1e}")

    for step in range(options.steps):
        loss = F.l1_loss(model(mel), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step + 1}: loss {loss.item():.4f}")

    # The checkpoint loads into the original model, under torch's own weight_norm.
    Generator().load_state_dict(wnfused.state_dict(model))
    print("the checkpoint loads into the original generator")


if __name__ == "__main__":
    main()
