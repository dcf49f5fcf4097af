"""The page's tables, as HTML: every text that comes from a run is escaped here."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from statistics import median
from typing import Any

from wnfused import formatting
from wnfused.report.curves import kind as line_kind
from wnfused.train.records import Record


@dataclass(frozen=True)
class Table:
    """A table of texts. The first column names the row; numbers are aligned to the right."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    note: str = ""

    def html(self) -> str:
        title = f"<h2>{escape(self.title)}</h2>" if self.title else ""
        note = f'<p class="note">{escape(self.note)}</p>' if self.note else ""
        head = "".join(_cell("th", text, "" if i == 0 else "number") for i, text in enumerate(self.header))
        rows = ["".join(_cell("th" if i == 0 else "td", text, "" if i == 0 else "number") for i, text in enumerate(row))
                for row in self.rows]  # fmt: skip
        return title + _table(head, rows, "plain") + note


def key(names: Sequence[str], runs: Sequence[Record]) -> str:
    """The legend of all curves: a run, its colour, how it ended."""
    items = "".join(
        f'<li>{swatch(i)}<span class="name">{escape(name)}</span> {_status(run)}</li>'
        for i, (name, run) in enumerate(zip(names, runs, strict=True))
    )
    return f'<ul class="key">{items}</ul>'


def swatch(colour: int) -> str:
    line = f'<path class="line {line_kind(colour)}" d="M1 5H17"/>'
    return f'<svg class="swatch" viewBox="0 0 18 10" aria-hidden="true">{line}</svg>'


def results(names: Sequence[str], runs: Sequence[Record]) -> str:
    """A row for each run; the best of each column stands out where there is something to compare."""
    figures = [_figures(run) for run in runs]
    best = {column: _best([f[column] for f in figures], column) for column in SHOW}
    header = ("run", "status", "epochs", *SHOW, "time")
    head = "".join(_cell("th", text, "" if i < 2 else "number") for i, text in enumerate(header))
    rows = []
    for i, (name, run, figure) in enumerate(zip(names, runs, figures, strict=True)):
        line = swatch(i) if len(runs) > 1 else ""
        cells = [
            f'<th scope="row">{line}<span class="name">{escape(name)}</span></th>',
            f"<td>{_status(run)}</td>",
            _labelled("epochs", _epochs(run)),
            *(_labelled(column, SHOW[column](figure[column]), best[column]) for column in SHOW),
            _labelled("time", formatting.duration(_total(run))),
        ]
        rows.append("".join(cells))
    return _table(head, rows, "results")


def _labelled(label: str, text: str, best: str | None = None) -> str:
    """A number that knows its column's name: on a narrow screen a row becomes a list."""
    kind = "number best" if text == best else "number"
    return f'<td class="{kind}" data-label="{label}">{escape(text)}</td>'


SHOW: dict[str, Callable[[float | None], str]] = {
    "validation": formatting.accuracy,
    "at epoch": formatting.whole,
    "test": formatting.accuracy,
    "training loss": formatting.loss,
    "step": formatting.milliseconds,
    "images/s": formatting.count,
}
BETTER: dict[str, Callable[[list[float]], float]] = {"validation": max, "test": max, "training loss": min}


def _figures(run: Record) -> dict[str, float | None]:
    """What the run reached; a run without a result is judged by its epochs."""
    epoch, accuracy = run.best() or (None, None)
    losses = [] if run.epochs[-1].diverged else run.curve("train_loss")
    return {
        "validation": _first(_number(run.result.get("best_validation_accuracy")), accuracy),
        "at epoch": _first(_number(run.result.get("best_epoch")), epoch),
        "test": _number(run.result.get("test_accuracy")),
        "training loss": losses[-1][1] if losses else None,
        "step": _median(run.curve("median_step_seconds")),
        "images/s": _median(run.curve("images_per_second")),
    }


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)


def _median(curve: Sequence[tuple[float, float]]) -> float | None:
    return median(value for _, value in curve) if curve else None


def _best(values: Sequence[float | None], column: str) -> str | None:
    """The best value as it is shown; None where no two differ, and for speeds, which differ by chance too."""
    known = [value for value in values if value is not None]
    if column not in BETTER or len({SHOW[column](value) for value in known}) < 2:
        return None
    return SHOW[column](BETTER[column](known))


def _epochs(run: Record) -> str:
    planned = _number(run.config.get("epochs"))
    done = run.epochs[-1].number
    return f"{done}" if planned is None or planned == done else f"{done} of {planned:.0f}"


def _total(run: Record) -> float | None:
    seconds = [value for _, value in run.curve("seconds")]
    return sum(seconds) if seconds else None


