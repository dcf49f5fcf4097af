"""``wnfused train`` without arguments, with a small network: an MLP of two layers, one epoch."""

import functools
import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from wnfused import cli
from wnfused.cli import terminal
from wnfused.experiments import showcase, step_time
from wnfused.experiments.showcase import Showcase
from wnfused.report import Table
from wnfused.train import Config, Result, RunError, records

SMALL = Showcase(Config(data="digits", model="mlp-2-16", epochs=1, batch_size=256, lr=0.001), rounds=2)


# It diverges from every initialization.
WILD = replace(SMALL, config=replace(SMALL.config, lr=1e5, max_loss=1000.0), rounds=1)


class Stage:
    """Collects what a showcase shows."""

    def __init__(self) -> None:
        self.paragraphs: list[str] = []
        self.tables: list[Table] = []

    def run(self, root: Path, setting: Showcase = SMALL) -> None:
        showcase.run(root, showcase=setting, say=self.paragraphs.append, table=self.tables.append)


@pytest.fixture
def stage() -> Stage:
    return Stage()


@pytest.fixture(autouse=True)
def no_plots(monkeypatch):
    """The plots of runs have their own tests."""
    monkeypatch.setattr("wnfused.train.curves.plot_run", lambda folder: [])


def test_three_runs_that_differ_in_the_initialization_alone(tmp_path, stage):
    stage.run(tmp_path)
    runs = [records.read(tmp_path / "showcase" / name) for name in ("torch-default", "data-dependent", "proposed")]
    assert [run.config.pop("init") for run in runs] == ["torch_default", "data_dependent", "robust"]
    assert runs[0].config == runs[1].config == runs[2].config
    assert [run.status for run in runs] == ["finished"] * 3
    outcomes, costs = stage.tables
    assert [row[0] for row in outcomes.rows] == ["torch default", "data-dependent", "proposed"]
    assert [row[4] for row in outcomes.rows] == [f"{run.result['test_accuracy']:.2%}" for run in runs]
    assert [row[0] for row in costs.rows] == list(step_time.KINDS)
    page = (tmp_path / "showcase" / "report.html").read_text(encoding="utf-8")
    for message in (
        "One network, three initializations",
        "data-dependent",
        "proposed",
        "Cost of a step",
        *costs.rows[1],
    ):
        assert message in page, message
    assert stage.paragraphs[-1] == f"The report with the curves: {tmp_path / 'showcase' / 'report.html'}"


def test_a_complete_showcase_is_kept(tmp_path, stage):
    (tmp_path / "showcase").mkdir()
    (tmp_path / "showcase" / "report.html").write_text("mine")
    assert showcase.place(tmp_path, SMALL) == (tmp_path / "showcase-2", False)
    (tmp_path / "showcase-2").mkdir()
    (tmp_path / "showcase-2" / "report.html").write_text("mine too")
    assert showcase.place(tmp_path, SMALL) == (tmp_path / "showcase-3", False)


def test_an_interrupted_showcase_is_resumed(tmp_path, stage, monkeypatch):
    train = showcase.train
    trained: list[Path] = []

    def stops_at_the_second(config, folder, **options):
        trained.append(folder)
        if folder.name == "data-dependent":
            return Result("interrupted", epochs=0, steps=3, seconds=0.1, stopped_by="SIGTERM")
        return train(config, folder, **options)

    monkeypatch.setattr(showcase, "train", stops_at_the_second)
    with pytest.raises(KeyboardInterrupt) as stop:
        stage.run(tmp_path)
    assert stop.value.args == (signal.SIGTERM,)
    assert [folder.name for folder in trained] == ["torch-default", "data-dependent"]
    assert stage.paragraphs[-1] == f"Interrupted: the next `wnfused train` resumes {tmp_path / 'showcase'}."
    assert not (tmp_path / "showcase" / "report.html").exists()
    first = (tmp_path / "showcase" / "torch-default" / "environment.json").read_bytes()

    monkeypatch.setattr(showcase, "train", train)
    stage.run(tmp_path)
    assert f"Resuming {tmp_path / 'showcase'}, which was interrupted." in stage.paragraphs
    assert (tmp_path / "showcase" / "torch-default" / "environment.json").read_bytes() == first  # not trained again
    assert [file.name for file in tmp_path.iterdir()] == ["showcase"]


