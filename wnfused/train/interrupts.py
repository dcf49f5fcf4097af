"""Ctrl-C and SIGTERM as wishes: the loop looks for them between steps, saves and leaves."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """A context in which the first signal is only noted; a second Ctrl-C interrupts at once.

    ``signal`` is final when the context is left: whatever comes later meets the handlers from before.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    @property
    def requested(self) -> bool:
        return self.signal is not None

    def flags(self) -> tuple[bool, ...]:
        """For each of SIGNALS whether it was the first."""
        return tuple(self.signal == number for number in SIGNALS)

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():  # elsewhere Python allows no handlers
            self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # SIGINT last: its handler from before may raise at once, and nothing is left to restore then.
        for number, handler in reversed(self._before.items()):
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        if self.signal is None:
            self.signal = signal.Signals(number)


def passed_on(name: str | None) -> KeyboardInterrupt:
    """What a caller raises for a run that this signal interrupted."""
    return KeyboardInterrupt(signal.Signals[name or "SIGINT"])
