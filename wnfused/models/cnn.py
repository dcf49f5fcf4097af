"""The plain convolutional network of the paper's figure 3 (left)."""

from torch import Tensor, nn

from wnfused import checks
from wnfused.models.layers import Norm, check_norm, conv


class CNN(nn.Module):
    """``n`` 3×3 convolutions with ReLU, the first two with stride 2, then global average pooling and a linear layer.

    In the paper ``n`` is 5, 25 or 100 and every layer has 512 ``channels``. The last layer is a plain ``nn.Linear``
    with torch's default initialization, as in the authors' code; the paper does not specify it.
    """

    def __init__(
        self, n: int, *, channels: int = 512, classes: int = 10, in_channels: int = 3, norm: Norm = "weight"
    ) -> None:
        super().__init__()
        checks.count("CNN", "n", n, least=2)
        checks.count("CNN", "channels", channels)
        checks.count("CNN", "classes", classes)
        checks.count("CNN", "in_channels", in_channels)
        check_norm("CNN", norm)
        first = conv(norm, in_channels, channels, 3, stride=2, relu=True)
        rest = [conv(norm, channels, channels, 3, stride=2 if i == 0 else 1, relu=True) for i in range(n - 1)]
        self.features = nn.Sequential(first, *rest)
        self.head = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).mean((2, 3)))  # deterministic on GPUs, unlike adaptive pooling
