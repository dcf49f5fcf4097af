"""``precompute_norms``: compute the row norms of all layers of a model in one launch."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from wnfused.nn.base import WeightNormalized
from wnfused.ops import backends, known_norms

__all__ = ["precompute_norms"]


@contextmanager
def precompute_norms(model: nn.Module) -> Iterator[int]:
    """A context that computes the row norms of all layers of ``model`` in one launch, for the forward passes inside it.

    Use it once per step: ``with wnfused.precompute_norms(model): loss = model(x)``. The context yields the number of
    layers it covers. If a weight changes inside the context in a way that autograd tracks, its layer computes the norms
    as usual. Norms over more than 32768 elements are left to the layer, which splits them across programs. Nothing is
    precomputed during CUDA graph capture, because a replayed graph must not depend on norms from outside it.

    This helps the ``triton`` backend, whose large layers otherwise launch one kernel each for their norms. The other
    backends compute norms while they read the weight, so nothing is precomputed for them.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"precompute_norms: model: expected an nn.Module, got {type(model).__name__}")
    layers = {}
    if not known_norms.capturing():
        normalized = [m for m in model.modules() if isinstance(m, WeightNormalized)]
        layers = {m: many_norms for m in normalized if (many_norms := _many_norms(m)) is not None}
    with known_norms.holding(_norms_of(layers)):
        yield len(layers)


def _many_norms(layer: WeightNormalized) -> Any:
    """The backend's function for the norms of many weights at once; None if it has none that supports this layer."""
    v = layer.weight_v
    if type(v.data) is not torch.Tensor or v.device.type == "meta":  # a sharded or quantized weight
        return None
    operators = backends.resolve(v.device).operators()
    takes = getattr(operators, "takes_many_norms", None)
    return operators.many_norms if takes is not None and takes(v, layer.dim) else None


@torch.no_grad()
def _norms_of(layers: dict[WeightNormalized, Any]) -> list[tuple[torch.Tensor, torch.Tensor, int | None, float]]:
    alike: dict[tuple[Any, torch.device, torch.dtype], list[WeightNormalized]] = defaultdict(list)
    for layer, many_norms in layers.items():
        alike[many_norms, layer.weight_v.device, layer.weight_v.dtype].append(layer)
    known: list[tuple[torch.Tensor, torch.Tensor, int | None, float]] = []
    for (many_norms, *_), group in alike.items():
        weights = [(m.weight_v, tuple(m.weight_g.shape), m.dim, m.eps) for m in group]
        for layer, norms in zip(group, many_norms(weights), strict=True):
            known.append((layer.weight_v, norms, layer.dim, layer.eps))
    return known
