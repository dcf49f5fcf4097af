"""Kernels of the operators registered from Python: choice of backend, autograd, forward-mode AD, vmap.

When the native library is loaded, it registers the CPU and AutogradCPU kernels of the forward operators from C++
(``autograd.cpp``), because a Python kernel costs tens of microseconds per call. The kernels below are used everywhere
else. The autograd of the backward operators is always the one below: under ``create_graph`` they are evaluated by the
formulas of ``reference.py``, from which PyTorch derives double backward and every higher order.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKeySet
from torch.autograd import forward_ad

from wnfused.ops import backends, reference
from wnfused.ops.arguments import CHECKS
from wnfused.ops.schema import LIBRARY

TENSOR_ARGUMENTS = {"weight_norm": 2, "linear": 4, "convolution": 4}  # leading tensors of each forward operator


def has_tangent(args: Iterable[Any]) -> bool:
    if forward_ad._current_level < 0:
        return False
    tensors = (t for a in args for t in (a if isinstance(a, list) else (a,)) if isinstance(t, Tensor))
    return any(forward_ad.unpack_dual(t).tangent is not None for t in tensors)


def redispatch(op: Any, keyset: DispatchKeySet, args: tuple[Any, ...]) -> Any:
    # Skip ADInplaceOrView as well: otherwise a reshape inside a kernel would make the output a view for autograd, and a
    # view returned by an autograd.Function cannot be modified in place.
    with torch._C._AutoDispatchBelowADInplaceOrView():
        return op.redispatch(keyset & torch._C._after_ADInplaceOrView_keyset, *args)


class _Differentiable(torch.autograd.Function):
    """A forward operator with autograd. It saves its input tensors and the norms for backward, never w."""

    @staticmethod
    def forward(ctx: Any, name: str, op: Any, keyset: DispatchKeySet, *args: Any) -> tuple[Tensor, Tensor]:
        count = TENSOR_ARGUMENTS[name]
        y, norms = redispatch(op, keyset, args)
        ctx.mark_non_differentiable(norms)
        if name == "weight_norm":
            ctx.options = args[count:]
            ctx.save_for_backward(*args[:count], norms)
        else:
            *ctx.options, relu = args[count:]
            if name == "linear":
                ctx.options.append(args[3] is not None)
            ctx.save_for_backward(*args[: count - 1], norms, y if relu else None)
        ctx.operator, ctx.count, ctx.unused = name, count, len(args) - count
        return y, norms

    @staticmethod
    def backward(ctx: Any, dy: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        mask = list(ctx.needs_input_grad[3 : 3 + ctx.count])
        op = getattr(torch.ops.wnfused, f"{ctx.operator}_backward").default
        saved = ctx.saved_tensors  # a checkpoint recomputes them here, with autograd
        if torch.is_grad_enabled() or forward_ad._current_level >= 0:
            gradients = op(dy, *saved, *ctx.options, mask)
        else:  # an ordinary backward needs no autograd of its own
            with torch._C._AutoDispatchBelowADInplaceOrView():
                gradients = op(dy, *saved, *ctx.options, mask)
        return (None, None, None, *gradients, *([None] * ctx.unused))


def _forward_autograd(name: str, op: Any) -> Callable[..., Any]:
    formula = differentiable_formula(name)

    def kernel(keyset: DispatchKeySet, *args: Any) -> Any:
        if has_tangent(args) or torch._C._are_functorch_transforms_active():
            return formula(*args)  # an autograd.Function cannot be recorded there
        if torch.is_grad_enabled() and torch._C._any_requires_grad(*args):
            return _Differentiable.apply(name, op, keyset, *args)
        return redispatch(op, keyset, args)

    return kernel


def differentiable_formula(name: str) -> Callable[..., Any]:
    """The plain formula. A backward formula must not use the saved norms, which carry no derivative in v."""
    check, formula = CHECKS[name], getattr(reference, name)
    norms_at = {"linear_backward": 4, "convolution_backward": 4}.get(name, 3 if name.endswith("_backward") else None)

    def checked(*args: Any) -> Any:
        check(*args)
        return formula(*args) if norms_at is None else formula(*args[:norms_at], None, *args[norms_at + 1 :])

    return checked


class _Operators:
    """The weight's own operators, which are differentiable too: one pass over v instead of one for each plain step."""

    @staticmethod
    def weight_norm(v: Tensor, g: Tensor, norms: Tensor | None, dim: int | None, eps: float) -> Tensor:
        w: Tensor = torch.ops.wnfused.weight_norm(v, g, dim, eps)[0]  # the saved norms carry no derivative in v
        return w

    @staticmethod
    def weight_norm_backward(*args: Any) -> Any:
        return torch.ops.wnfused.weight_norm_backward(*args)


def backward_autograd(name: str, op: Any) -> Callable[..., Any]:
    formula = differentiable_formula(name)
    of_weights = getattr(reference, name) if name in ("linear_backward", "convolution_backward") else None

    def kernel(keyset: DispatchKeySet, *args: Any) -> Any:
        differentiated = torch.is_grad_enabled() and torch._C._any_requires_grad(*args)
        if not differentiated and not has_tangent(args):
            return redispatch(op, keyset, args)
        if of_weights is None or has_tangent(args) or torch._C._are_functorch_transforms_active():
            return formula(*args)
        CHECKS[name](*args)
        return of_weights(*args, weights=_Operators)

    return kernel


def _chosen_backend(name: str) -> Callable[..., Any]:
    check = CHECKS[name]

    def kernel(*args: Any) -> Any:
        first = args[0] if isinstance(args[0], Tensor) else next(iter(args[0] or ()), None)
        if not isinstance(first, Tensor):
            check(*args)
            raise AssertionError(f"{name}: the check accepts a call without tensors")
        try:
            operators = backends.resolve(first.device).operators()
        except backends.BackendUnavailable:
            check(*args)  # a tensor on another device than the others is the caller's mistake, not the backend's
            raise
        repeat = getattr(operators, "repeat", None)
        if repeat is not None and (outputs := repeat(name, args)) is not None:
            return outputs
        check(*args)
        return getattr(operators, name)(*args)

    return kernel


def register(name: str, autograd: Callable[[str, Any], Callable[..., Any]]) -> None:
    packet = getattr(torch.ops.wnfused, name)
    for overload, op in ((name, packet.default), (f"{name}.python", packet.python)):
        LIBRARY.impl(overload, _chosen_backend(name), "CompositeExplicitAutograd")
        LIBRARY.impl(overload, autograd(name, op), "Autograd", with_keyset=True)
        # Under vmap the plain formula runs: PyTorch's batching rules turn it into one batched matmul or grouped conv.
        LIBRARY.impl(overload, differentiable_formula(name), "FuncTorchBatched")


for _name in TENSOR_ARGUMENTS:
    register(_name, _forward_autograd)
    register(f"{_name}_backward", backward_autograd)
