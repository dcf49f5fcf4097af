"""The residual block of ResNet and WRN, without an activation after its sum, and a stage of such blocks."""

from torch import Tensor, nn

from wnfused.models.layers import Norm, conv


class Block(nn.Module):
    """``shortcut(x) + branch(x)``. The branch is D × [conv, ReLU] with ``inner`` channels, then a conv to ``outputs``.

    ``sizes`` are the kernel sizes along the branch: (3, 3) for the basic block, (1, 3, 1) for the bottleneck. The first
    convolution has the stride. The shortcut is the identity, or a 1×1 convolution if the shape changes.
    """

    def __init__(self, norm: Norm, inputs: int, inner: int, outputs: int, stride: int, sizes: tuple[int, ...]) -> None:
        super().__init__()
        layers = [conv(norm, inputs, inner, sizes[0], stride=stride, relu=True)]
        layers += [conv(norm, inner, inner, size, relu=True) for size in sizes[1:-1]]
        self.branch = nn.Sequential(*layers, conv(norm, inner, outputs, sizes[-1]))
        changed = stride != 1 or inputs != outputs
        self.shortcut = conv(norm, inputs, outputs, 1, stride=stride) if changed else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.shortcut(x) + self.branch(x)


def stage(
    norm: Norm,
    blocks: int,
    inputs: int,
    width: int,
    *,
    stride: int,
    sizes: tuple[int, ...] = (3, 3),
    expansion: int = 1,
) -> nn.Sequential:
    """``blocks`` blocks with ``expansion * width`` output channels; the first one changes width and resolution."""
    outputs = expansion * width
    first = Block(norm, inputs, width, outputs, stride, sizes)
    return nn.Sequential(first, *(Block(norm, outputs, width, outputs, 1, sizes) for _ in range(blocks - 1)))
