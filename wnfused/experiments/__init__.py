"""The experiments of Arpit, Campos & Bengio (2019), one file each, and the showcase of ``wnfused train``."""

from wnfused.experiments.catalog import MODULES, check, run

NAMES = tuple(MODULES)

__all__ = ["NAMES", "check", "run"]
