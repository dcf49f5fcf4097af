"""The oracle and the comparison: float64 PyTorch formulas, and errors relative to the scale of the reference."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

CONVS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}

# Largest and root-mean-square error allowed, relative to the reference's largest and root-mean-square value.
TOLERANCE = {
    torch.float64: (1e-12, 1e-13),
    torch.float32: (2e-5, 2e-6),
    torch.bfloat16: (4e-2, 8e-3),
    torch.float16: (6e-3, 1e-3),
}
# float32 whose products were rounded to tf32. Truncated operands give root-mean-square errors of 7e-4 and more.
TF32_TOLERANCE = (3e-3, 6e-4)


def normalized(v: Tensor, g: Tensor, dim: int | None, eps: float = 0.0) -> Tensor:
    """g * v / sqrt(sum v^2 + eps), differentiable, for rows that are not zero."""
    dims = [d for d in range(v.ndim) if d != dim]
    squares = v.square().sum(dims, keepdim=True) if dims else v.square()
    return v * (g.reshape(squares.shape) / (squares + eps).sqrt())


def errors(actual: Tensor, expected: Tensor, terms: float = 0.0) -> tuple[float, float]:
    """(largest, root-mean-square) error relative to the largest and root-mean-square value of ``expected``.

    ``terms`` is the size of the terms that were subtracted to compute ``expected``. If they cancel, as in dv of a row
    of one element, which is exactly zero, the error can only be small relative to them.
    """
    difference = (actual.detach().double() - expected.detach().double()).flatten()
    scale = expected.detach().double().flatten()
    if scale.numel() == 0:
        return 0.0, 0.0
    floor = max(terms, torch.finfo(torch.float64).tiny)
    largest = difference.abs().max() / scale.abs().max().clamp_min(floor)
    rms = difference.square().mean().sqrt() / scale.square().mean().sqrt().clamp_min(floor)
    return largest.item(), rms.item()


def assert_close(actual: Tensor, expected: Tensor, what: str = "result", terms: float = 0.0) -> None:
    assert actual.shape == expected.shape, f"{what}: shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    largest, rms = errors(actual, expected, terms)
    allowed = TOLERANCE[actual.dtype]
    rms_allowed = allowed[0] if actual.numel() == 1 else allowed[1]  # for one element both errors are the same
    assert largest <= allowed[0] and rms <= rms_allowed, f"{what}: errors {largest:.2e}, {rms:.2e}, allowed {allowed}"


def assert_gradients_close(own: list[Tensor], wanted: list[Tensor], v: Tensor, g: Tensor, dim: int | None) -> None:
    """dx, dv, dg and, with a bias, db; v and g are the float64 ones."""
    dims = [d for d in range(v.ndim) if d != dim]
    norms = (v.square().sum(dims) if dims else v.square()).sqrt()
    # dv = (g / n) (dw - c u), and c = dg: the subtracted terms are about (g / n) dg in size
    terms = (g.flatten() * wanted[2].flatten() / norms.flatten()).abs().max().item() if v.numel() else 0.0
    for name, a, w in zip(["dx", "dv", "dg", "db"], own, wanted, strict=False):
        assert_close(a, w, what=name, terms=terms if name == "dv" else 0.0)


def doubles(*tensors: Tensor | None) -> list[Tensor | None]:
    """float64 leaves with the same values."""
    return [None if t is None else t.detach().double().requires_grad_() for t in tensors]


def gradients(y: Tensor, inputs: Sequence[Tensor | None], dy: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(y, [t for t in inputs if t is not None], dy))