def _status(run: Record) -> str:
    status = run.status
    marks = {"finished": "✓", "diverged": "✕", "interrupted": "‖", "unfinished": "…"}
    text = f"{status} in epoch {run.epochs[-1].number}" if status == "diverged" else status
    kind = status if status in marks else "unknown"
    return f'<span class="status {kind}"><span aria-hidden="true">{marks.get(status, "?")}</span> {escape(text)}</span>'


def fields(names: Sequence[str], dictionaries: Sequence[dict[str, Any]], title: str) -> str:
    """Settings side by side: those in which the runs differ first and marked, those they share folded away."""
    every = list(dict.fromkeys(field for dictionary in dictionaries for field in dictionary))
    if not every:
        return f'<h2>{escape(title)}</h2><p class="note">Not recorded.</p>'
    differing = [field for field in every if not _same(field, dictionaries)]
    shared = [field for field in every if field not in differing]
    parts = [f"<h2>{escape(title)}</h2>"]
    if differing:
        head = "".join(_cell("th", text) for text in ("differs", *names))
        rows = [
            _cell("th", field) + _compared([_value(d, field) for d in dictionaries], field not in TIMES)
            for field in differing
        ]
        parts.append(_table(head, rows, "fields"))
    if shared:
        pairs = (f"<div><dt>{escape(f)}</dt><dd>{escape(_value(dictionaries[0], f))}</dd></div>" for f in shared)
        listed = f'<dl class="shared">{"".join(pairs)}</dl>'
        counted = f"{len(shared)} {'field' if len(shared) == 1 else 'fields'} the same in all runs"
        alone = len(dictionaries) == 1
        parts.append(listed if alone else f"<details><summary>{counted}</summary>{listed}</details>")
    return "".join(parts)


TIMES = ("started", "resumed")  # differ anyway


def _compared(values: Sequence[str], marks: bool) -> str:
    """A row's cells; those that differ from what most runs have are marked."""
    (usual, times), *_ = Counter(values).most_common(1)
    cells = []
    for value in values:
        usually = value == usual and times > len(values) / 2
        text = f"<mark>{escape(value)}</mark>" if marks and not usually else escape(value)
        cells.append(f'<td class="long">{text}</td>' if len(value) > 40 else f"<td>{text}</td>")
    return "".join(cells)


def _same(field: str, dictionaries: Sequence[dict[str, Any]]) -> bool:
    return len({_value(dictionary, field) for dictionary in dictionaries}) == 1


def _value(dictionary: dict[str, Any], field: str) -> str:
    if field not in dictionary:
        return formatting.UNKNOWN
    value = dictionary[field]
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


COLUMNS: dict[str, tuple[str, Callable[[float | None], str]]] = {
    "step": ("step", formatting.whole),
    "lr": ("lr", formatting.rate),
    "train_loss": ("training loss", formatting.loss),
    "train_accuracy": ("accuracy", formatting.accuracy),
    "validation_loss": ("validation loss", formatting.loss),
    "validation_accuracy": ("accuracy", formatting.accuracy),
    "images_per_second": ("images/s", formatting.count),
    "median_step_seconds": ("step time", formatting.milliseconds),
    "seconds": ("time", formatting.duration),
}


def epochs(name: str, run: Record, *, unfolded: bool) -> str:
    """Every epoch of a run; its best is marked."""
    best = run.best()
    head = _cell("th", "epoch", "number") + "".join(_cell("th", label, "number") for label, _ in COLUMNS.values())
    rows = []
    for epoch in run.epochs:
        kind = "number best" if best and epoch.number == best[0] else "number"
        cells = [_cell("th", f"{epoch.number}", "number")]
        for field, (_, show) in COLUMNS.items():
            cells.append(_cell("td", show(epoch.get(field)), kind if field == "validation_accuracy" else "number"))
        rows.append("".join(cells))
    count = f"{len(rows)} {'epoch' if len(rows) == 1 else 'epochs'}"
    summary = f'<summary><span class="name">{escape(name)}</span> · {count}</summary>'
    return f"<details{' open' if unfolded else ''}>{summary}{_table(head, rows, 'epochs')}</details>"


def _table(head: str, rows: Sequence[str], kind: str = "") -> str:
    top = f"<thead><tr>{head}</tr></thead>" if head else ""
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f'<div class="scroll"><table class="{kind}">{top}<tbody>{body}</tbody></table></div>'


def _cell(tag: str, text: str, kind: str = "") -> str:
    return f'<{tag} class="{kind}">{escape(text)}</{tag}>' if kind else f"<{tag}>{escape(text)}</{tag}>"


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
