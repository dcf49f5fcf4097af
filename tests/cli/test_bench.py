"""``wnfused bench``: options reach the selected suite."""

import json
from pathlib import Path

import pytest
import torch

from wnfused import cli
from wnfused.benchmarks import layers, training


def test_one_row(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    try:
        file = tmp_path / "rows.json"
        row = ["--only", "512→512, batch 1", "--seconds", "0.01", "--threads", str(threads), "--json", str(file)]
        assert cli.main(["bench", *row]) == 0
    finally:
        torch.set_num_threads(threads)
    assert "| Linear 512→512, batch 1 | step |" in capsys.readouterr().out
    rows = json.loads(file.read_text(encoding="utf-8"))["results"]
    assert {"Linear 512→512, batch 1", "Linear 512→512, batch 128"} <= {row["case"] for row in rows}
    assert {"plain", "plain again", "torch hook", "wnfused", "wnfused frozen"} <= {row["peer"] for row in rows}
    assert all(0 < row["low"] <= row["relative"] <= row["high"] for row in rows)


def test_the_suite_gets_the_options_that_were_given(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    monkeypatch.setattr(training, "main", seen.append)
    monkeypatch.setattr(layers, "main", seen.append)
    assert cli.main(["bench", "--suite", "training", "--models", "resnet20", "--batches", "8"]) == 0
    assert cli.main(["bench"]) == 0
    assert seen == [["--models", "resnet20", "--batches", "8"], []]


@pytest.mark.parametrize(
    ("argv", "error"),
    [
        (["--device", "cuda"], "bench: --device: 'cuda' needs a GPU, and torch sees none; measure on 'cpu' instead"),
        (["--json", "no/such/file"], "bench: cannot write no/such/file: the directory does not exist"),
    ],
)
def test_what_cannot_run_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, argv: list[str], error: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert cli.main(["bench", *argv]) == 2
    assert capsys.readouterr().err == f"wnfused: {error}\n"


def test_an_option_of_another_suite_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["bench", "--models", "resnet20"])
    assert "--models" in capsys.readouterr().err
