"""Training: a Config says everything about a run, ``train`` does it, and the run's folder keeps all of it."""

from wnfused.train.config import Config
from wnfused.train.errors import RunError, WriteError
from wnfused.train.presets import PRESETS, preset
from wnfused.train.progress import Lines, Live, Progress
from wnfused.train.result import Result
from wnfused.train.run import load_best, stored_config, train

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
