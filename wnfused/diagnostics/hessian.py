"""The largest eigenvalue of the loss's Hessian, by power iteration or Lanczos, from exact Hessian-vector products."""

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from wnfused import checks
from wnfused.init.layers import listed
from wnfused.surgery import torch_norms
from wnfused.unchanged import unchanged

Batch = tuple[Tensor, Tensor]
LossFunction = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class HessianNorm:
    value: float  # the largest |eigenvalue|
    eigenvalue: float  # with its sign
    iterations: int
    converged: bool  # False where the iterations ran out first
    history: tuple[float, ...]  # the estimate after each iteration


def hessian_norm(
    model: nn.Module,
    loss_fn: LossFunction,
    batches: Sequence[Batch],
    *,
    method: str = "power",
    iterations: int = 100,
    tolerance: float = 1e-4,
    generator: torch.Generator | None = None,
    progress: bool = False,
) -> HessianNorm:
    """The spectral norm of the Hessian of the mean of ``loss_fn(model(x), target)`` over all samples of ``batches``.

    ``loss_fn`` gives the mean over a batch. The data stay fixed: all batches, in order, in every iteration, and with
    the same random numbers (dropout). ``method`` is ``"power"`` or ``"lanczos"``, which needs fewer iterations but
    keeps a vector for each. Power iteration gives the Rayleigh quotient ρ = v·Hv of a unit vector v; it stops when ρ
    changed by less than ``tolerance`` of itself twice in a row and ‖Hv‖ is as close to |ρ|, that is, v is an
    eigenvector. (ρ alone also stands still between two eigenvalues λ and -λ.) Lanczos stops by the same bound on the
    extreme Ritz value. ``progress`` shows a bar on standard error. Parameters with ``requires_grad=False`` are
    constants. The model, its gradients, buffers and mode stay as they were.

    The result relies on the double backward of every operation. That of torch's own weight norms is wrong in torch
    2.13 (a few percent, and the Hessian is not symmetric): a warning says so where a model has them.
    """
    parameters = _check(model, batches, method, iterations, tolerance)
    _warn_of_torch_norms(model)
    product = _product(model, loss_fn, batches, parameters)
    history: list[float] = []
    converged = False
    with unchanged(model):
        start = [_normal(p, generator) for p in parameters]
        for estimate, doubt in {"power": _power, "lanczos": _lanczos}[method](product, start):
            history.append(estimate)
            converged = doubt <= tolerance and _settled(history, tolerance)
            if progress:
                _show(history, iterations)
            if converged or len(history) == iterations:
                break
    if progress:
        sys.stderr.write("\n")
    return HessianNorm(abs(history[-1]), history[-1], len(history), converged, tuple(history))


def _normal(parameter: nn.Parameter, generator: torch.Generator | None) -> Tensor:
    device = parameter.device if generator is None else generator.device
    return torch.randn(parameter.shape, generator=generator, device=device, dtype=parameter.dtype).to(parameter.device)


def _warn_of_torch_norms(model: nn.Module) -> None:
    names = [name for name, module in model.named_modules() if torch_norms.norms_on(module)]
    if names:
        warnings.warn(
            f"hessian_norm: model: torch's weight_norm, on {listed(names)}, has a wrong double backward, so the value "
            "will be wrong; wnfused.convert(model) first",
            stacklevel=3,
        )


def _check(
    model: nn.Module, batches: Sequence[Batch], method: str, iterations: int, tolerance: float
) -> list[nn.Parameter]:
    checks.module("hessian_norm", model)
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        raise ValueError("hessian_norm: model: it has no parameters that require a gradient")
    if not isinstance(batches, Sequence):  # a loader would give other batches in every iteration, a generator none
        raise TypeError(f"hessian_norm: batches: expected a list of (input, target), got {type(batches).__name__}")
    if len(batches) == 0 or any(len(x) == 0 for x, _ in batches):
        raise ValueError("hessian_norm: batches: expected at least one batch, and no empty ones")
    if method not in ("power", "lanczos"):
        raise ValueError(f"hessian_norm: method: expected 'power' or 'lanczos', got {method!r}")
    if iterations < 1:
        raise ValueError(f"hessian_norm: iterations: expected at least 1, got {iterations}")
    if not tolerance > 0:
        raise ValueError(f"hessian_norm: tolerance: expected more than 0, got {tolerance}")
    return parameters


