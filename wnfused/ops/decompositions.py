"""The forward operators as ATen operations, for exporters that know no others: ``torch.onnx.export`` looks them up.

``torch.export`` and ``torch.compile`` keep the operators, because their tables of decompositions do not include these.
"""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._decomp import decomposition_table

from wnfused.ops import schema  # noqa: F401 - defines the operators
from wnfused.ops.reference import gain_shape, opmath


def _row_norms(v: Tensor, dim: int | None, eps: float) -> Tensor:
    """``reference.row_norms`` without frexp and ldexp, which ONNX lacks: rows are divided by their largest element."""
    v = v.to(opmath(v.dtype))
    others = [d for d in range(v.ndim) if d != dim]
    shape = gain_shape(tuple(v.shape), dim)
    largest = v.abs() if v.ndim == 1 and dim is not None else v.abs().amax(others)
    scale = largest.reshape(shape).clamp_min(eps**0.5)
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    squares = (v / scale).square()
    total = squares if v.ndim == 1 and dim is not None else squares.sum(others)
    return scale * (total.reshape(shape) + (eps**0.5 / scale).square()).sqrt()


def weight_norm(v: Tensor, g: Tensor, dim: int | None, eps: float) -> tuple[Tensor, Tensor]:
    norms = _row_norms(v, dim, eps)
    zero = norms == 0
    scale = torch.where(zero, torch.zeros_like(norms), g.to(norms.dtype) / torch.where(zero, 1.0, norms))
    return (v.to(norms.dtype) * scale).to(v.dtype), norms


def linear(
    x: Tensor, v: Tensor, g: Tensor, bias: Tensor | None, dim: int | None, eps: float, relu: bool
) -> tuple[Tensor, Tensor]:
    w, norms = weight_norm(v, g, dim, eps)
    y = F.linear(x, w.to(x.dtype), None if bias is None else bias.to(x.dtype))
    return y.relu() if relu else y, norms


def convolution(
    x: Tensor, v: Tensor, g: Tensor, bias: Tensor | None, stride: list[int], padding: list[int], dilation: list[int],
    transposed: bool, output_padding: list[int], groups: int, dim: int | None, eps: float, relu: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    w, norms = weight_norm(v, g, dim, eps)
    b = None if bias is None else bias.to(x.dtype)
    y = torch.convolution(x, w.to(x.dtype), b, stride, padding, dilation, transposed, output_padding, groups)
    return y.relu() if relu else y, norms


for _operator in (weight_norm, linear, convolution):
    decomposition_table[getattr(torch.ops.wnfused, _operator.__name__).default] = _operator
