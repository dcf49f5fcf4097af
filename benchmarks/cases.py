"""The layers of ``shapes.toml``."""

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from torch import nn

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

KINDS: dict[str, Callable[..., nn.Module]] = {
    "conv1d": nn.Conv1d,
    "conv2d": nn.Conv2d,
    "conv3d": nn.Conv3d,
    "conv_transpose1d": nn.ConvTranspose1d,
}
OPTIONS = ("stride", "padding", "dilation", "groups")


@dataclass(frozen=True)
class Case:
    name: str
    origin: str  # the network that has such a layer
    make: Callable[[], nn.Module]  # the plain layer
    shape: tuple[int, ...]  # of the input
    dim: int  # of the norm
    quick: bool  # part of `make bench`


def layers() -> Iterator[Case]:
    entries = tomllib.loads(files(__package__).joinpath("shapes.toml").read_text())["layer"]
    for entry in entries:
        for size in entry["sizes"]:
            yield _linear(entry, *size) if entry["kind"] == "linear" else _convolution(entry, *size)


def _linear(entry: Mapping[str, Any], batch: int, inputs: int, outputs: int) -> Case:
    name = f"Linear {inputs}→{outputs}, batch {batch}"
    quick = [batch, inputs, outputs] in entry.get("quick", ())
    return Case(name, entry["from"], lambda: nn.Linear(inputs, outputs), (batch, inputs), 0, quick)


def _convolution(entry: Mapping[str, Any], batch: int, inputs: int, outputs: int) -> Case:
    options = {name: _tuples(entry[name]) for name in OPTIONS if name in entry}
    kernel, at = _tuples(entry["kernel"]), entry["at"]
    make = KINDS[entry["kind"]]
    words = [make.__name__, f"{inputs}→{outputs}", _kernel(kernel, len(at))]
    words += [f"{name} {_text(value)}" for name, value in options.items() if name != "padding"]
    name = f"{' '.join(words)} @{'×'.join(map(str, at))}, batch {batch}"
    quick = [batch, inputs, outputs] in entry.get("quick", ())
    return Case(
        name,
        entry["from"],
        lambda: make(inputs, outputs, kernel, **options),
        (batch, inputs, *at),
        entry.get("dim", 0),
        quick,
    )


def _tuples(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _kernel(kernel: int | tuple[int, ...], dims: int) -> str:
    return "×".join(map(str, kernel if isinstance(kernel, tuple) else (kernel,) * dims))


def _text(value: int | tuple[int, ...]) -> str:
    return str(value) if isinstance(value, int) else str(value).replace(" ", "")