Vector = list[Tensor]
Product = Callable[[Vector], Vector]
Estimates = Iterator[tuple[float, float]]  # of the eigenvalue, and how far its vector is from an eigenvector


def _dot(a: Vector, b: Vector) -> float:
    return sum(torch.sum(s.double() * t.double()).item() for s, t in zip(a, b, strict=True))


def _scaled(a: Vector, by: float) -> Vector:
    return [t * by for t in a]


def _minus(a: Vector, b: Vector, times: float) -> Vector:
    return [torch.sub(s, t, alpha=times) for s, t in zip(a, b, strict=True)]


def _product(
    model: nn.Module, loss_fn: LossFunction, batches: Sequence[Batch], parameters: list[nn.Parameter]
) -> Product:
    """v → Hv, a batch at a time: the memory is one batch's."""
    samples = sum(len(x) for x, _ in batches)

    def product(v: Vector) -> Vector:
        total = [torch.zeros_like(p) for p in parameters]
        with unchanged(model), torch.enable_grad():  # the same random numbers in every product
            for x, target in batches:
                loss = loss_fn(model(x), target) * (len(x) / samples)
                if not torch.isfinite(loss):
                    raise ValueError(f"hessian_norm: loss_fn: the loss is {loss.item()}")
                gradients = torch.autograd.grad(loss, parameters, create_graph=True, allow_unused=True)
                # A gradient that does not depend on the parameters, as a linear loss has it, adds nothing.
                pairs = [(g, t) for g, t in zip(gradients, v, strict=True) if g is not None and g.requires_grad]
                if not pairs:
                    continue
                curved, directions = zip(*pairs, strict=True)
                second = torch.autograd.grad(curved, parameters, directions, allow_unused=True)
                total = [t if part is None else t + part for t, part in zip(total, second, strict=True)]
        if not all(torch.isfinite(t).all() for t in total):
            raise ValueError("hessian_norm: model: the loss is finite, but its second derivative is not")
        return total

    return product


def _power(product: Product, v: Vector) -> Estimates:
    while True:
        norm = _dot(v, v) ** 0.5
        if norm == 0:  # the Hessian maps everything it was given to zero
            yield 0.0, 0.0
            continue
        v = _scaled(v, 1 / norm)
        hv = product(v)
        rayleigh, length = _dot(v, hv), _dot(hv, hv) ** 0.5
        yield rayleigh, 1 - abs(rayleigh) / length if length else 0.0
        v = hv


def _lanczos(product: Product, v: Vector) -> Estimates:
    """Ritz values of a growing tridiagonal matrix; every new vector is made orthogonal to all before it, twice."""
    basis = [_scaled(v, _dot(v, v) ** -0.5)]
    diagonal: list[float] = []
    beside: list[float] = []
    while True:
        w = product(basis[-1])
        diagonal.append(_dot(basis[-1], w))
        for _ in range(2):
            for q in basis:
                w = _minus(w, q, _dot(q, w))
        yield _extreme(diagonal, beside), 0.0
        length = _dot(w, w) ** 0.5
        if length <= 1e-7 * max(map(abs, diagonal)):  # the basis spans an invariant space: the value is exact
            while True:
                yield _extreme(diagonal, beside), 0.0
        beside.append(length)
        basis.append(_scaled(w, 1 / length))


def _extreme(diagonal: list[float], beside: list[float]) -> float:
    matrix = torch.diag(torch.tensor(diagonal, dtype=torch.float64))
    if beside:
        off = torch.tensor(beside, dtype=torch.float64)
        matrix += torch.diag(off, 1) + torch.diag(off, -1)
    values = torch.linalg.eigvalsh(matrix)
    return values[values.abs().argmax()].item()


def _settled(history: list[float], tolerance: float) -> bool:
    if len(history) < 3:
        return False
    a, b, c = history[-3:]
    return abs(c - b) <= tolerance * abs(c) and abs(b - a) <= tolerance * abs(c)


def _show(history: list[float], iterations: int) -> None:
    done = len(history) * 30 // iterations
    sys.stderr.write(f"\rhessian [{'#' * done}{'.' * (30 - done)}] {len(history)}/{iterations}  {history[-1]:.4g} ")
    sys.stderr.flush()
