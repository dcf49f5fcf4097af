"""The CIFAR ResNet of the speed table: basic blocks, biases, no normalization of its own."""

import torch
from torch import Tensor, nn


class Block(nn.Module):
    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1)
        changed = stride != 1 or channels_in != channels
        self.shortcut = nn.Conv2d(channels_in, channels, 1, stride) if changed else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.shortcut(x) + self.conv2(torch.relu(self.conv1(x))))


def resnet(depth: int) -> nn.Sequential:
    """Three stages at 16, 32 and 64 channels; depth is 6n + 2."""
    blocks = (depth - 2) // 6
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, 1, 1), nn.ReLU()]
    channels_in = 16
    for stage, channels in enumerate((16, 32, 64)):
        for block in range(blocks):
            layers.append(Block(channels_in, channels, stride=2 if stage and block == 0 else 1))
            channels_in = channels
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
    for layer in model.modules():  # without any normalization a hundred layers of default init overflow
        if isinstance(layer, nn.Conv2d):
            nn.init.normal_(layer.weight, std=(0.2 / layer.weight[0].numel()) ** 0.5)
    return model
