"""What a training run can refuse to do, in one line."""

import difflib
from collections.abc import Iterable


class RunError(Exception):
    """Bad input: the run does not start, and nothing was changed. The message is one line; ``code`` the exit code."""

    code = 2


class WriteError(RunError):
    """The disk would not take what the run had to write; what was there before is intact."""

    code = 1


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the one that was probably meant, or all there are."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(names)}"
