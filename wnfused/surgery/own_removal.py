"""A model's own ``remove_weight_norm()``, which vocoders define, after ``wnfused.fold``.

Such a method calls ``torch.nn.utils.remove_weight_norm`` on every layer, which raises on a plain layer.
"""

import copy
from typing import Any

from torch import nn

from wnfused.nn.base import WeightNormalized
from wnfused.surgery import torch_norms

NAME = "remove_weight_norm"


class RemovedAlready:
    """Replaces the method on one module: it does nothing unless a weight norm has been applied again."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module = self.module
        if any(isinstance(m, WeightNormalized) or torch_norms.norms_on(m) for m in module.modules()):
            return getattr(type(module), NAME)(module, *args, **kwargs)
        return None

    def __deepcopy__(self, memo: dict[int, Any]) -> "RemovedAlready":
        return RemovedAlready(copy.deepcopy(self.module, memo))

    def __reduce__(self) -> tuple[Any, ...]:
        return type, (None,)  # NoneType, called, returns None: a folded model loads without wnfused


def silence_own_removal(model: nn.Module) -> None:
    for module in model.modules():
        if callable(getattr(type(module), NAME, None)):
            module.__dict__[NAME] = RemovedAlready(module)
