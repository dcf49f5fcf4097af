"""``wnfused train``: its output, its one-line errors and its exit codes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.train_cases import config, same, use
from wnfused import cli, data
from wnfused.data import DataError
from wnfused.train import Config, run
from wnfused.train.checkpoints import KEYS, load, steps
from wnfused.train.config import FIELDS
from wnfused.train.loop import Trainer

TINY = ["--model", "mlp-2-12", "--batch-size", "9", "--lr", "0.05", "--device", "cpu"]


def main(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    try:
        code = cli.main(["train", *argv])
    except SystemExit as leaving:
        code = int(leaving.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch)
    monkeypatch.chdir(tmp_path)


def test_a_complete_run(capsys, monkeypatch, tmp_path):
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    # with scikit-learn's digits and plots
    code, out, err = main(capsys, "--model", "mlp-1-8", "--epochs", "2", "--run-dir", "a", "--lr", "0.02")
    assert (code, err) == (0, "")
    first, *epochs, last = out.splitlines()
    assert first.startswith("mlp-1-8 (norm weight, init robust; ") and first.endswith("in a")
    assert [line.split("  ")[0] for line in epochs] == ["epoch 1/2", "epoch 2/2"]
    assert last.startswith("test accuracy ") and last.endswith("the run is in a")
    assert sorted(path.name for path in Path("a", "plots").iterdir()) == ["accuracy.png", "loss.png", "lr.png"]


def test_options_are_the_fields_of_the_configuration(capsys):
    code, out, _ = main(capsys, "--help")
    assert code == 0
    assert all(f"--{name.replace('_', '-')}" in out for name in FIELDS)


def test_options_override_the_file_and_the_file_the_preset(capsys, monkeypatch):
    seen: list[Config] = []
    monkeypatch.setattr(run, "prepare_backend", lambda config, world: seen.append(config))
    Path("a.toml").write_text('preset = "smoke"\nepochs = 7\nseed = 8\n')
    argv = ["--seed", "9", "--no-flip", "--quiet", "--run-dir", "a", *TINY]
    code, out, _ = main(capsys, "--config", "a.toml", *argv, "--epochs", "1")
    assert (code, out.count("\n")) == (0, 1)
    assert (seen[0].epochs, seen[0].seed, seen[0].flip, seen[0].schedule) == (1, 9, False, "halves")
    Path("b.yaml").write_text("epochs: 2\n")
    main(capsys, "--preset", "smoke", "--config", "b.yaml", *argv[:-1], "cpu", "--run-dir", "b")
    assert (seen[1].epochs, seen[1].schedule) == (2, "halves")


def test_without_run_dir_a_new_directory_is_made(capsys):
    code, out, _ = main(capsys, *TINY, "--epochs", "1")
    assert code == 0
    (folder,) = Path("runs").iterdir()
    assert folder.name.startswith("mlp-2-12-digits-2") and str(folder) in out


BAD = [
    (["--preset", "smokee"], "--preset: unknown 'smokee', did you mean 'smoke'?"),
    (["--epochs", "0"], "--epochs: expected a number from 1"),
    (["--epochs", "many"], "--epochs: expected an integer, got 'many'"),
    (["--lr", "high"], "--lr: expected a number, got 'high'"),
    (["--data", "cifra10"], "--data: unknown 'cifra10', did you mean 'cifar10'?"),
    (["--model", "vgg16"], "--model: unknown 'vgg16'"),
    (["--batch-size", "1000"], "--batch-size: expected at most 41, the training images of digits, got 1000"),
    (["--init", "robut"], "--init: unknown 'robut', did you mean 'robust'?"),
    (["--norm", "none", "--init", "hanin"], "--init: 'hanin' is not available with norm 'none'"),
    (["--config", "missing.toml"], "--config: cannot read missing.toml: No such file"),
    (["--resume"], "--resume: expected --run-dir"),
    (["--resume", "--run-dir", "nowhere"], "--resume: there is no run in nowhere"),
    (["--device", "tpu"], "--device: expected auto, cpu, cuda or cuda:N, got 'tpu'"),
    (["--device", "cuda:99"], "--device: 'cuda:99' does not exist; torch sees"),
    (["--run-dir", "file"], "--run-dir: 'file' is a file; choose a directory"),
    (["--run-dir", "file/below"], "--run-dir: cannot create 'file/below': Not a directory"),
    (["--accumulate", "10"], "--accumulate: expected at most --batch-size, 9, got 10"),
    (
        ["--norm", "batch", "--batch-size", "8"],
        "--batch-size: 1 images in 1 parts leave fewer than 2 for batch norm; pass --drop-last or another --batch-size",
    ),
    (
        ["--resume", "--force", "--run-dir", "a", "--lr", "0.1"],
        "--resume, --force: both are set; pass --resume to continue a run or --force to replace",
    ),
    (["--tensorboard"], "--tensorboard: tensorboard is not installed; install the extra 'tensorboard': pip"),
]


@pytest.mark.parametrize(("argv", "message"), BAD, ids=[" ".join(argv) for argv, _ in BAD])
def test_bad_input_is_one_line_and_exit_code_2(capsys, monkeypatch, argv, message):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    Path("file").write_text("mine")
    given = [] if "--resume" in argv else [*TINY, "--epochs", "1"]
    code, out, err = main(capsys, *given, *argv)
    assert (code, out) == (2, "")
    assert err.startswith(f"wnfused: train: {message}") and err.count("\n") == 1
    assert [path.name for path in Path().iterdir()] == ["file"] and Path("file").read_text() == "mine"


def test_an_unknown_option_suggests_the_nearest(capsys):
    code, out, err = main(capsys, "--epoch-count", "3", "--labelsmoothing", "0.1")
    assert (code, out) == (2, "")
    assert "did you mean --epochs?" in err and err.count("\n") == 1


def test_missing_data_is_one_line(capsys, monkeypatch):
    def missing(name: str, **options: object) -> None:
        raise DataError("cifar10: no cifar-10-python.tar.gz in /data: download it")

    monkeypatch.setattr(data, "load", missing)
    code, _, err = main(capsys, "--data", "cifar10", "--data-dir", "/data", "--run-dir", "a")
    assert code == 2
    assert err == "wnfused: train: cifar10: no cifar-10-python.tar.gz in /data: download it\n"
    assert not Path("a").exists()


def test_missing_data_names_the_flags(capsys, monkeypatch):
    monkeypatch.undo()
    code, _, err = main(capsys, "--data", "cifar10", "--data-dir", "nowhere", "--no-download", "--run-dir", "a")
    assert code == 2
    assert err.startswith("wnfused: train: ") and err.count("\n") == 1 and "cifar" in err.lower()
    assert "Omit --data-dir to have it downloaded" in err and err.endswith(" into --data-dir\n")
    monkeypatch.setenv("WNFUSED_DATA", "cache")
    _, _, err = main(capsys, "--data", "cifar10", "--no-download", "--run-dir", "a")
    assert "Drop --no-download, or download" in err and err.endswith(" and pass its folder as --data-dir\n")
    assert not Path("a").exists()


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="the superuser may write anywhere")
def test_an_unwritable_directory(capsys):
    Path("locked").mkdir(mode=0o500)
    code, _, err = main(capsys, *TINY, "--run-dir", "locked/a")
    assert code == 2 and "--run-dir: cannot create 'locked/a': Permission denied" in err


def test_an_unwritable_directory_for_the_superuser(capsys, monkeypatch):
    """The superuser may write anywhere, so the check is simulated."""
    Path("locked").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    code, _, err = main(capsys, *TINY, "--run-dir", "locked")
    assert (code, err) == (2, "wnfused: train: --run-dir: cannot write to 'locked': Permission denied\n")


def test_resume_uses_the_stored_configuration(capsys):
    assert main(capsys, *TINY, "--epochs", "1", "--run-dir", "a", "--seed", "5")[0] == 0
    code, out, _ = main(capsys, "--run-dir", "a", "--resume")
    assert code == 0 and "the run in a has already finished" in out
    code, out, _ = main(capsys, "--run-dir", "a", "--resume", "--epochs", "3")
    assert code == 0 and "resumed at step 5" in out
    assert json.loads(Path("a", "config.json").read_text())["seed"] == 5
    code, _, err = main(capsys, "--run-dir", "a", "--resume", "--lr", "0.3")
    assert code == 2 and "--resume: 'a' has another configuration: lr was 0.05 and is 0.3" in err
    code, _, err = main(capsys, *TINY, "--run-dir", "a")
    assert code == 2 and "--run-dir: 'a' already exists; pass --resume to continue it or --force to replace it\n" in err


def entry_attributes(content: bytes) -> int:
    """The offset of the external attributes of an archive's last entry: its bit 4 makes the entry a directory."""
    return content.rindex(b"PK\1\2") + 38


