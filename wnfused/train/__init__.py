"""Training: a Config describes a run, ``train`` runs it, and the run directory stores it."""

from wnfused.train.config import Config
from wnfused.train.presets import PRESETS, preset
from wnfused.train.progress import Lines, Live, Progress
from wnfused.train.result import Result, RunError, WriteError
from wnfused.train.resume import stored_config
from wnfused.train.run import load_best, train

__all__ = [
    "PRESETS",
    "Config",
    "Lines",
    "Live",
    "Progress",
    "Result",
    "RunError",
    "WriteError",
    "load_best",
    "preset",
    "stored_config",
    "train",
]
