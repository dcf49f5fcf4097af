"""The multilayer perceptron of the paper's figures 1 and 2."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from torch import Tensor, nn

from wnfused import checks
from wnfused.models.layers import Norm, check_norm, linear


class MLP(nn.Module):
    """``depth`` hidden layers, each followed by a ReLU, and a linear layer: ``head(hidden(x.flatten(1)))``.

    ``width`` is the width of every hidden layer, or a list with one width per layer. ``outputs`` is another name for
    ``classes``, for regression. The last layer is a plain ``nn.Linear`` with torch's default initialization, as in the
    authors' code; the paper does not specify it.
    """

    def __init__(
        self,
        depth: int,
        width: int | Sequence[int],
        *,
        inputs: int = 784,
        outputs: int | None = None,
        classes: int = 10,
        norm: Norm = "weight",
    ) -> None:
        super().__init__()
        outputs = classes if outputs is None else outputs
        checks.count("MLP", "depth", depth)
        checks.count("MLP", "inputs", inputs)
        checks.count("MLP", "outputs", outputs)
        check_norm("MLP", norm)
        sizes = [inputs, *_widths(depth, width)]
        layers = [linear(norm, n, m, relu=True) for n, m in pairwise(sizes)]
        self.hidden = nn.Sequential(*layers)
        self.head = nn.Linear(sizes[-1], outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.hidden(x.flatten(1)))


def _widths(depth: int, width: Any) -> list[int]:
    if checks.is_integer(width):
        checks.count("MLP", "width", width)
        return [int(width)] * depth
    listed = isinstance(width, Sequence) and not isinstance(width, str)
    if not listed or len(width) != depth or not all(checks.is_integer(w) and w >= 1 for w in width):
        raise ValueError(f"MLP: width: expected an int >= 1, or a list of {depth} of them (depth), got {width!r}")
    return [int(w) for w in width]
