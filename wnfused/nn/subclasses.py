"""Fused classes for the user's own subclasses of ``torch.nn`` layers, such as a ``CausalConv1d`` that pads its input.

The user's class precedes the fused one in the method resolution order: its ``super().forward(x)`` is the
fused forward, and code that reads ``self.weight`` gets the normalized weight, which is differentiable.
"""

import functools
from typing import Any

from torch import nn

from wnfused.nn.base import WeightNormalized
from wnfused.nn.torch_parametrizations import LayerType

# Names that a subclass may define without changing how the layer works once it is built.
_HARMLESS = {"__init__", "__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__annotations__"}
_HARMLESS |= {"__annotate_func__", "__annotations_cache__", "__static_attributes__", "__firstlineno__", "__constants__"}
# Names of the fused classes that the user's class may replace.
_REPLACEABLE = _HARMLESS | {"forward", "extra_repr", "reset_parameters"}
_RESERVED = {"__getattr__", "__getattribute__", "__setattr__", "__delattr__", "__setstate__", "__deepcopy__"}
_RESERVED |= {"__reduce__", "__reduce_ex__", "weight_g", "weight_v", "activation", "dim", "eps"}


def additions(kind: type, base: type) -> list[str]:
    """What the classes from ``kind`` down to ``base`` define, except ``__init__``, which has already run."""
    between = kind.__mro__[: kind.__mro__.index(base)]
    return sorted({name for cls in between for name in vars(cls)} - _HARMLESS)


def why_not_fused(user: type[nn.Module], kind: type[WeightNormalized]) -> str | None:
    """Why the subclass ``user`` of ``kind.twin`` cannot be combined with ``kind``; None if it can."""
    added = set(additions(user, kind.twin))
    taken = _RESERVED | (set(additions(kind, kind.twin)) - _REPLACEABLE)
    if clash := sorted(added & taken):
        return f"{user.__name__} is a subclass of {kind.twin.__name__} with its own {', '.join(clash)}"
    try:
        fused_subclass(user, kind)
    except TypeError as error:  # a metaclass or __slots__
        return f"{user.__name__} cannot be combined with {kind.__name__}: {error}"
    return None


def fused_subclass(user: type[nn.Module], kind: type[WeightNormalized]) -> type[WeightNormalized]:
    """The class of a converted ``user`` layer: a subclass of both, with the user's name and methods."""
    return kind if user is kind.twin else _combined(user, kind)  # type: ignore[arg-type]


@functools.cache
def _combined(user: Any, kind: Any) -> Any:
    bases: tuple[type, ...] = (user, kind)
    if "_conv_forward" in additions(user, kind.twin):  # only torch's forward calls it, with the normalized weight
        bases = (user, type("TorchForward", (), {"forward": kind.twin.forward}), kind)
    namespace = {
        "__module__": user.__module__,
        "__qualname__": user.__qualname__,
        "__doc__": user.__doc__,
        "__reduce_ex__": _reduce,
        "user_class": user,
        "fused_class": kind,
    }
    return LayerType(user.__name__, bases, namespace)


def _reduce(layer: Any, protocol: Any) -> tuple[Any, ...]:
    """Pickle the two classes by reference; the combined one is made again on loading."""
    return _new, (layer.user_class, layer.fused_class), layer.__getstate__()


def _new(user: type[nn.Module], kind: type[WeightNormalized]) -> WeightNormalized:
    combined = fused_subclass(user, kind)
    return combined.__new__(combined)
