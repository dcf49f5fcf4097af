"""Ctrl-C and SIGTERM: noted when they arrive; the training loop checks between steps, saves and stops."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(Exception):
    """Raised in the training loop to stop after a signal."""


class Interrupts:
    """A context in which the first signal is only noted; a second Ctrl-C interrupts at once.

    On exit the previous handlers are restored, so ``signal`` no longer changes.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    @property
    def requested(self) -> bool:
        return self.signal is not None

    def flags(self) -> tuple[bool, ...]:
        """For each of SIGNALS whether it arrived first."""
        return tuple(self.signal == number for number in SIGNALS)

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():  # Python allows handlers in the main thread only
            self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # SIGINT last: its previous handler may raise at once, when nothing is left to restore.
        for number, handler in reversed(self._before.items()):
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        if self.signal is None:
            self.signal = signal.Signals(number)


def keyboard_interrupt(name: str | None) -> KeyboardInterrupt:
    """The exception for the caller of a run that the signal ``name`` interrupted."""
    return KeyboardInterrupt(signal.Signals[name or "SIGINT"])
