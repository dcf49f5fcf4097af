"""Numbers and tables as text, for terminal and report.

A quantity has a fixed number of digits, an unknown value is a dash, and text for a terminal fits 80 columns.
"""

import textwrap
from collections.abc import Collection, Sequence

UNKNOWN = "–"
COLUMNS = 80  # of a terminal


def accuracy(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.2%}"


def loss(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    return f"{value:.4f}" if abs(value) < 1000 else f"{value:.3g}"


def rate(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.4g}"


def milliseconds(seconds: float | None) -> str:
    if seconds is None:
        return UNKNOWN
    value = 1e3 * seconds
    return f"{value:.0f} ms" if value >= 100 else f"{value:.1f} ms" if value >= 10 else f"{value:.2f} ms"


def duration(seconds: float | None) -> str:
    if seconds is None:
        return UNKNOWN
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def count(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}".replace(",", "\u202f") if value >= 100 else f"{value:.1f}"


def whole(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.0f}"


def aligned(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    left: Collection[int] = (0,),
    notes: Sequence[str] = (),
    rule: bool = False,
) -> list[str]:
    """A table as lines of at most 80 columns; the columns ``left`` are left-aligned, the others right-aligned.

    A name in the first column that is too long is printed on a separate line. ``notes`` are texts shown indented below
    each row. ``rule=True`` underlines the header.
    """
    widths = _widths(header, rows)
    widths[0] = min(widths[0], max(len(header[0]), COLUMNS - sum(widths[1:]) - 2 * len(widths[1:])))
    lines = []
    for name, *cells in (header, ["-" * width for width in widths], *rows) if rule else (header, *rows):
        long = len(name) > widths[0]
        texts = zip(["" if long else name, *cells], widths, strict=True)
        shown = "  ".join(text.ljust(w) if i in left else text.rjust(w) for i, (text, w) in enumerate(texts)).rstrip()
        lines.append([*folded(name), shown] if long else [shown])
    for line, note in zip(lines[-len(rows) :], notes, strict=False):
        line += folded(f"    {note}", hang="    ")
    return [part for line in lines for part in line]


def fits(header: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Whether ``aligned`` shows every row on one line of at most 80 columns."""
    widths = _widths(header, rows)
    return sum(widths) + 2 * len(widths[1:]) <= COLUMNS


def _widths(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(header, *rows, strict=True)]


def folded(text: str, *, hang: str = "  ") -> list[str]:
    """``text`` as lines of at most 80 columns, broken between words if possible; ``hang`` starts all but the first."""
    lines = (textwrap.wrap(line, COLUMNS, subsequent_indent=hang, break_on_hyphens=False) for line in text.splitlines())
    return [part for parts in lines for part in parts or [""]]
