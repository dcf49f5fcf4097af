"""The data sets by name."""

import difflib
from pathlib import Path
from typing import Any

from wnfused.data.digits import load_digits
from wnfused.data.splits import DataError, Dataset

NAMES = ("digits", "mnist", "fashion-mnist", "cifar10", "cifar100")


def load(name: str, *, data_dir: Path | str | None = None, download: bool = True) -> Dataset:
    """The data set ``name``, from ``data_dir`` or, without one, from the cache folder, downloaded there if need be."""
    _check_name(name)
    if name == "digits":
        train, test = load_digits()
        return Dataset(name, train, test, 10, (0.3056,) * 3, (0.3237,) * 3)
    raise DataError(f"{name}: not yet")


def _check_name(name: Any) -> None:
    if name in NAMES:
        return
    near = difflib.get_close_matches(str(name).lower().replace("_", "-"), NAMES, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise DataError(f"load: name: unknown data set {name!r}; {hint}There are {', '.join(NAMES)}")
