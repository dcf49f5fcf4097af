"""Autograd of ``model_weights``: one forward for all weights, one node of the graph per bucket of about 25 MB.

A single node would wait for the gradient of the first layer before it computes any dv, and DDP, which sends gradients
while the backward runs, could not start before the backward has ended. Buckets of DDP's own size keep them overlapped.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKeySet
from torch.autograd import forward_ad

from wnfused.ops.autograd import backward_autograd, differentiable_formula, has_tangent, redispatch, register

BUCKET_BYTES = 25 * 2**20  # DDP's default
# Of the nodes that are ready, autograd runs the one that was made last. The buckets are made before the forward of the
# model: without a later number all of them would wait for the end of the backward.
_SOON = 2**63


def buckets(weights: Sequence[Tensor], least: int | None = None) -> Iterator[list[int]]:
    """The places of the weights, in order, in groups that end, as DDP's, once they have ``least`` bytes."""
    least = BUCKET_BYTES if least is None else least
    group: list[int] = []
    size = 0
    for i, weight in enumerate(weights):
        group.append(i)
        size += weight.numel() * weight.element_size()
        if size >= least:
            yield group
            group, size = [], 0
    if group:
        yield group


def _versions(tensors: Sequence[Tensor]) -> list[int]:
    if torch.compiler.is_compiling():
        return [-1] * len(tensors)
    return [-1 if t.is_inference() else t._version for t in tensors]


class _Bucket(torch.autograd.Function):
    """The node of some weights. It holds v, g and the norms, never w.

    They are not saved with ``save_for_backward``, which allows one backward only: the losses of two towers of a model
    may run theirs one after the other, and both reach this node. Their versions are compared here instead.
    """

    @staticmethod
    def forward(ctx: Any, weights: tuple[Tensor, ...], norms: Tensor, options: Any, *given: Tensor) -> Any:
        count = len(weights)
        ctx.v, ctx.g, ctx.norms = given[:count], given[count:], norms
        ctx.dims, ctx.eps = options
        ctx.versions = _versions(given)
        ctx.set_materialize_grads(False)  # a layer that was not used has no gradient
        return weights

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        count = len(ctx.v)
        used = [i for i, gradient in enumerate(gradients) if gradient is not None]
        results: list[Tensor | None] = [None] * (2 * count)
        if used:
            _check_unchanged(ctx, used)
            wanted = ctx.needs_input_grad[3:]
            places = [i for i in used if wanted[i]] + [count + i for i in used if wanted[count + i]]
            for place, gradient in zip(places, _gradients(ctx, used, gradients, wanted), strict=True):
                results[place] = gradient
        return (None, None, None, *results)


def _check_unchanged(ctx: Any, used: list[int]) -> None:
    count = len(ctx.v)
    now = _versions((*ctx.v, *ctx.g))
    if now == ctx.versions:
        return
    for place in (*used, *(count + i for i in used)):
        if now[place] != ctx.versions[place] and now[place] >= 0:
            name, t = ("v", ctx.v[place]) if place < count else ("g", ctx.g[place - count])
            raise RuntimeError(
                f"model_weights: {name} of shape {list(t.shape)}, needed for the gradient, was modified by an inplace "
                "operation between forward and backward; run the backward before the optimizer's step"
            )


def _gradients(ctx: Any, used: list[int], gradients: Sequence[Any], wanted: Sequence[bool]) -> list[Tensor]:
    count, norms = len(ctx.v), ctx.norms
    if len(used) < count:
        parts = norms.split([g.numel() for g in ctx.g])
        norms = torch.cat([parts[i] for i in used])
    dw = [gradients[i] for i in used]
    if len({t.dtype for t in dw}) > 1:
        dw = [t.to(ctx.norms.dtype) for t in dw]
    args = (
        dw, [ctx.v[i] for i in used], [ctx.g[i] for i in used], norms,
        [ctx.dims[i] for i in used], [ctx.eps[i] for i in used],
        [wanted[i] for i in used], [wanted[count + i] for i in used],
    )  # fmt: skip
    op = torch.ops.wnfused.model_weights_backward.default
    if torch.is_grad_enabled() or forward_ad._current_level >= 0:
        dv, dg = op(*args)
    else:  # an ordinary backward needs no autograd of its own
        with torch._C._AutoDispatchBelowADInplaceOrView():
            dv, dg = op(*args)
    return [*dv, *dg]


def _forward_autograd(name: str, op: Any) -> Callable[..., Any]:
    formula = differentiable_formula(name)

    def kernel(keyset: DispatchKeySet, v: list[Tensor], g: list[Tensor], dims: Any, eps: Any, dtype: Any) -> Any:
        if has_tangent((v, g)) or torch._C._are_functorch_transforms_active():
            return formula(v, g, dims, eps, dtype)  # an autograd.Function cannot be recorded there
        weights, norms = redispatch(op, keyset, (v, g, dims, eps, dtype))
        needed = [i for i in range(len(v)) if v[i].requires_grad or g[i].requires_grad]
        if not torch.is_grad_enabled() or not needed:
            return weights, norms
        counts = [t.numel() for t in g]
        for bucket in buckets([v[i] for i in needed]):
            own = [needed[i] for i in bucket]
            first, last = own[0], own[-1]
            known = norms[sum(counts[:first]) : sum(counts[: last + 1])]
            if len(own) < last + 1 - first:  # weights without gradients are between them
                parts = norms.split(counts)
                known = torch.cat([parts[i] for i in own])
            options = ([dims[i] for i in own], [eps[i] for i in own])
            given = [*(v[i] for i in own), *(g[i] for i in own)]
            results = _Bucket.apply(tuple(weights[i] for i in own), known, options, *given)
            results[0].grad_fn._set_sequence_nr(_SOON)
            for i, w in zip(own, results, strict=True):
                weights[i] = w
        return weights, norms

    return kernel


register("model_weights", _forward_autograd)
register("model_weights_backward", backward_autograd)
