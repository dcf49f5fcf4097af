"""Which implementation runs: the registry of backends and the public choice between them."""

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch

log = logging.getLogger("wnfused")


class BackendUnavailable(RuntimeError):
    """An explicitly chosen backend cannot run here; the message says why."""


@dataclass(frozen=True)
class Backend:
    """One implementation of the operators.

    ``why_not`` returns None where the backend can run on a device, otherwise the reason it cannot (it may build or load
    what the backend needs). ``operators`` returns the module or object whose attributes are the operators' functions.
    ``volunteers`` says whether "auto" considers it for a device.
    """

    name: str
    why_not: Callable[[torch.device], str | None]
    operators: Callable[[], Any]
    volunteers: Callable[[torch.device], bool] = lambda device: True


_registry: dict[str, Backend] = {}
_AUTO_ORDER = ("triton", "native", "torch")
_chosen = "auto"
_said: set[str] = set()  # what the log was told of automatic choices
_resolved: dict[torch.device, Backend] = {}  # what "auto" or the explicit choice came to; two GPUs may differ


def register(backend: Backend) -> None:
    _registry[backend.name] = backend
    _resolved.clear()


def names() -> list[str]:
    return ["auto", *(name for name in _AUTO_ORDER if name in _registry)]


def chosen() -> str:
    """The current choice: "auto" or a backend's name."""
    return _chosen


def _check_name(name: str) -> None:
    if name not in ("auto", *_AUTO_ORDER):
        raise ValueError(f"backend: unknown name {name!r}, expected one of {', '.join(('auto', *_AUTO_ORDER))}")


def _why_not(name: str, device: torch.device) -> str | None:
    if name not in _registry:
        return "it is not part of this installation"
    return _registry[name].why_not(device)


def resolve(device: torch.device) -> Backend:
    """The backend that serves tensors on ``device`` under the current choice."""
    found = _resolved.get(device)
    if found is None:
        found = _resolved[device] = _resolve(device)
    return found


def _resolve(device: torch.device) -> Backend:
    if _chosen != "auto":
        reason = _why_not(_chosen, device)
        if reason is not None:
            raise BackendUnavailable(f"backend {_chosen!r} cannot run on device {str(device)!r}: {reason}")
        return _registry[_chosen]
    passed_over: list[str] = []
    for name in _AUTO_ORDER:
        if name not in _registry or not _registry[name].volunteers(device):
            continue
        reason = _why_not(name, device)
        if reason is None:
            _say_once(name, device, passed_over)
            return _registry[name]
        passed_over.append(f"no {name}: {reason}")
    raise AssertionError("the torch backend runs everywhere")


def _say_once(name: str, device: torch.device, passed_over: list[str]) -> None:
    because = f" ({'; '.join(passed_over)})" if passed_over else ""
    message = f"backend {name!r} serves {device.type} tensors{because}"
    if message not in _said:
        _said.add(message)
        log.log(logging.WARNING if passed_over and device.type == "cpu" else logging.INFO, message)


class backend:  # noqa: N801 - reads as a function: wnfused.backend("torch"), or `with wnfused.backend("torch"):`
    """Choose the backend of all weight-normalized operators: ``"auto"``, ``"triton"``, ``"native"`` or ``"torch"``.

    Calling it sets the choice for the whole process; used in a ``with`` statement it is undone at the end of the block.
    An explicit choice that cannot run raises :class:`BackendUnavailable` naming the reason, and the choice stays as it
    was. ``"auto"`` never raises and logs once what it took. The environment variable ``WNFUSED_BACKEND`` gives the
    initial choice, which is checked at the first call.
    """

    def __init__(self, name: str) -> None:
        self._previous = _chosen
        _check_name(name)
        if name != "auto" and (reason := _why_not_anywhere(name)):
            raise BackendUnavailable(f"backend {name!r} cannot run: {reason}")
        _select(name)

    def __enter__(self) -> "backend":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _select(self._previous)


def _why_not_anywhere(name: str) -> str | None:
    reason = _why_not(name, torch.device("cpu"))
    if reason is not None and torch.cuda.is_available():
        return _why_not(name, torch.device("cuda"))
    return reason


def _select(name: str) -> None:
    global _chosen
    _chosen = name
    _resolved.clear()
    for listener in _listeners:
        listener(name)


_listeners: list[Callable[[str], None]] = []  # told of every choice; the native library keeps its own copy


def on_select(listener: Callable[[str], None]) -> None:
    """Call ``listener`` with the current choice, now and whenever it changes."""
    _listeners.append(listener)
    listener(_chosen)


def select_from_environment() -> None:
    name = os.environ.get("WNFUSED_BACKEND") or "auto"
    try:
        _check_name(name)
    except ValueError as error:
        raise ValueError(f"environment variable WNFUSED_BACKEND: {error}") from None
    _select(name)
