"""The tensor that ``layer.weight`` returns: it warns about writes, which change a copy and never reach the layer.

``m.weight.data.normal_(0, 0.01)`` in an initialization loop does nothing under a weight norm, torch's included, and
goes unnoticed. ``ComputedWeight`` is a plain tensor to every operation, as ``nn.Parameter`` is: only the methods that
write, and ``.data``, are replaced. What is computed from it is a ``torch.Tensor``.
"""

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

_NOT_WRITES = {"requires_grad_", "share_memory_", "rename_", "refine_names_", "detach_", "retain_grad_"}


def computed(weight: Tensor) -> Tensor:
    """``weight`` as a ``ComputedWeight``. Under tracing and transforms it stays as it is."""
    plain = type(weight) is Tensor and not torch.compiler.is_compiling()
    plain = plain and torch._C._len_torch_dispatch_stack() == 0 and not torch._C._are_functorch_transforms_active()
    return weight.as_subclass(ComputedWeight) if plain and torch._C._get_tracing_state() is None else weight


class _AnyTensor(type(Tensor)):  # type: ignore[misc]
    """Every tensor counts as an instance: ``torch.testing.assert_close`` compares only related classes."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, Tensor)


class ComputedWeight(Tensor, metaclass=_AnyTensor):
    """The normalized weight of a layer, computed from its gain and direction."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @property
    def data(self) -> Tensor:
        return Tensor.data.__get__(self).as_subclass(ComputedWeight)  # type: ignore[attr-defined]

    @data.setter
    def data(self, value: Tensor) -> None:
        _warn()
        Tensor.data.__set__(self, value)  # type: ignore[attr-defined]

    def detach(self) -> Tensor:
        return super().detach().as_subclass(ComputedWeight)  # nn.Parameter(weight) requires the same class

    def __getitem__(self, index: Any) -> Tensor:
        """``weight.data[:4].zero_()`` writes into this view. Indexing that makes a copy is the caller's own."""
        chosen = super().__getitem__(index)
        return chosen.as_subclass(ComputedWeight) if chosen._is_view() else chosen

    def view(self, *shape: Any) -> Tensor:
        return super().view(*shape).as_subclass(ComputedWeight)

    def view_as(self, other: Tensor) -> Tensor:
        return super().view_as(other).as_subclass(ComputedWeight)  # nn.init.orthogonal_ writes into this view

    @property
    def _is_param(self) -> bool:
        return False

    @_is_param.setter
    def _is_param(self, value: bool) -> None:
        """Set by ``nn.Parameter(weight)``, whose result is an ordinary parameter that may be written."""
        self.__class__ = nn.Parameter  # type: ignore[assignment]

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return self.as_subclass(Tensor).__deepcopy__(memo)  # type: ignore[no-untyped-call]

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.as_subclass(Tensor).__reduce_ex__(protocol)  # type: ignore[no-untyped-call]

    def __repr__(self, **kwargs: Any) -> str:  # type: ignore[override]
        return self.as_subclass(Tensor).__repr__(**kwargs)  # type: ignore[no-untyped-call]


def _warn() -> None:
    warnings.warn(
        "layer.weight: it is computed from weight_g and weight_v on each access, so what is written into it does not "
        "reach the layer; initialize the layer with wnfused.init (normal_, uniform_, …), write into weight_g and "
        "weight_v, or call wnfused.fold first. Clone the weight if you want to write into a copy",
        stacklevel=3,
    )


def _noticed(write: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(write)
    def method(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        if not (self.requires_grad and torch.is_grad_enabled()):  # otherwise it is a step of the caller's computation
            _warn()
        return write(self, *args, **kwargs)

    return method


def _writes() -> list[str]:
    """The methods of tensors that write into them: ``normal_``, ``copy_``, ``__iadd__``, ``__setitem__``, …"""
    names = [name for name in dir(Tensor) if name.endswith("_") and not name.startswith("_")]
    operators = [f"__i{name}__" for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or")]
    return [name for name in names if name not in _NOT_WRITES] + operators + ["__setitem__"]


for _name in _writes():
    setattr(ComputedWeight, _name, _noticed(getattr(Tensor, _name)))
