"""``wnfused report``: training runs on one HTML page."""

import argparse
from pathlib import Path

from wnfused.cli.commands import command, fail
from wnfused.cli.flags import in_flags


def _report_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="a run directory, or a directory of run directories"
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="output file (default: report.html in RUN if there is one RUN, else in the current directory)",
    )
    parser.add_argument("--force", action="store_true", help="replace a file that is not a report")


@command("report", "compare training runs on one HTML page", _report_arguments)
def report(args: argparse.Namespace) -> int:
    from wnfused.report import ReportError, render, write
    from wnfused.train import records

    try:
        runs = [records.read(directory) for directory in records.find(args.runs)]
        page = write(render(runs), args.output or _beside(args.runs), force=args.force)
    except (records.RecordError, ReportError) as error:
        return fail(f"report: {in_flags(str(error), ['force'])}", code=2)
    for run in runs:
        for note in run.notes:
            fail(f"report: {run.path}: {note}")
    print(f"{page} ({len(runs)} {'run' if len(runs) == 1 else 'runs'})")
    return 0


def _beside(runs: list[Path]) -> Path:
    return runs[0] / "report.html" if len(runs) == 1 else Path("report.html")
