"""What torch's older ``weight_norm`` and ``remove_weight_norm`` look for on a layer: a hook of class ``WeightNorm``.

Each layer carries a ``FusedNorm`` among its forward pre-hooks, so that ``torch.nn.utils.remove_weight_norm``,
and model methods that call it, fold the layer instead of raising "weight_norm of 'weight' not found".
"""

from collections import OrderedDict
from typing import Any

from torch import nn
from torch.nn.utils.weight_norm import WeightNorm


class FusedNorm(WeightNorm):
    """Stands in for torch's hook. It computes nothing, because the layer normalizes its weight itself."""

    def __call__(self, module: nn.Module, inputs: Any) -> None:
        return None

    def compute_weight(self, module: nn.Module) -> Any:
        return module.weight

    def remove(self, module: nn.Module) -> None:
        """Fold the layer. torch's ``remove_weight_norm`` then deletes this hook, so it is put back for that."""
        key = next(key for key, hook in module._forward_pre_hooks.items() if hook is self)
        module.fold_()  # type: ignore[operator]
        module._forward_pre_hooks[key] = self


class OnlyFusedNorm(OrderedDict[int, Any]):
    """Forward pre-hooks that are false while the ``FusedNorm`` is the only one: ``nn.Module`` then calls no hooks."""

    idle = 1  # hooks that need not be called

    def __bool__(self) -> bool:
        return len(self) > self.idle


def mark(layer: nn.Module, dim: int | None) -> None:
    """Put a ``FusedNorm`` on a layer."""
    if not layer._forward_pre_hooks:
        layer._forward_pre_hooks = OnlyFusedNorm()
    # A dict that has hooks must stay the same object: the handles of those hooks refer to it.
    layer.register_forward_pre_hook(FusedNorm("weight", -1 if dim is None else dim), prepend=True)


def unmark(layer: nn.Module) -> None:
    hooks = layer._forward_pre_hooks
    for key, hook in list(hooks.items()):
        if isinstance(hook, FusedNorm):
            del hooks[key]
            if isinstance(hooks, OnlyFusedNorm):
                hooks.idle = 0
    if not hooks:
        layer._forward_pre_hooks = OrderedDict()
