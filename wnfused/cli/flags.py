"""Errors of the library in the words of the command line: Python arguments become flags."""

import re
from collections.abc import Iterable


def in_flags(message: str, arguments: Iterable[str]) -> str:
    """``message`` with ``arguments`` as flags, as in "pass force=True" → "pass --force".

    Three forms are translated: the arguments that a message begins with ("run_dir: …"), values ("resume=True") and, as
    no ordinary word has an underscore, names with one anywhere ("omit data_dir").
    """
    flags = {name: f"--{name.replace('_', '-')}" for name in arguments}
    message = re.sub(r"\b[Pp]ass download=True\b", _drop_no_download, message)
    head, colon, rest = message.partition(": ")
    if colon and all(name in flags for name in head.split(", ")):
        message = ", ".join(flags[name] for name in head.split(", ")) + colon + rest
    message = re.sub(r"\b(\w+)=True\b", lambda match: flags.get(match[1], match[0]), message)
    return re.sub(r"(?<![\w/.'-])[a-z]+_[a-z_]+(?![\w/.'=])", lambda match: flags.get(match[0], match[0]), message)


def _drop_no_download(match: re.Match[str]) -> str:
    return f"{'D' if match[0].startswith('P') else 'd'}rop --no-download"
