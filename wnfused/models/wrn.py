"""Wide residual networks for 32×32 images, from WRN-10-1 to the 10,000 layers of the paper's figure 3."""

from torch import Tensor, nn

from wnfused import checks
from wnfused.models.layers import Norm, check_norm, conv
from wnfused.models.residual import stage


class WRN(nn.Module):
    """WRN-``depth``-``k``: stem, three stages of N blocks at widths 16k, 32k and 64k, average pooling, linear layer.

    ``depth`` is 6N + 4; ``WRN(blocks=N, k=k)`` is equivalent. WRN-40-10 has N = 6; the paper's deepest has N = 1666.

    This is the paper's network: blocks of conv3×3 → ReLU → conv3×3, no activation after the stem or after a sum, 1×1
    convolutions as shortcuts where the shape changes, and biases in the convolutions. As in the paper, the stem has 16k
    channels; the authors' code and Zagoruyko & Komodakis (2016) have 16, and a shortcut in the first stage. The last
    layer is a plain ``nn.Linear`` with torch's default initialization, as in the authors' code; the paper does not
    specify it. ``stem_stride=2`` halves the resolution, as the authors' code does to save memory in very deep
    networks.

    ``norm="batch"`` replaces each weight norm by a batch norm and changes nothing else. Zagoruyko & Komodakis and the
    authors' code for batch norm are pre-activation networks (the code applies a block's first batch norm twice).
    """

    def __init__(
        self,
        depth: int | None = None,
        k: int = 1,
        *,
        blocks: int | None = None,
        classes: int = 10,
        in_channels: int = 3,
        norm: Norm = "weight",
        stem_stride: int = 1,
    ) -> None:
        super().__init__()
        blocks = _blocks(depth, blocks)
        checks.count("WRN", "k", k)
        checks.count("WRN", "classes", classes)
        checks.count("WRN", "in_channels", in_channels)
        checks.count("WRN", "stem_stride", stem_stride)
        check_norm("WRN", norm)
        self.stem = conv(norm, in_channels, 16 * k, 3, stride=stem_stride)
        self.stages = nn.Sequential(
            stage(norm, blocks, 16 * k, 16 * k, stride=1),
            stage(norm, blocks, 16 * k, 32 * k, stride=2),
            stage(norm, blocks, 32 * k, 64 * k, stride=2),
        )
        self.head = nn.Linear(64 * k, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.stages(self.stem(x)).mean((2, 3)))


def _blocks(depth: int | None, blocks: int | None) -> int:
    if (depth is None) == (blocks is None):
        raise ValueError(f"WRN: depth, blocks: expected exactly one of them, got depth={depth!r}, blocks={blocks!r}")
    if blocks is not None:
        checks.count("WRN", "blocks", blocks)
        return blocks
    if not checks.is_integer(depth) or depth < 10 or (depth - 4) % 6:  # type: ignore[operator]
        raise ValueError(f"WRN: depth: expected 6 * blocks + 4 with blocks >= 1, got {depth!r}")
    assert depth is not None
    return (depth - 4) // 6
