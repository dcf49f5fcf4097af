"""Paragraphs and tables on a terminal; plain lines elsewhere, or if rich is not installed."""

import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import Protocol


class Tabular(Protocol):
    """A title, a header and rows of texts; the first column names the row."""

    @property
    def title(self) -> str: ...
    @property
    def header(self) -> Sequence[str]: ...
    @property
    def rows(self) -> Sequence[Sequence[str]]: ...


def paragraph(text: str) -> None:
    print("\n" + textwrap.fill(text, min(100, shutil.get_terminal_size().columns), break_on_hyphens=False), flush=True)


def table(content: Tabular) -> None:
    print()
    if sys.stdout.isatty():
        try:
            _rich(content)
            return
        except ImportError:
            pass
    print("\n".join(lines(content)), flush=True)


def lines(content: Tabular) -> list[str]:
    """The table as aligned lines: names on the left, numbers right-aligned."""
    rows = [content.header, *content.rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(content.header))]
    cells = [[text.rjust(width) for text, width in zip(row, widths, strict=True)] for row in rows]
    names = [row[0].ljust(widths[0]) for row in rows]
    return [content.title, *("  ".join(["", name, *row[1:]]) for name, row in zip(names, cells, strict=True))]


def _rich(content: Tabular) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table(title=Text(content.title, style="bold"), title_justify="left", box=box.SIMPLE_HEAD)
    for i, name in enumerate(content.header):
        shown.add_column(name, justify="left" if i == 0 else "right", style="bold" if i == 0 else "")
    for row in content.rows:
        shown.add_row(*(Text(text, style="bold red" if text == "diverged" else "") for text in row))
    Console().print(shown)
