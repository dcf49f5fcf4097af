"""``wnfused doctor``: a one-page report on a model."""

import argparse
import sys
from pathlib import Path

from wnfused.cli.commands import command, fail


def _doctor_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="package.module:name or 'package.module:name(arguments)'")
    parser.add_argument(
        "--input", default="8,3,32,32", metavar="SIZES", help="shape of the example input (default: 8,3,32,32)"
    )
    parser.add_argument("--plot", metavar="FILE", help="also plot the signal")


@command("doctor", "examine a model: roles, gains, signal, dead rows, layers that can be fused", _doctor_arguments)
def doctor(args: argparse.Namespace) -> int:
    import torch

    from wnfused import extras
    from wnfused.diagnostics import doctor as clinic
    from wnfused.diagnostics import signal_report

    try:
        shape = [int(part) for part in args.input.split(",")]
    except ValueError:
        return fail(f"doctor: --input: expected sizes like 8,3,32,32, got {args.input!r}", code=2)
    if args.plot and (gone := extras.missing("matplotlib")):
        return fail(f"doctor: --plot: {extras.not_installed(*gone)}", code=2)
    sys.path.insert(0, str(Path.cwd()))  # as python -m does: models are usually in the working directory
    try:
        model = clinic.load(args.model)
        example = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        print(clinic.examine(model, example))
        report = signal_report(model, example) if args.plot else None
    except clinic.BadModel as error:
        return fail(f"doctor: {error}", code=2)
    except (RuntimeError, ValueError, TypeError) as error:
        return fail(f"doctor: {args.model} on an input of shape {tuple(shape)}: {str(error).splitlines()[0]}")
    if report is None:
        return 0
    try:
        print(f"\nplot: {report.plot(args.plot)}")
    except OSError as error:
        return fail(f"doctor: --plot: cannot write {args.plot}: {error.strerror or error}")
    except ValueError as error:  # a suffix that matplotlib does not know
        return fail(f"doctor: --plot: cannot write {args.plot}: {str(error).splitlines()[0]}", code=2)
    return 0
