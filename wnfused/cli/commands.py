"""What the subcommands share: how one is registered, and errors of one line.

A subcommand is a file of this package with a function from its parsed arguments to an exit code, under ``@command``;
its own arguments are added by the function named there. Anything heavy is imported inside, so that help and typing
errors answer at once.
"""

import argparse
import difflib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """argparse, with errors of one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")

    def unknown(self, arguments: list[str]) -> NoReturn:
        """An error that also names the option that was probably meant."""
        options = [option for action in self._actions for option in action.option_strings]
        near = difflib.get_close_matches(arguments[0].partition("=")[0], options, n=1)
        hint = f", did you mean {near[0]}?" if near else ""
        self.error(f"unrecognized arguments: {' '.join(arguments)}{hint}")


@dataclass(frozen=True)
class Command:
    run: Callable[[argparse.Namespace], int]
    summary: str
    arguments: Callable[[argparse.ArgumentParser], None]


COMMANDS: dict[str, Command] = {}


def command(
    name: str, summary: str, arguments: Callable[[argparse.ArgumentParser], None] = lambda parser: None
) -> Callable[[Callable[[argparse.Namespace], int]], Callable[[argparse.Namespace], int]]:
    def register(run: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
        COMMANDS[name] = Command(run, summary, arguments)
        return run

    return register


def fail(message: str, code: int = 1) -> int:
    print(f"wnfused: {message}", file=sys.stderr)
    return code


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt as Ctrl-C does, with the signal as its argument.

    What is half written is then removed, and a container's first process, which that signal does not end by itself,
    ends.
    """
    usual = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    if usual:
        signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        if usual:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _terminate(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)  # a second one ends the process at once
    raise KeyboardInterrupt(signal.Signals(number))


def interrupted(stop: KeyboardInterrupt) -> int:
    """The exit code that shells give a process ended by that signal."""
    terminated = stop.args[:1] == (signal.SIGTERM,)
    return fail("terminated" if terminated else "interrupted", code=exit_code("SIGTERM" if terminated else None))


def exit_code(stopped_by: str | None) -> int:
    return 128 + signal.Signals[stopped_by or "SIGINT"]


def nearest_command(name: str) -> str:
    near = difflib.get_close_matches(name, COMMANDS, n=1)
    return f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(COMMANDS)}"


def wnfused_version() -> str:
    import wnfused

    return wnfused.__version__
