"""``wnfused doctor``: a one-page report on a model."""

import argparse
import re
import sys
from pathlib import Path
from typing import Any

from wnfused.cli.commands import cannot_write, command, fail


def _doctor_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="package.module:name or 'package.module:name(arguments)'")
    parser.add_argument(
        "--input",
        action="append",
        metavar="[NAME=]SIZES[:intN]",
        help="shape of an example input (default: 8,3,32,32); repeat it for more arguments, name keyword arguments, "
        "and append :int50 for integers below 50, such as tokens",
    )
    parser.add_argument("--plot", metavar="FILE", help="also plot the signal")


@command("doctor", "examine a model: roles, gains, signal, dead rows, layers that can be fused", _doctor_arguments)
def doctor(args: argparse.Namespace) -> int:
    from wnfused import extras
    from wnfused.diagnostics import doctor as clinic
    from wnfused.diagnostics import signal_report

    inputs = args.input or ["8,3,32,32"]
    try:
        example = _example(inputs)
    except ValueError as error:
        return fail(f"doctor: --input: {error}", code=2)
    if args.plot and (problem := cannot_write(args.plot)):
        return fail(f"doctor: --plot: {problem}", code=2)
    if args.plot and (gone := extras.missing("matplotlib")):
        return fail(f"doctor: --plot: {extras.not_installed(*gone)}", code=2)
    sys.path.insert(0, str(Path.cwd()))  # as python -m does: models are usually in the working directory
    try:
        model = clinic.load(args.model)
        print(clinic.examine(model, example))
        report = signal_report(model, example) if args.plot else None
    except clinic.BadModel as error:
        return fail(f"doctor: {error}", code=2)
    except (RuntimeError, ValueError, TypeError) as error:
        return fail(f"doctor: {args.model} on --input {' --input '.join(inputs)}: {str(error).splitlines()[0]}")
    if report is None:
        return 0
    try:
        print(f"\nplot: {report.plot(args.plot)}")
    except OSError as error:
        return fail(f"doctor: --plot: cannot write {args.plot}: {error.strerror or error}")
    except ValueError as error:  # a suffix that matplotlib does not know
        return fail(f"doctor: --plot: cannot write {args.plot}: {str(error).splitlines()[0]}", code=2)
    return 0


def _example(inputs: list[str]) -> Any:
    """The example: a tensor for one plain input, otherwise a tuple of arguments or a dict of keyword arguments."""
    import torch

    generator = torch.Generator().manual_seed(0)
    args, kwargs = [], {}
    for text in inputs:
        form = re.fullmatch(r"(?:([A-Za-z_]\w*)=)?(\d+(?:,\d+)*)(?::int([1-9]\d*))?", text.replace(" ", ""))
        if form is None:
            raise ValueError(f"expected sizes like 8,3,32,32 or tokens=2,16:int50, got {text!r}")
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
        raise ValueError(f"expected names for all inputs or for none, got {' and '.join(inputs)}")
    return kwargs or (args[0] if len(args) == 1 else tuple(args))
