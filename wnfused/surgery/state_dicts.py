"""State dicts with the key names of either of torch's weight norms, so that torch can load wnfused's checkpoints.

Loading needs nothing from this module: the layers' ``load_state_dict`` accepts both spellings, and plain weights.
"""

from typing import Any

from torch import nn

from wnfused import checks
from wnfused.nn.base import SPELLINGS, WeightNormalized


def state_dict(model: nn.Module, *, spelling: str = "parametrizations", keep_vars: bool = False) -> dict[str, Any]:
    """``model.state_dict()`` with torch's names for the gains and directions of wnfused's layers.

    ``spelling`` is ``"hook"`` for ``weight_g`` and ``weight_v``, which both of torch's weight norms load, or
    ``"parametrizations"`` for ``parametrizations.weight.original0`` and ``original1``, which only
    ``torch.nn.utils.parametrizations.weight_norm`` loads. wnfused's layers load either.
    """
    checks.module("state_dict", model)
    if spelling not in SPELLINGS:
        raise ValueError(f"state_dict: spelling: expected one of {', '.join(map(repr, SPELLINGS))}, got {spelling!r}")
    state = model.state_dict(keep_vars=keep_vars)
    names = {}
    for prefix, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, WeightNormalized):
            dot = f"{prefix}." if prefix else ""
            for own, theirs in zip(SPELLINGS["hook"], SPELLINGS[spelling], strict=True):
                names[dot + own] = dot + theirs
    renamed = type(state)((names.get(key, key), value) for key, value in state.items())
    if hasattr(state, "_metadata"):
        renamed._metadata = state._metadata  # type: ignore[attr-defined]
    return renamed
