"""The command ``wnfused``: one file for each subcommand, imported in the order of the help."""

import os
import sys
from collections.abc import Sequence

from wnfused.cli import train, experiment, report, bench, build, info, tune, audit, doctor  # isort: skip
from wnfused.cli.commands import (
    COMMANDS,
    Command,
    Parser,
    fail,
    interrupted,
    terminable,
    wnfused_version,
)

__all__ = [
    "COMMANDS",
    "Command",
    "audit",
    "bench",
    "build",
    "doctor",
    "experiment",
    "info",
    "main",
    "report",
    "train",
    "tune",
]

CLOSED_PIPE = 128 + 13  # the exit code that shells use for SIGPIPE, which Windows does not have


def main(argv: Sequence[str] | None = None) -> int:
    try:
        code = _main(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()
    except BrokenPipeError:  # as in `wnfused info | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more as it ends
        return CLOSED_PIPE
    return code


def _main(argv: Sequence[str]) -> int:
    if argv and not argv[0].startswith("-") and argv[0] not in COMMANDS:
        from wnfused.suggestions import did_you_mean

        return fail(f"unknown command {argv[0]!r}, {did_you_mean(argv[0], COMMANDS)}", code=2)
    parser = Parser(prog="wnfused", description="Weight normalization that costs what a plain layer costs.")
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command", parser_class=Parser)
    parsers = {name: commands.add_parser(name, help=c.summary, description=c.summary) for name, c in COMMANDS.items()}
    for name, entry in COMMANDS.items():
        entry.arguments(parsers[name])
    args, unknown = parser.parse_known_args(argv)
    if unknown:
        parsers.get(args.command, parser).unknown(unknown)
    if args.version:
        print(wnfused_version())
        return 0
    if args.command is None:
        parser.print_help()
        return 0
    try:
        with terminable():
            return COMMANDS[args.command].run(args)
    except KeyboardInterrupt as stop:
        return interrupted(stop)
