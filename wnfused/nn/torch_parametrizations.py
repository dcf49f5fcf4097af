"""What ``torch.nn.utils.parametrize`` looks for on a layer: ``layer.parametrizations["weight"]``.

The layers show their gain and direction there under torch's names, so that code written for
``torch.nn.utils.parametrizations.weight_norm`` reads them, and ``remove_parametrizations(layer, "weight")`` folds.
"""

import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import _WeightNorm

if TYPE_CHECKING:
    from wnfused.nn.base import WeightNormalized

_NAMES = {"original0": "weight_g", "original1": "weight_v"}


class WeightParametrization(nn.Module):
    """A view of one layer with the attributes of torch's ``ParametrizationList``; it stores nothing itself."""

    is_tensor, ntensors, unsafe = False, 2, True

    layer: "WeightNormalized"

    def __init__(self, layer: "WeightNormalized") -> None:
        super().__init__()
        self.__dict__["layer"] = layer  # not as a submodule

    @property
    def original0(self) -> Tensor:
        return self.layer.weight_g

    @property
    def original1(self) -> Tensor:
        return self.layer.weight_v

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _NAMES:
            setattr(self.layer, _NAMES[name], value)
        else:
            super().__setattr__(name, value)

    def forward(self) -> Tensor:
        return self.layer.weight

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> nn.Module:
        return [_WeightNorm(self.layer.dim)][index]

    def __iter__(self) -> Iterator[nn.Module]:
        return iter([self[0]])

    def append(self, step: nn.Module) -> None:
        """Called by ``register_parametrization``: a second, equal weight norm changes nothing; others do not fit."""
        if isinstance(step, _WeightNorm) and step.dim == self[0].dim:
            return
        raise RuntimeError(
            f"{type(self.layer).__name__}: weight: it is weight-normalized and takes no second parametrization "
            f"({type(step).__name__}); call wnfused.to_torch or wnfused.fold on the layer first"
        )


class Parametrizations(nn.ModuleDict):
    """What ``layer.parametrizations`` returns until torch parametrizes something else of the layer."""

    def __init__(self, layer: "WeightNormalized") -> None:
        super().__init__({"weight": WeightParametrization(layer)})
        self.__dict__["layer"] = layer  # not as a submodule

    def __setitem__(self, key: str, steps: nn.Module) -> None:
        """Parametrize another tensor of the layer, such as the bias: only this layer, not its class.

        torch takes the layer for parametrized already and prepares no class for it: see ``LayerType.__setattr__``.
        """
        layer: WeightNormalized | None = self.__dict__.get("layer")
        if layer is None:
            super().__setitem__(key, steps)
            return
        parametrize._inject_new_class(layer)
        type.__setattr__(type(layer), "of_one_layer", True)
        layer._modules["parametrizations"] = nn.ModuleDict({key: steps})
        parametrize._inject_property(layer, key)

    def __delitem__(self, key: str) -> None:
        """Fold the layer, at the point where torch's ``remove_parametrizations`` deletes the parametrization.

        torch then deletes ``parametrizations`` and returns to the first base class: both are prepared here.
        """
        layer: WeightNormalized = self.__dict__["layer"]
        if layer.activation is not None:
            raise RuntimeError(
                f"{type(layer).__name__}: weight: remove_parametrizations cannot keep activation={layer.activation!r}; "
                "call wnfused.fold on the layer"
            )
        kind, trained = layer.plain_class(), layer.weight_g.requires_grad or layer.weight_v.requires_grad
        layer.fold_()
        if not trained:
            del layer._parameters["weight"]  # torch registers a weight that requires no gradient as a buffer
        layer.__class__ = types.new_class(kind.__name__, (kind,))
        layer.__dict__["parametrizations"] = None


class LayerType(type):
    """Metaclass of the layers: torch's ``parametrize`` takes their class for one that it made for a single layer."""

    of_one_layer = False

    def __setattr__(cls, name: str, value: Any) -> None:
        theirs = isinstance(value, property) and getattr(value.fget, "__module__", "") == parametrize.__name__
        if cls.of_one_layer or not theirs:
            super().__setattr__(name, value)

    def __delattr__(cls, name: str) -> None:
        if name != "weight" or name in vars(cls):
            super().__delattr__(name)