# Where a signal arrives, at which call, whether the runs diverge, how many have ended by then, and the signal.
PLACES = {
    "in a step": ("wnfused.train.loop:Trainer.train_step", 8, False, 1, "SIGINT"),
    "in a step that diverges": ("wnfused.train.loop:Trainer.train_step", 2, True, 0, "SIGINT"),
    "in a later one that diverges": ("wnfused.train.loop:Trainer.train_step", 8, True, 1, "SIGTERM"),
    "while it validates": ("wnfused.train.loop:Trainer.evaluate", 3, False, 1, "SIGTERM"),
    "as a result is made": ("wnfused.train.loop:Trainer._result", 2, False, 1, "SIGTERM"),
    "between two runs": ("wnfused.experiments.showcase:train", 3, False, 2, "SIGTERM"),
    "while step times are measured": ("wnfused.experiments.step_time:_step", 2, False, 3, "SIGTERM"),
    "in a step that is timed": ("torch.optim:SGD.step", 26, False, 3, "SIGINT"),
    "as the page is written": ("wnfused.experiments.showcase:conclusion", 1, False, 3, "SIGINT"),
}

# A process that has imported everything forks the small command for each place, and again to resume it. Each writes its
# exit code and output to a file.
SCRIPT = """
import functools, importlib, os, pathlib, signal, sys, traceback
sys.path.insert(0, {tests!r})
import torch, sklearn.datasets
torch.set_num_threads(1)
from test_showcase import PLACES, SMALL, WILD
from wnfused.cli import main
from wnfused.experiments import showcase
from wnfused.train import run
show, run._plot = showcase.run, lambda path, progress: None

def disturb(place, at, number):
    module, _, path = place.partition(":")
    *owners, name = path.split(".")
    owner = functools.reduce(getattr, owners, importlib.import_module(module))
    original, calls = getattr(owner, name), []
    def disturbed(*arguments, **options):
        calls.append(None)
        if len(calls) == at:
            os.kill(os.getpid(), signal.Signals[number])
        return original(*arguments, **options)
    setattr(owner, name, disturbed)

def command(folder, place, at, wild, number):
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 99
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background has it ignored
        os.chdir(folder)
        for stream in (1, 2):
            os.dup2(os.open(f"output-{{stream}}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
        showcase.run = functools.partial(show, showcase=WILD if wild else SMALL)
        if place:
            disturb(place, at, number)
        code = main(["train"])
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(code)

def outputs(folder):
    return [(folder / f"output-{{stream}}").read_text() for stream in (1, 2)]

for name, (place, at, wild, over, number) in PLACES.items():
    folder = pathlib.Path(name).absolute()
    folder.mkdir()
    code = command(folder, place, at, wild, number)
    first = [code, *outputs(folder), len([*folder.glob("runs/showcase/*/result.json")])]
    code = command(folder, None, at, wild, number)
    (folder / "all.json").write_text(__import__("json").dumps([first, [code, *outputs(folder)]]))
"""


@pytest.fixture(scope="module")
def disturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("signals")
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent), "OMP_NUM_THREADS": "1"}
    code = SCRIPT.format(tests=str(Path(__file__).parent))
    subprocess.run([sys.executable, "-c", code], cwd=folder, env=environment, check=True, timeout=300)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("where", PLACES)
def test_a_signal_at_any_point_stops_the_showcase(disturbed, where):
    _, _, _, over, number = PLACES[where]
    (code, out, err, results), again = json.loads((disturbed / where / "all.json").read_text())
    word = {"SIGINT": "interrupted", "SIGTERM": "terminated"}[number]
    assert (code, err) == (128 + signal.Signals[number], f"wnfused: {word}\n")
    paragraphs = out.split("\n\n")
    assert " ".join(paragraphs[-1].split()) == "Interrupted: the next `wnfused train` resumes runs/showcase."
    assert sum(" of 3: " in text for text in paragraphs) == min(over + 1, 3)
    assert results == over
    assert (again[0], again[2]) == (0, "")
    assert "Resuming runs/showcase, which was interrupted." in again[1]
    assert [folder.name for folder in (disturbed / where / "runs").iterdir()] == ["showcase"]


