"""Suggestions for mistyped names."""

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The name that was probably meant."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)), None)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the one that was probably meant, or all that are known."""
    names = list(known)
    meant = nearest(name, names)
    return f"did you mean {meant!r}?" if meant else f"expected one of {', '.join(names)}"
