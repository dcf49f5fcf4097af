"""Training runs as one self-contained HTML page: no script, and no font or picture from elsewhere.

jinja2, which torch depends on, fills in ``page.html`` and escapes all texts.
"""

from collections.abc import Sequence
from datetime import datetime
from itertools import accumulate
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from wnfused.extras import missing, not_installed
from wnfused.files import write_atomically
from wnfused.report import tables
from wnfused.report.curves import COLOURS, Curve, Panel, panel
from wnfused.report.tables import Table
from wnfused.train.records import Record

MARK = '<meta name="generator" content="wnfused report'  # identifies a page as a report
LABELLED = 5  # the maximum number of runs whose curves are labelled


class ReportError(Exception):
    """The page cannot be drawn or written; the message is one line."""


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

    if gone := missing("matplotlib"):
        raise ReportError(not_installed(*gone))

    names = list(names) or name(runs)
    here = Path(__file__).parent
    environment = Environment(
        loader=FileSystemLoader(here), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("page.html").render(
        version=__version__,
        made=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        style=Markup((here / "style.css").read_text(encoding="utf-8")),
        colours=COLOURS,
        title=title or (names[0] if len(runs) == 1 else f"{len(runs)} training runs"),
        lead=lead,
        runs=[
            {"name": name, "status": tables.status(run), "results": numbers, "epochs": tables.epochs(run)}
            for name, run, numbers in zip(names, runs, tables.results(runs), strict=True)
        ],
        results_header=tables.RESULTS,
        epochs_header=tables.EPOCHS,
        notes=[(name, note) for name, run in zip(names, runs, strict=True) for note in run.notes],
        tables=more,
        panels=_panels_of_one(runs[0]) if len(runs) == 1 else _panels_of_several(names, runs),
        fields=[
            tables.fields("Configuration", [run.config for run in runs]),
            tables.fields("Environment", [run.environment for run in runs]),
        ],
    )


def write(page: str, path: Path, *, force: bool = False) -> Path:
    """Write the page atomically; a file that is not a report is only replaced with ``force=True``."""
    try:
        if path.is_dir():
            raise ReportError(f"cannot write {path}: it is a directory")
        if not path.absolute().parent.is_dir():
            raise ReportError(f"cannot write {path}: its directory does not exist")
        if path.exists() and not force and not is_report(path):
            raise ReportError(
                f"{path} exists and is not a report; choose another path or pass force=True to replace it"
            )
        write_atomically(path, page.encode(errors="backslashreplace"))
    except OSError as error:
        raise ReportError(f"cannot write {path}: {error.strerror or error}") from None
    return path


def is_report(path: Path) -> bool:
    with path.open("rb") as file:
        return MARK.encode() in file.read(4096)


def name(runs: Sequence[Record]) -> list[str]:
    """The names of the run directories, with as many parents as are needed to make them unique."""
    parts = [run.path.resolve().parts for run in runs]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-depth:]) for part in parts]
        if len(set(names)) == len(names):
            break
    return names


def _panels_of_one(run: Record) -> list[Panel]:
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


def _panels_of_several(names: Sequence[str], runs: Sequence[Record]) -> list[Panel]:
    """One panel per quantity, one line per run."""
    labelled = len(runs) <= LABELLED

    def curves(quantity: str, *, ends: bool = True) -> list[Curve]:
        return [
            Curve(name, run.curve(quantity), i, run.diverged if ends else None)
            for i, (name, run) in enumerate(zip(names, runs, strict=True))
        ]

    def accuracies(title: str, quantity: str) -> Panel:
        return panel(title, curves(quantity), show=percent, bounds=(0, 1), labelled=labelled)

    def losses(title: str, quantity: str) -> Panel:
        return panel(title, curves(quantity), show=plain, log=True, rises=True, labelled=labelled)

    timed = [Curve(name, _over_time(run), i) for i, (name, run) in enumerate(zip(names, runs, strict=True))]
    return [
        accuracies("Validation accuracy", "validation_accuracy"),
        losses("Training loss", "train_loss"),
        accuracies("Training accuracy", "train_accuracy"),
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
    return f"{100 * value:.4g}%"


def plain(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0e}"
