"""Conversion of whole models: to wnfused's layers, back to torch's weight norm or plain layers, and state-dict keys."""

from wnfused.surgery.convert import apply, convert
from wnfused.surgery.fold import fold, to_torch
from wnfused.surgery.report import ConvertReport
from wnfused.surgery.state_dicts import state_dict

__all__ = ["ConvertReport", "apply", "convert", "fold", "state_dict", "to_torch"]
