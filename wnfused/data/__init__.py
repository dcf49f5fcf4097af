"""Data sets (digits, MNIST, Fashion-MNIST, CIFAR-10 and -100), stored in memory as bytes, and their loader."""

from wnfused.data.augment import Augmentation
from wnfused.data.catalog import AUTHORS, NAMES, load
from wnfused.data.loader import Loader
from wnfused.data.splits import DataError, Dataset, Split, first, hold_out, shrunk

__all__ = [
    "AUTHORS",
    "NAMES",
    "Augmentation",
    "DataError",
    "Dataset",
    "Loader",
    "Split",
    "first",
    "hold_out",
    "load",
    "shrunk",
]
