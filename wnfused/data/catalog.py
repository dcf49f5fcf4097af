"""The data sets by name: find them on disk or download them, then read them."""

import difflib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wnfused.data.archives import unpack
from wnfused.data.cifar import LAYOUTS, find_cifar, read_cifar
from wnfused.data.digits import load_digits
from wnfused.data.download import cache_folder, fetch, locked
from wnfused.data.idx import find_idx, read_idx_splits
from wnfused.data.sources import PAGES, SOURCES
from wnfused.data.splits import DataError, Dataset, Split


@dataclass(frozen=True)
class _Facts:
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]


# Mean and std over the training pixels.
_FACTS = {
    "digits": _Facts(10, (0.3056,) * 3, (0.3237,) * 3),
    "mnist": _Facts(10, (0.1307,), (0.3081,)),
    "fashion-mnist": _Facts(10, (0.2860,), (0.3530,)),
    "cifar10": _Facts(10, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": _Facts(100, (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
}
NAMES = tuple(_FACTS)
# What the paper's authors subtract and divide by, for both CIFAR sets; the std is that of one image, on average.
_AUTHORS_CIFAR = ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
AUTHORS = {
    "mnist": ((0.5,), (1.0,)),
    "fashion-mnist": ((0.5,), (1.0,)),  # which stands in for MNIST
    "cifar10": _AUTHORS_CIFAR,
    "cifar100": _AUTHORS_CIFAR,
}


def load(name: str, *, data_dir: Path | str | None = None, download: bool = True) -> Dataset:
    """Load the data set ``name`` from ``data_dir`` or, by default, from the cache folder, downloading it if needed.

    ``data_dir`` contains the official files or archives, or the folders unpacked from them; nothing is written there.
    With ``download=False`` a data set that is not in the cache folder raises ``DataError``.
    """
    _check_name(name)
    if name == "digits":
        train, test = load_digits()
    elif data_dir is not None:
        train, test = _from_folder(name, Path(data_dir).expanduser())
    else:
        train, test = _from_cache(name, cache_folder() / name, download)
    facts = _FACTS[name]
    return Dataset(name, train, test, facts.classes, facts.mean, facts.std)


def _check_name(name: Any) -> None:
    if name in NAMES:
        return
    near = difflib.get_close_matches(str(name).lower().replace("_", "-"), NAMES, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}? Known" if near else "known"
    raise DataError(f"load: name: unknown data set {name!r}; {hint} data sets: {', '.join(NAMES)}")


def _read(name: str, root: Path) -> tuple[Split, Split]:
    if name in LAYOUTS:
        return read_cifar(*find_cifar(name, root), _FACTS[name].classes)
    return read_idx_splits(find_idx(name, root), _FACTS[name].classes)


@contextmanager
def _advice(name: str, text: str) -> Iterator[None]:
    """Prefix an error with the data set's name and append what to do about it."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{name}: {error}. {text}") from error
    except OSError as error:  # for example a folder without permission
        raise DataError(f"{name}: {error.filename} cannot be read: {error.strerror}. {text}") from error


def _by_hand(name: str) -> str:
    return f"download {', '.join(source.file for source in SOURCES[name])} from {PAGES[name]}"


def _from_folder(name: str, root: Path) -> tuple[Split, Split]:
    advice = f"Omit data_dir to have it downloaded, or {_by_hand(name)} into data_dir"
    with _advice(name, advice):
        if not root.exists():
            raise DataError(f"data_dir: {root} does not exist")
        return _read(name, root)


def _from_cache(name: str, folder: Path, download: bool) -> tuple[Split, Split]:
    if not _is_there(name, folder):
        if not download:
            advice = f"Pass download=True, or {_by_hand(name)} and pass its folder as data_dir"
            raise DataError(f"{name}: it is not in the cache folder {folder}, and download is False. {advice}")
        _download(name, folder)
    with _advice(name, f"Delete {folder} to download it again"):
        return _read(name, folder)


def _is_there(name: str, folder: Path) -> bool:
    """Whether the data set can be read from the cache; an archive does not count: it may be in mid-unpacking."""
    try:
        if name not in LAYOUTS:
            return bool(find_idx(name, folder))
        _, place = find_cifar(name, folder)
    except DataError:
        return False
    return place.name not in {source.file for source in SOURCES[name]}


def _download(name: str, folder: Path) -> None:
    with _advice(name, f"Try again, or {_by_hand(name)} and pass its folder as data_dir"), locked(folder):
        if _is_there(name, folder):  # another process has finished the download meanwhile
            return
        for source in SOURCES[name]:
            archive = fetch(source, folder)
            if name in LAYOUTS:
                layout = next(form for form in LAYOUTS[name] if archive.name.startswith(form.archive))
                unpack(archive, layout.folder, layout.files)
                archive.unlink()
