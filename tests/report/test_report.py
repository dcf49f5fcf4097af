"""``wnfused report``: the content of the page, damaged runs, and exit codes."""

import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.run_directories import diverged, epoch, write_run
from wnfused import cli
from wnfused.report import ReportError, Table, render, write
from wnfused.report.curves import Curve, Panel, panel, spread
from wnfused.report.page import percent
from wnfused.train import records

VOID = {"meta", "br", "hr", "img"}


class Page(HTMLParser):
    """The tags, attributes and texts of a page; fails if tags do not match."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.marked: list[str] = []
        self.feed(source)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style" and data.strip():
            self.texts.append(data.strip())
            if self.open[-1] == "mark":
                self.marked.append(data)


def page_of(*folders: Path) -> Page:
    return Page(render([records.read(folder) for folder in folders]))


def run(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, str, str]:
    code = cli.main(["report", *map(str, argv)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_page_of_one_run(capsys, tmp_path):
    folder = write_run(tmp_path / "robust")
    code, out, err = run(capsys, folder)
    assert (code, out, err) == (0, f"{folder / 'report.html'} (1 run)\n", "")
    page = Page((folder / "report.html").read_text(encoding="utf-8"))
    for message in ("finished", "73.21%", "74.00%", "Accuracy", "Loss", "Learning rate", "resnet20", "2.13.0"):
        assert any(message in text for text in page.texts), message


def test_the_page_is_self_contained(tmp_path):
    page = page_of(write_run(tmp_path / "a"), write_run(tmp_path / "b"))
    assert not {tag for tag, _ in page.tags} & {"script", "link", "iframe", "object", "embed", "base"}
    attributes = [name for _, attrs in page.tags for name in attrs]
    assert not {"src", "href", "srcset", "data"} & set(attributes)
    assert not [name for name in attributes if name.startswith("on")]
    assert "url(" not in render([records.read(tmp_path / "a")])
    assert "@import" not in render([records.read(tmp_path / "a")])


def test_texts_of_a_run_are_escaped(tmp_path):
    evil = "<script>alert('&')</script>"
    a = write_run(tmp_path / "<i>&\"'", model=evil, **{evil: evil})
    b = write_run(tmp_path / "b", model="mlp")
    (a / "environment.json").write_text(json.dumps({"cpu": evil, evil: [evil]}))
    (a / "result.json").write_text(json.dumps({"status": evil}))
    for page in (page_of(a), page_of(a, b)):
        assert not {"script", "i"} & {tag for tag, _ in page.tags}
        assert page.texts.count(evil) >= 3


def test_differences_between_runs_are_marked(capsys, tmp_path):
    folders = [write_run(tmp_path / init, init=init) for init in ("robust", "he", "hanin")]
    (tmp_path / "odd").mkdir()
    folders.append(write_run(tmp_path / "odd" / "run", init="robust", lr=0.25))
    (folders[0] / "environment.json").write_text(json.dumps({"torch": "2.13.0", "threads": 2, "started": "today"}))
    output = tmp_path / "page.html"
    code, out, _ = run(capsys, *folders, "--output", output)
    assert (code, out) == (0, f"{output} (4 runs)\n")
    page = Page(output.read_text(encoding="utf-8"))
    assert page.marked == [
        "robust",
        "he",
        "hanin",
        "robust",
        "0.25",
    ]  # init has no majority; lr 0.1 has; times always differ
    assert "3 fields the same in all runs" in page.texts
    assert sum(attrs.get("role") == "img" for _, attrs in page.tags) == 6


def test_the_best_result_is_marked_but_not_speed(tmp_path):
    good, bad = write_run(tmp_path / "good"), write_run(tmp_path / "bad", [epoch(1, median_step_seconds=0.1)])
    (bad / "result.json").write_text(json.dumps({"status": "finished", "test_accuracy": 0.5}))
    source = render([records.read(good), records.read(bad)])
    best = re.findall(r'<td class="number best" data-label="([^"]*)">([^<]*)<', source)
    assert best == [("validation", "74.00%"), ("test", "73.21%"), ("training loss", "0.6667")]


def test_a_diverged_run_has_a_page(tmp_path):
    early = write_run(tmp_path / "early", [diverged(1)], status="diverged")
    late = write_run(tmp_path / "late", [epoch(1), epoch(2), diverged(3)], status="diverged")
    silent = write_run(tmp_path / "silent", [epoch(1), diverged(2)], status=None)
    assert records.read(silent).status == "diverged"
    assert records.read(silent).notes == []
    page = page_of(early, late, silent, write_run(tmp_path / "fine"))
    for message in ("diverged in epoch 1", "diverged in epoch 2", "diverged in epoch 3"):
        assert any(message in text for text in page.texts), message
    assert any("diverged in epoch 1" in text for text in page_of(early).texts)
    assert any("Nothing was measured" in text for text in page_of(early).texts)


def test_a_run_that_is_still_running(capsys, tmp_path):
    folder = write_run(tmp_path / "going", status=None)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 4, "train_lo')
    code, _, err = run(capsys, folder)
    assert code == 0
    assert [line.partition(f"{folder}: ")[2] for line in err.splitlines()] == [
        "skipped the last line of metrics.jsonl, which is incomplete",
        "no result.json: the run is still running, or was stopped after epoch 3",
    ]
    texts = Page((folder / "report.html").read_text(encoding="utf-8")).texts
    assert "unfinished" in texts
    assert "no result.json: the run is still running, or was stopped after epoch 3" in texts
    assert "74.00%" in texts  # the best so far, from the epochs


def test_damaged_files_are_named_and_the_rest_is_shown(tmp_path):
    folder = write_run(tmp_path / "broken", [epoch(1), epoch(2, train_loss=float("nan"), lr="fast"), epoch(3)])
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    lines[1:1] = ["garbage", "[1]", '{"epoch": 0}', '{"epoch": true}', ""]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "config.json").write_text('{"model": ')
    (folder / "environment.json").unlink()
    (folder / "result.json").write_bytes(b"\xff\xfe[]")
    record = records.read(folder)
    assert record.notes == [
        *(f"skipped line {n} of metrics.jsonl, which is not an epoch" for n in (2, 3, 4, 5)),
        "config.json is not valid JSON (truncated, or not written by a run)",
        "no environment.json",
        "result.json is not valid JSON (truncated, or not written by a run)",
    ]
    assert record.curve("train_loss") == [(1, 2.0), (3, pytest.approx(2 / 3))]
    assert [at for at, _ in record.curve("lr")] == [1, 3]
    texts = page_of(folder).texts
    assert set(record.notes) <= set(texts)
    assert texts.count("Not recorded.") == 2


def test_the_last_line_of_an_epoch_counts(tmp_path):
    folder = write_run(tmp_path / "again", [epoch(1), epoch(2), epoch(2, train_loss=0.5), epoch(3)])
    assert records.read(folder).curve("train_loss") == [(1, 2.0), (2, 0.5), (3, pytest.approx(2 / 3))]


@given(st.binary(max_size=200), st.binary(max_size=60))
def test_no_content_of_a_run_directory_breaks_the_reader(tmp_path_factory, metrics, other):
    folder = tmp_path_factory.mktemp("run")
    (folder / "metrics.jsonl").write_bytes(b'{"epoch": 1}\n' + metrics)
    for name in ("config.json", "environment.json", "result.json"):
        (folder / name).write_bytes(other)
    Page(render([records.read(folder)]))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: None, "no such directory"),
        (lambda folder: folder.write_text(""), "no such directory"),
        (
            lambda folder: folder.mkdir(),
            "has no metrics.jsonl; it is not a run directory, or the first epoch has not finished",
        ),
        (lambda folder: write_run(folder, []), "metrics.jsonl has no readable epoch"),
    ],
    ids=["missing", "file", "empty", "no epoch"],
)
def test_not_a_run_directory_is_one_line_and_exit_code_2(capsys, tmp_path, make, message):
    make(tmp_path / "run")
    output = tmp_path / "report.html"
    assert run(capsys, write_run(tmp_path / "good"), tmp_path / "run", "--output", output) == (
        2,
        "",
        f"wnfused: report: {tmp_path / 'run'}: {message}\n",
    )
    assert not output.exists()


def test_a_name_that_is_too_long(capsys, tmp_path):
    code, out, err = run(capsys, tmp_path / ("x" * 300))
    assert (code, out) == (2, "")
    assert err.endswith("xxx: File name too long\n") and err.count("\n") == 1


def test_only_a_report_is_overwritten(capsys, tmp_path):
    folder, output = write_run(tmp_path / "run"), tmp_path / "page.html"
    output.write_text("mine")
    code, out, err = run(capsys, folder, "--output", output)
    assert (code, out) == (2, "")
    message = f"{output} exists and is not a report; choose another path or pass --force to replace it"
    assert err == f"wnfused: report: {message}\n"
    assert output.read_text() == "mine"
    assert run(capsys, folder, "--output", output, "--force")[0] == 0
    first = output.read_text()
    assert first.startswith("<!doctype html>")
    (folder / "result.json").unlink()
    assert run(capsys, folder, "--output", output)[0] == 0
    assert output.read_text() != first
    assert sorted(file.name for file in tmp_path.iterdir()) == ["page.html", "run"]  # no temporary file stays


def test_an_output_that_cannot_be_written(capsys, tmp_path):
    folder = write_run(tmp_path / "run")
    assert run(capsys, folder, "--output", tmp_path) == (
        2,
        "",
        f"wnfused: report: cannot write {tmp_path}: it is a directory\n",
    )
    lost = tmp_path / "no" / "page.html"
    assert run(capsys, folder, "--output", lost)[2] == (
        f"wnfused: report: cannot write {lost}: its directory does not exist\n"
    )
    long = tmp_path / ("x" * 300)
    with pytest.raises(ReportError, match="cannot write .*: File name too long"):
        write("page", long)


def test_a_directory_of_runs_and_no_run_twice(capsys, tmp_path, monkeypatch):
    for name in ("b/run", "a/run"):
        write_run(tmp_path / name)
    (tmp_path / "a" / "notes").mkdir()
    found = records.find([tmp_path / "a", tmp_path / "b" / "run", tmp_path / "a" / "run"])
    assert found == [tmp_path / "a" / "run", tmp_path / "b" / "run"]
    monkeypatch.chdir(tmp_path)
    assert run(capsys, "a", "b/run") == (0, "report.html (2 runs)\n", "")
    texts = Page((tmp_path / "report.html").read_text(encoding="utf-8")).texts
    assert {"a/run", "b/run"} <= set(texts)  # the same name: the parent tells them apart


def test_custom_paragraphs_and_tables(tmp_path):
    table = Table(("network", "step"), [("torch & co", "2 ms")], title="Step time", note="one < two")
    page = Page(render([records.read(write_run(tmp_path / "run"))], title="A <title>", lead=["Why."], more=[table]))
    assert {"A <title>", "Why.", "Step time", "torch & co", "2 ms", "one < two"} <= set(page.texts)


def line(drawn: Panel, colour: int) -> list[tuple[float, float]]:
    """The points of the longest line of a colour."""
    paths = re.findall(rf'<path d="M ([^"]*)" style="fill: none; stroke: var\(--c{colour}\)', str(drawn.svg))
    points = [[tuple(map(float, point.split())) for point in path.split("L")] for path in paths]
    return max(points, key=len)


def test_a_line_passes_through_its_values():
    drawn = panel("Loss", [Curve("run", [(1, 0.0), (2, 5.0), (3, 10.0)], 0)], show=str, labelled=False)
    (x1, y1), (x2, y2), (x3, y3) = line(drawn, 0)
    assert x1 < x2 < x3 and y1 > y2 > y3  # SVG counts from the top
    assert x2 - x1 == pytest.approx(x3 - x2) and y1 - y2 == pytest.approx(y2 - y3)
    assert (y1, y3) == (240, 14)  # the edges of the axes


def test_a_diverged_line_leaves_at_the_top_and_does_not_squeeze_the_others():
    calm, wild = Curve("calm", [(1, 2.0), (2, 1.0)], 0), Curve("wild", [(1, 1e30)], 1, diverged=2)
    drawn = panel("Loss", [calm, wild], show=str, log=True, rises=True, labelled=False)
    ys = [y for _, y in line(drawn, 0)]
    assert ys[1] - ys[0] > 40
    (cross,) = re.findall(r'id="(m\w+)" d="M -5 5 L 5 -5 M -5 -5 L 5 5 "', str(drawn.svg))
    assert re.search(rf'href="#{cross}" x="[\d.]+" y="14"', str(drawn.svg))


def test_colours_fonts_and_ids_are_those_of_the_page():
    curves = [Curve(f"run {i}", [(1, 0.5), (2, i / 20)], i) for i in range(9)]
    drawn = str(panel("Accuracy", curves, show=str).svg)
    assert drawn.startswith('<svg viewBox="0 0 460 280" role="img" aria-label="Accuracy: run 0 ends at 0.0; ')
    assert not re.search(r"#[0-9a-f]{6}[;\"]", drawn) and all(f"var(--c{i})" in drawn for i in range(7))
    assert "font-family" not in drawn and "<metadata" not in drawn and "http" not in drawn
    other = str(panel("Loss", curves, show=str).svg)
    ids = [set(re.findall(r' id="(\w+)"', text)) for text in (drawn, other)]
    assert ids[0] and not ids[0] & ids[1]
    assert len(drawn) < 15_000


def test_a_page_is_the_same_every_time_but_for_its_date(tmp_path):
    runs = [records.read(write_run(tmp_path / name)) for name in ("a", "b")]
    pages = [re.sub(r"<footer>.*?</footer>", "", render(runs)) for _ in range(2)]
    assert pages[0] == pages[1] and len(pages[0]) < 80_000


def test_dots_show_their_values():
    curves = [Curve("a & b", [(1, 0.5), (2, 0.75)], 0), Curve("", [(1, 0.25)], 1)]
    titles = re.findall(r"<use [^>]*><title>([^<]*)</title></use>", str(panel("Accuracy", curves, show=percent).svg))
    assert titles == ["a &amp; b, epoch 1: 50%", "a &amp; b, epoch 2: 75%", "epoch 1: 25%"]
    many = [Curve("many", [(i, i / 200) for i in range(121)], 0)]
    assert "<title>" not in str(panel("Accuracy", many, show=percent).svg)


def test_labels_are_texts(tmp_path):
    curves = [Curve("$x_1$ <b>&\n", [(1, 0.5), (2, 0.7)], 0)]
    page = Page(str(panel("Accuracy", curves, show=str).svg))
    assert "$x_1$ <b>&" in page.texts and "b" not in [tag for tag, _ in page.tags]


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=4), st.booleans(), st.booleans())
@settings(max_examples=25)
def test_any_values_can_be_drawn(values, log, bounded):
    curves = [Curve("run", list(enumerate(values, 1)), 0), Curve("other", [(1, 1.0)], 1, diverged=2)]
    drawn = panel("Loss", curves, show=str, log=log, rises=True, bounds=(0, 1) if bounded else None)
    assert "nan" not in str(drawn.svg) and "inf" not in re.sub(r"aria-label=\"[^\"]*\"", "", str(drawn.svg))


def test_without_matplotlib(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, _, err = run(capsys, write_run(tmp_path / "run"))
    assert code == 2 and err.startswith("wnfused: report: matplotlib is not installed; install the extra 'train': pip")


def test_the_error_names_the_python_argument(tmp_path):
    (tmp_path / "page.html").write_text("mine")
    with pytest.raises(ReportError, match="exists and is not a report; choose another path or pass force=True to"):
        write("page", tmp_path / "page.html")


@given(st.lists(st.floats(0, 200), max_size=8))
def test_labels_do_not_overlap(places):
    moved = spread(places, 14, 0, 200)
    gaps = [b - a for a, b in zip(sorted(moved), sorted(moved)[1:], strict=False)]
    assert all(gap >= 14 - 1e-9 for gap in gaps)
    assert all(-1e-9 <= place <= 200 + 1e-9 for place in moved)
    order = sorted(range(len(places)), key=lambda i: places[i])
    assert order == sorted(range(len(places)), key=lambda i: moved[i])
