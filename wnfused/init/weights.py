"""``torch.nn.init`` for the computed weight of a layer: the functions that an ``init_weights`` loop should call.

``nn.init.normal_(layer.weight, std=0.01)`` is lost under a weight norm, because ``weight`` is computed from gain and
direction. ``wnfused.init.normal_(layer, std=0.01)`` sets v to the drawn weight and g to its norms, so the computed
weight is the drawn one. Each function also takes plain layers, as such a loop meets both. The bias is not changed.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from wnfused.init.layers import layer_of, normalized_modules, write_weight

__all__ = [
    "kaiming_normal_",
    "kaiming_uniform_",
    "normal_",
    "orthogonal_",
    "trunc_normal_",
    "uniform_",
    "weight_",
    "xavier_normal_",
    "xavier_uniform_",
]


def weight_(layer: nn.Module, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Set the layer's weight to what ``function(tensor, *args, **kwargs)`` writes into a tensor of its shape.

    ``function`` is one of ``torch.nn.init``, or your own that works in place. The tensor holds the current weight.
    """
    where = getattr(function, "__name__", "weight_")
    plain = _plain_weight(layer)
    with torch.no_grad():
        if plain is not None:
            function(plain, *args, **kwargs)
            return
        one = layer_of(where, layer)
        weight = layer.weight.detach().clone()  # type: ignore[operator]
        function(weight, *args, **kwargs)
        write_weight(one, weight)


def _plain_weight(layer: Any) -> Tensor | None:
    if not isinstance(layer, nn.Module) or "" in normalized_modules(layer):
        return None
    return layer._parameters.get("weight")


def normal_(layer: nn.Module, mean: float = 0.0, std: float = 1.0, generator: torch.Generator | None = None) -> None:
    """``nn.init.normal_`` for the weight of a layer."""
    weight_(layer, nn.init.normal_, mean, std, generator)


def uniform_(layer: nn.Module, a: float = 0.0, b: float = 1.0, generator: torch.Generator | None = None) -> None:
    """``nn.init.uniform_`` for the weight of a layer."""
    weight_(layer, nn.init.uniform_, a, b, generator)


def trunc_normal_(
    layer: nn.Module,
    mean: float = 0.0,
    std: float = 1.0,
    a: float = -2.0,
    b: float = 2.0,
    generator: torch.Generator | None = None,
) -> None:
    """``nn.init.trunc_normal_`` for the weight of a layer."""
    weight_(layer, nn.init.trunc_normal_, mean, std, a, b, generator)


def xavier_uniform_(layer: nn.Module, gain: float = 1.0, generator: torch.Generator | None = None) -> None:
    """``nn.init.xavier_uniform_`` for the weight of a layer."""
    weight_(layer, nn.init.xavier_uniform_, gain, generator)


def xavier_normal_(layer: nn.Module, gain: float = 1.0, generator: torch.Generator | None = None) -> None:
    """``nn.init.xavier_normal_`` for the weight of a layer."""
    weight_(layer, nn.init.xavier_normal_, gain, generator)


def kaiming_uniform_(
    layer: nn.Module,
    a: float = 0.0,
    mode: Any = "fan_in",
    nonlinearity: Any = "leaky_relu",
    generator: torch.Generator | None = None,
) -> None:
    """``nn.init.kaiming_uniform_`` for the weight of a layer."""
    weight_(layer, nn.init.kaiming_uniform_, a, mode, nonlinearity, generator)


def kaiming_normal_(
    layer: nn.Module,
    a: float = 0.0,
    mode: Any = "fan_in",
    nonlinearity: Any = "leaky_relu",
    generator: torch.Generator | None = None,
) -> None:
    """``nn.init.kaiming_normal_`` for the weight of a layer."""
    weight_(layer, nn.init.kaiming_normal_, a, mode, nonlinearity, generator)


def orthogonal_(layer: nn.Module, gain: float = 1.0, generator: torch.Generator | None = None) -> None:
    """``nn.init.orthogonal_`` for the weight of a layer."""
    weight_(layer, nn.init.orthogonal_, gain, generator)
