"""Progress of a download: rich's bar on a terminal, a plain line for every 10% elsewhere."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[int], None]  # takes the number of bytes received so far


@contextmanager
def progress(title: str, total: int) -> Iterator[Advance]:
    """Show progress under ``title`` on stderr while the context is active."""
    if not sys.stderr.isatty():
        yield _lines(title, total)
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
    except ImportError:
        yield _lines(title, total)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=total)
        yield lambda done: bar.update(task, completed=done)


def _lines(title: str, total: int) -> Advance:
    shown = -1

    def advance(done: int) -> None:
        nonlocal shown
        tenth = 10 * done // max(total, 1)
        if tenth > shown:
            shown = tenth
            sys.stderr.write(f"{title}: {10 * tenth}% of {total / 1e6:.3g} MB\n")
            sys.stderr.flush()

    return advance
