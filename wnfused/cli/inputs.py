"""A model and its example input on the command line."""

import argparse
import re
from typing import Any

DEFAULT_INPUT = "8,3,32,32"


def add_model_arguments(parser: argparse.ArgumentParser, *, optional: bool = False) -> None:
    about = "package.module:name or 'package.module:name(arguments)'"
    parser.add_argument("model", metavar="MODEL", nargs="?" if optional else None, help=about)
    parser.add_argument(
        "--input",
        action="append",
        metavar="[NAME=]SIZES[:intN]",
        help=f"shape of an example input (default: {DEFAULT_INPUT}); repeat it for more arguments, name keyword "
        "arguments, and append :int50 for integers below 50, such as tokens",
    )


def example_input(given: list[str] | None) -> Any:
    """What ``--input`` describes: a tensor, or for several inputs a tuple or a dict of arguments."""
    import torch

    generator = torch.Generator().manual_seed(0)
    args, kwargs = [], {}
    inputs = given or [DEFAULT_INPUT]
    for text in inputs:
        form = re.fullmatch(r"(?:([A-Za-z_]\w*)=)?(\d+(?:,\d+)*)(?::int([1-9]\d*))?", text.replace(" ", ""))
        if form is None:
            raise ValueError(f"--input: expected sizes like 8,3,32,32 or tokens=2,16:int50, got {text!r}")
        name, sizes, below = form.groups()
        shape = [int(size) for size in sizes.split(",")]
        if below is None:
            tensor = torch.randn(shape, generator=generator)
        else:
            tensor = torch.randint(int(below), shape, generator=generator)
        if name is None:
            args.append(tensor)
        else:
            kwargs[name] = tensor
    if args and kwargs:
        raise ValueError(f"--input: expected names for all inputs or for none, got {' and '.join(inputs)}")
    return kwargs or (args[0] if len(args) == 1 else tuple(args))
