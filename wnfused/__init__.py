"""Weight normalization that costs what a plain layer costs."""

from wnfused import diagnostics, functional, init, models
from wnfused.convert import ConvertReport, apply, convert
from wnfused.fold import fold, to_torch
from wnfused.freeze import frozen
from wnfused.layers import (
    WNConv1d,
    WNConv2d,
    WNConv3d,
    WNConvTranspose1d,
    WNConvTranspose2d,
    WNConvTranspose3d,
    WNLinear,
)
from wnfused.ops.backends import BackendUnavailable, backend
from wnfused.precompute import precompute_norms
from wnfused.state_dicts import state_dict

__version__ = "0.1.0"
__all__ = [
    "BackendUnavailable",
    "ConvertReport",
    "WNConv1d",
    "WNConv2d",
    "WNConv3d",
    "WNConvTranspose1d",
    "WNConvTranspose2d",
    "WNConvTranspose3d",
    "WNLinear",
    "apply",
    "backend",
    "convert",
    "diagnostics",
    "fold",
    "frozen",
    "functional",
    "init",
    "models",
    "precompute_norms",
    "state_dict",
    "to_torch",
]