@pytest.mark.parametrize("place", ["first header", "data", "directory", "directory bit", "digest"])
def test_resume_falls_back_past_a_flipped_bit_and_finishes(capsys, place):
    assert main(capsys, *TINY, "--epochs", "3", "--run-dir", "whole")[0] == 0
    assert main(capsys, *TINY, "--epochs", "3", "--run-dir", "a")[0] == 0
    Path("a", "result.json").unlink()
    newest, before = steps(Path("a", "checkpoints"))[:2]
    content = bytearray(newest.read_bytes())
    directory = content.index(b"PK\1\2")
    at, bit = {
        "first header": (8, 0), "data": (len(content) // 3, 5), "directory": (directory + 10, 3),
        "directory bit": (entry_attributes(bytes(content)), 4), "digest": (len(content) - 5, 0),
    }[place]  # fmt: skip
    content[at] ^= 1 << bit
    newest.write_bytes(content)
    code, out, err = main(capsys, "--run-dir", "a", "--resume")
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == f"skipped checkpoint {newest}: it is damaged (its digest does not match)"
    assert f"resumed at step {int(before.stem.removeprefix('step-'))}" in out.splitlines()[1]
    assert out.count("skipped") == 1
    ends = [load(steps(Path(name, "checkpoints"))[0], KEYS) for name in ("a", "whole")]
    assert same(ends[0]["model"], ends[1]["model"]) and same(ends[0]["optimizer"], ends[1]["optimizer"])


def test_divergence_is_reported_with_exit_code_0(capsys):
    code, out, err = main(capsys, *TINY, "--lr", "1e5", "--max-loss", "1000", "--run-dir", "a")
    assert (code, err) == (0, "")
    assert "DIVERGED" in out and out.splitlines()[-1].startswith("diverged: the loss of step ")


SCRIPT = """
import sys
sys.path.insert(0, {root!r})
from tests.support.train_cases import use_for_good
from wnfused.cli import main
use_for_good()
sys.exit(main(["train", "--run-dir", "a", *{options!r}]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_write_a_checkpoint(tmp_path, number):
    code = SCRIPT.format(root=str(Path(__file__).parents[2]), options=[*TINY, "--epochs", "100000"])
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, env=environment, **pipes) as process:
        deadline = time.monotonic() + 60
        while not steps(tmp_path / "a" / "checkpoints") and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (128 + number, "")  # 130, 143
    assert out.splitlines()[-1].startswith("interrupted at step ") and "--run-dir a --resume" in out
    newest = steps(tmp_path / "a" / "checkpoints")[0]
    assert f"at step {int(newest.stem.removeprefix('step-'))};" in out.splitlines()[-1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_divergence_does_not_hide_an_interrupt(capsys, monkeypatch, number):
    step = Trainer.train_step

    def disturbed(self: Trainer, *batch: object) -> None:
        step(self, *batch)
        if self.step == 2:
            os.kill(os.getpid(), number)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train_step", disturbed)
        code, out, err = main(capsys, *TINY, "--lr", "1e5", "--max-loss", "1000", "--run-dir", "a")
    assert (code, err) == (128 + number, "") and "DIVERGED" not in out
    assert out.splitlines()[-1] == "interrupted at step 3; resume with: wnfused train --run-dir a --resume"
    code, out, _ = main(capsys, "--run-dir", "a", "--resume")
    assert code == 0 and out.splitlines()[-1].startswith("diverged: the loss of step 2 is ")


def test_the_options_match_the_test_configuration():
    """``TINY`` and ``config()`` describe the same network."""
    assert config().model == TINY[1] and config().batch_size == int(TINY[3])
