"""The experiments by name: their settings, results and what they refuse."""

import json
from pathlib import Path

import pytest

from tests.support.experiments import Listing
from wnfused import cli, experiments
from wnfused.experiments import catalog, ledger, trial
from wnfused.experiments.executors import Local
from wnfused.experiments.ledger import Ledger
from wnfused.experiments.sweep import Sweep
from wnfused.train import Config


def test_every_experiment_has_three_scales_and_a_line_in_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["experiment", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(experiments.NAMES)
    for name in experiments.NAMES:
        assert tuple(catalog.get(name).scales) == catalog.SCALES


@pytest.mark.parametrize("scale", catalog.SCALES)
@pytest.mark.parametrize("name", [name for name in experiments.NAMES if name != "propagation"])
def test_every_job_of_every_scale_is_valid(name: str, scale: str, tmp_path: Path) -> None:
    """Seeds and batches are paired: every initialization of a network sees the same seeds."""
    if name == "rl":
        pytest.importorskip("gymnasium")
    executor = Listing()
    page = experiments.run(name, scale=scale, out=tmp_path, executor=executor)
    assert executor.jobs and page.read_text().startswith("# ")
    seeds: dict[str, dict[str, set[int]]] = {}
    for job in executor.jobs:
        if name == "rl":
            seeds.setdefault(job.settings["game"], {}).setdefault(job.settings["arm"], set()).add(job.settings["seed"])
            continue
        config = Config(**job.settings["config"])
        method = f"{config.norm} {config.init}"
        seeds.setdefault(config.model, {}).setdefault(method, set()).add(config.seed)
    for methods in seeds.values():
        assert len({frozenset(some) for some in methods.values()}) == 1
    assert all(file.stat().st_size < 300_000 for file in page.parent.iterdir())


def test_an_experiment_runs_and_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["experiment", "propagation", "--out", str(tmp_path), "--workers", "1"]
    assert cli.main(command) == 0
    folder = tmp_path / "propagation"
    assert {file.name for file in folder.iterdir()} == {
        ".lock", "README.md", "about.json", "backward.png", "forward.png", "numbers.json", "runs-1.jsonl"
    }  # fmt: skip
    numbers = json.loads((folder / "numbers.json").read_text())
    ends = {name: outcome["forward"][-1][0] for name, outcome in numbers.items()}
    assert 0.5 < ends["mlp, 60, robust"] < 1.5 and ends["mlp, 60, he"] < 0.3
    assert "`wnfused experiment propagation --scale smoke`" in (folder / "README.md").read_text()
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    capsys.readouterr()
    assert cli.main(command) == 2
    assert capsys.readouterr().err == (
        f"wnfused: experiment: --out: {folder} is finished; pass --force to make its page and plots again\n"
    )
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    assert cli.main([*command, "--force"]) == 0
    assert (folder / "runs-1.jsonl").read_bytes() == before["runs-1.jsonl"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["wrn-dept"], "name: unknown experiment 'wrn-dept', did you mean 'wrn-depth'?"),
        (["wrn-depth", "--scale", "smal"], "--scale: unknown 'smal', did you mean 'small'?"),
        (["wrn-depth", "--workers", "0"], "--workers: expected at least 1, got 0"),
        (["wrn-depth", "--scale", "paper", "--data-dir", "nowhere"], "cifar10: data_dir: nowhere does not exist"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["experiment", *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error.replace("--data-dir", "data_dir") and error.count("\n") == 1


def test_a_page_names_its_seeds_and_all_files_of_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "MOST_BYTES", 4000)
    page = experiments.run("seed-robustness", out=tmp_path, executor=Listing()).read_text()
    files = sorted(file.name for file in (tmp_path / "seed-robustness").glob("runs-*.jsonl"))
    assert len(files) > 1 and all(f"[{name}]({name})" in page for name in files)
    assert "Seeds 0 to 2." in page
    again = experiments.run("seed-robustness", out=tmp_path, executor=Listing(), force=True).read_text()
    assert again == page
    assert "Seed 0." in experiments.run("propagation", out=tmp_path, executor=Listing()).read_text()


def test_the_table_of_errors_stands_beside_the_papers(tmp_path: Path) -> None:
    """ResNet-20 is not in the paper: its nearest network is."""
    page = experiments.run("generalization", scale="small", out=tmp_path / "small", executor=Listing()).read_text()
    assert "| paper, resnet56 | 9.19 ± 0.24 | – | 7.87 ± 0.14 | 7.20 ± 0.12 | 6.97 |" in page
    executor = Listing()
    page = experiments.run("generalization", scale="paper", out=tmp_path / "paper", executor=executor).read_text()
    assert page.count("| paper | ") == 4 and "| paper | 30.26 ± 0.51 |" in page
    data = {(job.settings["config"]["model"], job.settings["config"]["data"]) for job in executor.jobs}
    assert dict(data) == {
        "resnet56": "cifar10", "resnet110": "cifar10", "wrn-40-10": "cifar10", "resnet164": "cifar100"
    }  # fmt: skip


def test_the_papers_scale_has_both_widths_and_weight_decays(tmp_path: Path) -> None:
    executor = Listing()
    page = experiments.run("mlp-depth", scale="paper", out=tmp_path, executor=executor)
    models = {job.settings["config"]["model"] for job in executor.jobs}
    assert models == {f"mlp-{layers}-{width}" for layers in (2, 5, 10, 20, 100, 200) for width in (512, 1024)}
    assert {"depth-width-512.png", "depth-width-1024.png"} <= {file.name for file in page.parent.iterdir()}
    executor = Listing()
    experiments.run("cnn-depth", scale="paper", out=tmp_path, executor=executor)
    assert {job.settings["config"]["weight_decay"] for job in executor.jobs} == {1e-3, 1e-4}


def test_hessians_of_the_paper_are_those_of_its_data(tmp_path: Path) -> None:
    executor = Listing()
    experiments.run("hessian", scale="paper", out=tmp_path, executor=executor)
    used = {(job.settings["config"]["model"], job.settings["config"]["data"]) for job in executor.jobs}
    assert used == {("wrn-40-10", "cifar10"), ("resnet164", "cifar100"), ("resnet164-basic", "cifar100")}


def test_results_of_other_versions_and_scales_are_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "propagation"
    folder.mkdir()
    for content, said in (
        ('{"format": 99, "scale": "smoke"}', "was written by another version of wnfused (format 99)"),
        ('{"format": 1, "scale": "paper"}', "holds results of scale 'paper'; name another directory"),
        ("{", "cannot be read"),
    ):
        (folder / "about.json").write_text(content)
        assert cli.main(["experiment", "propagation", "--out", str(tmp_path)]) == 2
        assert said in capsys.readouterr().err
        assert [file.name for file in folder.iterdir()] == ["about.json"]
    (folder / "about.json").rename(folder / "thesis.txt")
    assert cli.main(["experiment", "propagation", "--out", str(tmp_path)]) == 2
    assert "holds files but no about.json" in capsys.readouterr().err


TINY = {"data": "digits", "model": "mlp-2-64", "image_size": 8, "batch_size": 32, "validation": 0.0}


def test_a_trial_records_both_rules_of_divergence() -> None:
    fine = trial.trial(test=True, **TINY, lr=0.03, max_steps=45).run()
    assert (fine["diverged_step"], fine["threshold_step"], fine["steps"]) == (None, None, 45)
    assert fine["losses"][-1] < fine["losses"][0] and fine["test_accuracy"] > 0.2
    wild = trial.trial(test=True, **TINY, lr=1e6, max_steps=50).run()
    assert wild["diverged_step"] == wild["steps"] > wild["threshold_step"] > 1
    assert wild["test_accuracy"] is None and all(loss < 1e300 for loss in wild["losses"])


def test_a_trial_is_the_run_of_the_trainer(tmp_path: Path) -> None:
    """The same seeds, batches and steps: the same losses."""
    from wnfused.train import train

    settings = {**TINY, "lr": 0.01, "epochs": 2}
    found = trial.trial(test=True, **settings).run()
    result = train(Config(**settings), tmp_path / "run")
    assert result.steps == found["steps"]
    assert result.test_accuracy == pytest.approx(found["test_accuracy"], abs=1e-9)


def test_local_workers_read_the_given_folder(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="does not exist"):
        Sweep(Ledger(tmp_path), Local(1, data_dir=str(tmp_path / "none"))).run(
            "x", [trial.trial(**{**TINY, "data": "mnist", "image_size": 0}, max_steps=1)]
        )
