"""``wnfused doctor``: a one-page report on a model."""

import argparse
import sys
from pathlib import Path

from wnfused.cli.commands import cannot_write, command, fail
from wnfused.cli.inputs import DEFAULT_INPUT, add_model_arguments, example_input


def _doctor_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument("--plot", metavar="FILE", help="also plot the signal")


@command("doctor", "examine a model: roles, gains, signal, dead rows, layers that can be fused", _doctor_arguments)
def doctor(args: argparse.Namespace) -> int:
    from wnfused import extras
    from wnfused.diagnostics import doctor as clinic
    from wnfused.diagnostics import signal_report

    inputs = args.input or [DEFAULT_INPUT]
    try:
        example = example_input(inputs)
    except ValueError as error:
        return fail(f"doctor: {error}", code=2)
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
