"""``wnfused audit``: compile the Triton kernels for every target, without a GPU, and check their code."""

import argparse
import os
import sys
from pathlib import Path

from wnfused.cli.commands import cannot_write, command, fail


def _audit_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--target",
        action="append",
        metavar="TARGET",
        help="sm_80, sm_90, sm_100 or gfx942 (default: all); may be repeated",
    )
    parser.add_argument(
        "--kernel",
        action="append",
        metavar="NAME",
        help="a kernel of wnfused.kernels.triton (default: all); may be repeated",
    )
    parser.add_argument("--json", metavar="FILE", help="write every build as JSON")
    parser.add_argument("--markdown", metavar="FILE", help="write a summary instead of printing every build")


@command("audit", "compile the Triton kernels for every target, without a GPU, and check their code", _audit_arguments)
def audit(args: argparse.Namespace) -> int:
    from importlib.util import find_spec

    if find_spec("triton") is None:
        return fail(
            "audit: triton is not installed; on Linux it comes with wnfused: pip install -c constraints.txt triton"
        )
    if os.environ.get("TRITON_INTERPRET", "0") not in ("", "0"):
        return fail("audit: TRITON_INTERPRET is set, so kernels would be interpreted instead of compiled; unset it")
    from wnfused.kernels.triton.audit import audit as audited
    from wnfused.kernels.triton.audit import builds, report

    for option, requested, known in (("target", args.target, builds.TARGETS), ("kernel", args.kernel, builds.KERNELS)):
        if unknown := [name for name in requested or () if name not in known]:
            return fail(f"audit: unknown --{option} {unknown[0]!r}, expected one of {', '.join(known)}", code=2)
    for file in (args.json, args.markdown):
        if file and (problem := cannot_write(file)):
            return fail(f"audit: {problem}", code=2)
    try:
        rows = audited(tuple(args.target or builds.TARGETS), tuple(args.kernel or builds.KERNELS), _audit_progress)
    except RuntimeError as error:
        return fail(f"audit: {error}")
    if args.json:
        Path(args.json).write_text(report.as_json(rows) + "\n")
    if args.markdown:
        Path(args.markdown).write_text(report.markdown(rows))
    else:
        print(report.terminal(rows))
    broken = [check for check in report.everything(rows) if not check.ok]
    for check in broken:
        lines = "".join(f"\n  {line}" for line in check.broken)
        fail(f"audit: requirement violated: {check.what}: {check.found}; must be {check.limit}{lines}")
    return 1 if broken else 0


def _audit_progress(done: int, count: int, name: str) -> None:
    """A progress bar on a terminal, otherwise a line every 50 builds."""
    if sys.stderr.isatty():
        bar = "█" * (30 * done // count)
        print(f"\r{bar:<30} {done}/{count} {name[:60]:<60}", end="\n" if done == count else "", file=sys.stderr)
    elif done == count or done % 50 == 0:
        print(f"audit: {done}/{count} builds", file=sys.stderr)
