"""``precompute_norms``: the row norms of all of a model's layers in one launch."""

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
    """A block in whose forward passes the layers of ``model`` find their row norms ready, computed in one launch.

    ``with wnfused.precompute_norms(model): loss = model(x)``, once a step. The block's value is the number of layers.
    A weight that is changed inside the block in a way autograd sees is noticed, and its norms are computed as always.
    A norm over more than 32768 elements is left to the layer, which shares it out among many programs. While a CUDA
    graph is captured, all are: what it replays must not depend on norms from outside.
    This is for the ``triton`` backend, whose large layers otherwise launch a kernel each for their norms; the others
    find the norms while they walk the weight anyway, and nothing is computed for them.
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
    """The backend's function for the norms of many weights at once, where it has one that takes this layer's."""
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
