"""Weight normalization that costs what a plain layer costs."""

from wnfused import diagnostics, functional, init, models, nn, surgery
from wnfused.nn import (
    WNConv1d,
    WNConv2d,
    WNConv3d,
    WNConvTranspose1d,
    WNConvTranspose2d,
    WNConvTranspose3d,
    WNLinear,
    frozen,
    model_weights,
    warm_up,
)
from wnfused.ops.backends import BackendUnavailable, backend
from wnfused.surgery import ConvertReport, apply, convert, fold, state_dict, to_torch

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
    "model_weights",
    "models",
    "nn",
    "state_dict",
    "surgery",
    "to_torch",
    "warm_up",
]
