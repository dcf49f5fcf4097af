"""Small float64 inputs of every operator, for each option that changes its derivatives, and the plain formulas."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.support.reference import CONVS, TRANSPOSED, normalized
from wnfused import functional
from wnfused.ops.reference import gain_shape

CONV_OWN = {n: getattr(functional, f"wn_conv{n}d") for n in CONVS}
TRANSPOSED_OWN = {n: getattr(functional, f"wn_conv_transpose{n}d") for n in TRANSPOSED}


@dataclass(frozen=True)
class Sample:
    """``own`` and ``formula`` are the same function of ``tensors()``, (v, g), (x, v, g) or (x, v, g, bias)."""

    name: str
    kind: str  # "weight_norm", "linear", "conv" or "transposed"
    v_shape: tuple[int, ...]
    x_shape: tuple[int, ...] | None = None
    dim: int | None = 0
    eps: float = 0.0
    bias: bool = True
    relu: bool = False
    geometry: dict[str, Any] = field(default_factory=dict)

    def own(self, *tensors: Tensor) -> Tensor:
        if self.kind == "weight_norm":
            return functional.weight_norm(*tensors, dim=self.dim, eps=self.eps)
        functions = {"linear": {0: functional.wn_linear}, "conv": CONV_OWN, "transposed": TRANSPOSED_OWN}
        function = functions[self.kind][len(self.v_shape) - 2]
        activation = "relu" if self.relu else None
        return function(*tensors, dim=self.dim, eps=self.eps, activation=activation, **self.geometry)

    def before_relu(self, *tensors: Tensor) -> Tensor:
        if self.kind == "weight_norm":
            return normalized(*tensors, self.dim, self.eps)
        x, v, g, *bias = tensors
        plain: dict[int, Callable[..., Tensor]] = {"linear": {0: F.linear}, "conv": CONVS, "transposed": TRANSPOSED}[
            self.kind
        ]
        return plain[len(self.v_shape) - 2](x, normalized(v, g, self.dim, self.eps), *bias, **self.geometry)

    def formula(self, *tensors: Tensor) -> Tensor:
        y = self.before_relu(*tensors)
        return y.relu() if self.relu else y

    @property
    def channels(self) -> int:
        if self.kind == "transposed":
            return self.v_shape[1] * self.geometry.get("groups", 1)
        return self.v_shape[0]

    def tensors(self, seed: int = 0) -> tuple[Tensor, ...]:
        """Random float64 leaves; with a ReLU, such that no sum is near its kink and it passes some and stops others."""
        while True:
            numbers = torch.Generator().manual_seed(seed)

            def random(*shape: int, numbers: torch.Generator = numbers) -> Tensor:
                return torch.randn(shape, dtype=torch.float64, generator=numbers)

            v, g = random(*self.v_shape), random(*gain_shape(self.v_shape, self.dim))
            g = g + g.sign() / 2  # of either sign, and not near zero
            tensors = [v, g] if self.x_shape is None else [random(*self.x_shape), v, g]
            if self.x_shape is not None and self.bias:
                tensors.append(random(self.channels))
            sums = self.before_relu(*tensors)
            if not self.relu or (sums.abs().min() > 1e-3 and 0 < (sums > 0).sum() < sums.numel()):
                return tuple(t.requires_grad_() for t in tensors)
            seed += 1000


SAMPLES = [
    Sample("weight_norm-0", "weight_norm", (3, 4)),
    Sample("weight_norm-middle", "weight_norm", (2, 3, 2), dim=1),
    Sample("weight_norm-last", "weight_norm", (2, 2, 3), dim=2),
    Sample("weight_norm-all", "weight_norm", (3, 2), dim=None),
    Sample("weight_norm-vector", "weight_norm", (4,), eps=0.5),  # without eps its derivative in v is zero
    Sample("weight_norm-eps", "weight_norm", (3, 4), eps=0.3),
    Sample("linear", "linear", (3, 4), (2, 4)),
    Sample("linear-1", "linear", (3, 4), (2, 4), dim=1, eps=0.2),
    Sample("linear-all", "linear", (3, 4), (2, 4), dim=None, bias=False),
    Sample("linear-relu", "linear", (3, 4), (2, 4), relu=True),
    Sample("linear-relu-1-nobias", "linear", (3, 4), (2, 4), dim=1, bias=False, relu=True),
    Sample("linear-more-rows", "linear", (2, 3), (2, 5, 3), relu=True),  # another path of the native kernels
    Sample("conv1d", "conv", (3, 2, 3), (2, 2, 5), geometry={"stride": 2, "padding": 1}),
    Sample("conv1d-relu-last", "conv", (2, 2, 2), (2, 2, 4), dim=2, relu=True, geometry={"dilation": 2}),
    Sample("conv2d", "conv", (2, 2, 2, 3), (2, 2, 3, 3), eps=0.1, geometry={"padding": (0, 1)}),
    Sample("conv2d-groups-relu", "conv", (4, 1, 2, 2), (1, 2, 3, 3), relu=True, bias=False, geometry={"groups": 2}),
    Sample("conv2d-1", "conv", (2, 2, 2, 2), (1, 2, 3, 3), dim=1),
    Sample("conv3d", "conv", (2, 2, 2, 1, 2), (1, 2, 2, 2, 3), relu=True),
    Sample("conv3d-all", "conv", (2, 1, 2, 2, 1), (1, 1, 2, 3, 2), dim=None, bias=False),
    Sample("transposed1d", "transposed", (2, 3, 3), (2, 2, 3), geometry={"stride": 2, "output_padding": 1}),
    Sample("transposed1d-1-relu", "transposed", (2, 3, 2), (2, 2, 3), dim=1, relu=True),
    Sample("transposed2d", "transposed", (2, 1, 2, 2), (1, 2, 2, 3), bias=False, geometry={"groups": 2}),
    Sample("transposed2d-relu-eps", "transposed", (2, 2, 2, 2), (1, 2, 2, 2), eps=0.2, relu=True),
    Sample("transposed3d", "transposed", (2, 2, 1, 2, 2), (1, 2, 2, 2, 1), geometry={"padding": (0, 1, 0)}),
]
BY_NAME = {sample.name: sample for sample in SAMPLES}
