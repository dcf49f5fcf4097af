"""The command ``wnfused``: one file for each subcommand, listed below in the order in which help shows them."""

import sys
from collections.abc import Sequence

from wnfused.cli import train, report, build, info, tune, audit, doctor  # isort: skip
from wnfused.cli.commands import (
    COMMANDS,
    Command,
    Parser,
    fail,
    interrupted,
    nearest_command,
    terminable,
    wnfused_version,
)

__all__ = ["COMMANDS", "Command", "audit", "build", "doctor", "info", "main", "report", "train", "tune"]


def main(argv: Sequence[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    if argv and not argv[0].startswith("-") and argv[0] not in COMMANDS:
        return fail(f"unknown command {argv[0]!r}, {nearest_command(argv[0])}", code=2)
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
