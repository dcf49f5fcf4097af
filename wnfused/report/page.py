"""Runs as one HTML page that needs nothing else: no script, no font, no picture from elsewhere."""

import os
import tempfile
from collections.abc import Sequence
from datetime import datetime
from html import escape
from itertools import accumulate
from pathlib import Path

from wnfused.report import tables
from wnfused.report.curves import Curve, panel
from wnfused.report.tables import Table
from wnfused.train.records import Record

MARK = '<meta name="generator" content="wnfused report'  # by it a page is known as a report
LABELLED = 5  # runs up to which each line carries its name
# Nothing may be fetched: what the page shows is in it.
POLICY = "default-src 'none'; style-src 'unsafe-inline'"


class ReportError(Exception):
    """The page cannot be written; the message is one line."""


def render(
    runs: Sequence[Record],
    *,
    title: str = "",
    lead: Sequence[str] = (),
    more: Sequence[Table] = (),
    names: Sequence[str] = (),
) -> str:
    """The page. ``lead`` are paragraphs before the results, ``more`` tables after them; ``names`` name the runs."""
    from wnfused import __version__

    names = list(names) or name(runs)
    title = title or (names[0] if len(runs) == 1 else f"{len(runs)} training runs")
    made = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
    style = (Path(__file__).parent / "style.css").read_text(encoding="utf-8")
    sections = [
        f"<section><h2>Results</h2>{tables.results(names, runs)}{_notes(names, runs)}</section>",
        *(f"<section>{table.html()}</section>" for table in more),
        f"<section><h2>Curves</h2>{_curves(names, runs)}</section>",
        f"<section>{tables.fields(names, [run.config for run in runs], 'Configuration')}</section>",
        f"<section>{tables.fields(names, [run.environment for run in runs], 'Environment')}</section>",
        f"<section><h2>Epochs</h2>{_epochs(names, runs)}</section>",
    ]
    paragraphs = "".join(f"<p>{escape(text)}</p>" for text in lead)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
{MARK} {escape(__version__)}">
<title>{escape(title)}</title>
<style>
{style}</style>
</head>
<body>
<main>
<header><h1>{escape(title)}</h1>{paragraphs}</header>
{chr(10).join(sections)}
<footer>wnfused {escape(__version__)} · {escape(made)}</footer>
</main>
</body>
</html>
"""


def write(page: str, path: Path, *, force: bool = False) -> Path:
    """Write the page, whole or not at all; a file that is not a report is only replaced with ``force``."""
    try:
        if path.is_dir():
            raise ReportError(f"cannot write {path}: it is a folder")
        if not path.absolute().parent.is_dir():
            raise ReportError(f"cannot write {path}: its folder does not exist")
        if path.exists() and not force and not is_report(path):
            raise ReportError(
                f"{path} exists and is not a report; choose another path or pass force=True to replace it"
            )
        handle, temporary = tempfile.mkstemp(dir=path.absolute().parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(page)
            Path(temporary).chmod(0o644)
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ReportError(f"cannot write {path}: {error.strerror or error}") from None
    return path


def is_report(path: Path) -> bool:
    with path.open("rb") as file:
        return MARK.encode() in file.read(4096)


def name(runs: Sequence[Record]) -> list[str]:
    """The runs' folder names, with as many parents as it takes to tell them apart."""
    parts = [run.path.resolve().parts for run in runs]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-depth:]) for part in parts]
        if len(set(names)) == len(names):
            break
    return names


def _notes(names: Sequence[str], runs: Sequence[Record]) -> str:
    several = len(runs) > 1
    items = [
        f"<li>{f'<span class=name>{escape(who)}</span>: ' if several else ''}{escape(note)}</li>"
        for who, run in zip(names, runs, strict=True)
        for note in run.notes
    ]
    return f'<ul class="notes">{"".join(items)}</ul>' if items else ""


def _epochs(names: Sequence[str], runs: Sequence[Record]) -> str:
    return "".join(tables.epochs(who, run, unfolded=len(runs) == 1) for who, run in zip(names, runs, strict=True))


def _curves(names: Sequence[str], runs: Sequence[Record]) -> str:
    if len(runs) == 1:
        return f'<div class="panels">{"".join(_alone(runs[0]))}</div>'
    return f'{tables.key(names, runs)}<div class="panels">{"".join(_side_by_side(names, runs))}</div>'


def _alone(run: Record) -> list[str]:
    """Training and validation in one panel."""

    def pair(quantity: str) -> list[Curve]:
        return [
            Curve("training", run.curve(f"train_{quantity}"), 1, run.diverged),
            Curve("validation", run.curve(f"validation_{quantity}"), 0, run.diverged),
        ]

    def single(quantity: str) -> list[Curve]:
        return [Curve("", run.curve(quantity), 2)]

    return [
        panel("Accuracy", pair("accuracy"), show=percent, bounds=(0, 1)),
        panel("Loss", pair("loss"), show=plain, log=True, rises=True),
        panel("Learning rate", single("lr"), show=plain, log=True, labelled=False),
        panel("Images per second", single("images_per_second"), show=plain, from_zero=True, labelled=False),
    ]


def _side_by_side(names: Sequence[str], runs: Sequence[Record]) -> list[str]:
    """One panel a quantity, one line a run."""
    labelled = len(runs) <= LABELLED

    def curves(quantity: str, *, ends: bool = True) -> list[Curve]:
        return [
            Curve(who, run.curve(quantity), i, run.diverged if ends else None)
            for i, (who, run) in enumerate(zip(names, runs, strict=True))
        ]

    def shares(title: str, quantity: str) -> str:
        return panel(title, curves(quantity), show=percent, bounds=(0, 1), labelled=labelled)

    def losses(title: str, quantity: str) -> str:
        return panel(title, curves(quantity), show=plain, log=True, rises=True, labelled=labelled)

    timed = [Curve(who, _over_time(run), i) for i, (who, run) in enumerate(zip(names, runs, strict=True))]
    return [
        shares("Validation accuracy", "validation_accuracy"),
        losses("Training loss", "train_loss"),
        shares("Training accuracy", "train_accuracy"),
        losses("Validation loss", "validation_loss"),
        panel("Validation accuracy over time", timed, x_label="seconds of training", show=percent, bounds=(0, 1),
              labelled=labelled, whole_x=False),
        panel("Learning rate", curves("lr", ends=False), show=plain, log=True, labelled=labelled),
    ]  # fmt: skip


def _over_time(run: Record) -> list[tuple[float, float]]:
    """(seconds since the start, validation accuracy) after each epoch."""
    clock = accumulate(epoch.get("seconds") or 0.0 for epoch in run.epochs)
    pairs = [(at, epoch.get("validation_accuracy")) for at, epoch in zip(clock, run.epochs, strict=True)]
    return [(at, value) for at, value in pairs if value is not None]


def percent(value: float) -> str:
    return f"{100 * value:.4g} %"


def plain(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0e}"