def test_other_settings_do_not_resume_it(tmp_path):
    folder = tmp_path / "showcase" / "proposed"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(replace(SMALL.config, init="robust").as_dict()))
    assert showcase.place(tmp_path, SMALL) == (tmp_path / "showcase", True)
    other = replace(SMALL, config=replace(SMALL.config, lr=0.5))
    assert showcase.place(tmp_path, other) == (tmp_path / "showcase-2", False)
    (folder / "config.json").write_text("{")
    assert showcase.place(tmp_path, SMALL) == (tmp_path / "showcase-2", False)


def test_divergence_is_reported(tmp_path, stage):
    stage.run(tmp_path, WILD)
    assert [row[1] for row in stage.tables[0].rows] == ["diverged"] * 3
    assert [row[3:5] for row in stage.tables[0].rows] == [("–", "–")] * 3
    assert "proposed: diverged at step" in stage.paragraphs[-2]
    page = (tmp_path / "showcase" / "report.html").read_text(encoding="utf-8")
    assert "diverged in epoch 1" in page


def test_the_command(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(showcase, "run", functools.partial(showcase.run, showcase=SMALL))
    assert cli.main(["train"]) == 0
    out = capsys.readouterr().out
    assert "1 of 3: torch default initialization" in out
    assert "The report with the curves: runs/showcase/report.html" in out
    (row,) = [line for line in out.splitlines() if line.startswith("  proposed  ")]
    assert row.split()[1] == "finished"


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        (["sklearn"], "scikit-learn is not installed"),
        (["matplotlib"], "matplotlib is not installed"),
        (["sklearn", "matplotlib"], "scikit-learn and matplotlib are not installed"),
    ],
)
def test_missing_packages_are_named_before_anything_is_shown(tmp_path, capsys, monkeypatch, modules, message):
    for name in modules:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train"]) == 2
    install = "install the extra 'train': pip install -c constraints.txt \".[train]\""
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", f"wnfused: train: {message}; {install}\n")
    assert list(tmp_path.iterdir()) == []


def test_several_processes_are_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert cli.main(["train"]) == 2
    message = "the comparison runs in one process; pass --preset and --run-dir to use several"
    assert capsys.readouterr().err == f"wnfused: train: {message}\n"
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(RunError, match="the showcase runs in a single process; train one Config with several"):
        showcase.run(tmp_path)


def test_step_times_are_of_the_same_network_and_relative_to_the_plain_one():
    images, labels = torch.randn(8, 3, 32, 32), torch.arange(8)
    times = step_time.measure(replace(SMALL.config, model="mlp-2-16"), images, labels, rounds=3)
    assert list(times) == ["no normalization", "wnfused", "torch's weight_norm", "batch norm"]
    assert times["no normalization"].ratio == 1.0
    assert all(0 < time.seconds < 10 and 0.01 < time.ratio < 100 for time in times.values())
    assert step_time.from_dicts({name: asdict(time) for name, time in times.items()}) == times


def test_a_table_as_lines_and_as_rich_shows_it(capsys):
    table = Table(
        ("init", "outcome", "test"), [("default", "diverged", "–"), ("[b]", "finished", "97.50%")], title="What"
    )
    assert terminal.lines(table) == [
        "What",
        "  init      outcome    test",
        "  default  diverged       –",
        "  [b]      finished  97.50%",
    ]
    terminal.table(table)  # not a terminal here
    assert capsys.readouterr().out == "\n" + "\n".join(terminal.lines(table)) + "\n"
    pytest.importorskip("rich")
    terminal._rich(table)
    out = capsys.readouterr().out
    assert all(word in out for word in ("What", "diverged", "[b]", "97.50%"))


def test_the_conclusion_gives_the_range_of_repetitions(tmp_path, stage):
    """One run's accuracy depends on the seed and on the number of threads."""
    stage.run(tmp_path, replace(WILD, range="54% to 86% in trials."))
    assert stage.paragraphs[-2] == "54% to 86% in trials."
    assert "54% to 86% in trials." in (tmp_path / "showcase" / showcase.PAGE).read_text()
    assert "54% to 86% test accuracy" in showcase.USUAL.range
