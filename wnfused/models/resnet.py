"""Residual networks for 32×32 images: ResNet-20/56/110 with basic blocks, ResNet-164 with bottlenecks."""

from torch import Tensor, nn

from wnfused import checks
from wnfused.models.layers import Norm, check_norm, conv
from wnfused.models.residual import stage

WIDTHS = (16, 32, 64)


class ResNet(nn.Module):
    """Stem, three stages of n blocks at widths 16, 32 and 64, global average pooling, a linear layer.

    The depth is 6n + 2 with basic blocks (3×3, 3×3) and 9n + 2 with bottlenecks (1×1, 3×3, 1×1, with four times as many
    output channels). ``bottleneck=None`` uses bottlenecks from depth 164 on, as the literature does, unless the depth
    fits basic blocks only (ResNet-1202).

    This is the paper's network: that of He et al. (2016) with conv → ReLU → conv blocks, no ReLU after the sum, 1×1
    convolutions with the block's stride as shortcuts where the shape changes, and biases in the convolutions. The
    authors' code differs in two points. It has no ReLU after the stem, although it initializes the stem with γ = 2;
    here the stem has a ReLU, as in He et al. And it has no bottleneck: its "164" has basic blocks with n = 27
    (``bottleneck=False``). The last layer is a plain ``nn.Linear`` with torch's default initialization, as in the
    authors' code; the paper does not specify it.

    ``norm="batch"`` replaces each weight norm by a batch norm and changes nothing else. He et al. have a ReLU after the
    sum; the authors' code for batch norm is a pre-activation network.
    """

    def __init__(
        self,
        depth: int,
        *,
        classes: int = 10,
        in_channels: int = 3,
        norm: Norm = "weight",
        bottleneck: bool | None = None,
    ) -> None:
        super().__init__()
        if bottleneck is None:
            bottleneck = checks.is_integer(depth) and depth >= 164 and ((depth - 2) % 9 == 0 or (depth - 2) % 6 != 0)
        layers, form = (9, "9n + 2 (bottlenecks)") if bottleneck else (6, "6n + 2 (basic blocks)")
        if not checks.is_integer(depth) or depth < layers + 2 or (depth - 2) % layers:
            raise ValueError(f"ResNet: depth: expected {form} with n >= 1, got {depth!r}")
        checks.count("ResNet", "classes", classes)
        checks.count("ResNet", "in_channels", in_channels)
        check_norm("ResNet", norm)
        blocks, expansion = (depth - 2) // layers, 4 if bottleneck else 1
        sizes = (1, 3, 1) if bottleneck else (3, 3)
        inputs = [WIDTHS[0], *(expansion * width for width in WIDTHS)]
        self.stem = conv(norm, in_channels, WIDTHS[0], 3, relu=True)
        self.stages = nn.Sequential(
            *(
                stage(norm, blocks, n, width, stride=1 if i == 0 else 2, sizes=sizes, expansion=expansion)
                for i, (n, width) in enumerate(zip(inputs, WIDTHS, strict=False))
            )
        )
        self.head = nn.Linear(inputs[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.stages(self.stem(x)).mean((2, 3)))


def resnet20(*, classes: int = 10, in_channels: int = 3, norm: Norm = "weight") -> ResNet:
    return ResNet(20, classes=classes, in_channels=in_channels, norm=norm)


def resnet56(*, classes: int = 10, in_channels: int = 3, norm: Norm = "weight") -> ResNet:
    return ResNet(56, classes=classes, in_channels=in_channels, norm=norm)


def resnet110(*, classes: int = 10, in_channels: int = 3, norm: Norm = "weight") -> ResNet:
    return ResNet(110, classes=classes, in_channels=in_channels, norm=norm)


def resnet164(*, classes: int = 10, in_channels: int = 3, norm: Norm = "weight") -> ResNet:
    return ResNet(164, classes=classes, in_channels=in_channels, norm=norm)
