"""What the subcommands share: their registration, one-line errors, and exit codes after signals.

A subcommand is a file of this package with a function under ``@command`` that takes the parsed arguments and returns an
exit code; ``@command`` also names the function that adds its arguments. Heavy modules are imported inside functions, so
that help and usage errors are immediate.
"""

import argparse
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """argparse with one-line errors."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")

    def unknown(self, arguments: list[str]) -> NoReturn:
        """Exit with an error that suggests the option that was probably meant."""
        from wnfused.suggestions import nearest

        options = [option for action in self._actions for option in action.option_strings]
        meant = nearest(arguments[0].partition("=")[0], options)
        hint = f", did you mean {meant}?" if meant else ""
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


def cannot_write(file: str) -> str | None:
    """Why ``file`` cannot be written, known before any work is done; None if it probably can."""
    if not Path(file).absolute().parent.is_dir():
        return f"cannot write {file}: the directory does not exist"
    return f"cannot write {file}: it is a directory" if Path(file).is_dir() else None


@contextmanager
def terminable() -> Iterator[None]:
    """A context in which SIGTERM raises KeyboardInterrupt, like Ctrl-C, with the signal as its argument.

    Temporary files are then removed. Without a handler SIGTERM would not even end the first process of a container.
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
    signal.signal(number, signal.SIG_DFL)  # a second SIGTERM ends the process at once
    raise KeyboardInterrupt(signal.Signals(number))


def interrupted(stop: KeyboardInterrupt) -> int:
    """Report the signal; returns the exit code that shells use for it."""
    terminated = stop.args[:1] == (signal.SIGTERM,)
    return fail("terminated" if terminated else "interrupted", code=exit_code("SIGTERM" if terminated else None))


def exit_code(stopped_by: str | None) -> int:
    return 128 + signal.Signals[stopped_by or "SIGINT"]


def wnfused_version() -> str:
    import wnfused

    return wnfused.__version__
