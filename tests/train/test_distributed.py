"""Several processes train like one: DDP and FSDP2 on gloo, ragged batches, checkpoints, a killed worker."""

import json
import os
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from tests.support.processes import WORLD, run_ranks
from tests.support.train_cases import config, use, use_for_good
from wnfused.train import Config, load_best, train
from wnfused.train.checkpoints import KEYS, load, steps
from wnfused.train.loop import Trainer

PATIENCE = 150  # seconds until hanging processes are killed
# 41 images: with batches of 8 the last has one image, and one of two processes none.
RAGGED = {"epochs": 3, "batch_size": 8, "clip": 1.0, "ema": 0.5, "lr": 0.005}
RUNS: dict[str, dict[str, Any]] = {
    "ddp": {**RAGGED, "accumulate": 2, "label_smoothing": 0.1},
    "fsdp": {**RAGGED, "sharding": "fsdp", "model": "resnet8"},
}
LONGER = 5  # epochs up to which one process resumes the FSDP run


def worker(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    use_for_good()
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=WORLD, timeout=timedelta(seconds=60)
    )
    results = {name: train(config(**changes), Path(folder) / name).as_dict() for name, changes in RUNS.items()}
    results["diverged"] = train(config(lr=1e5, max_loss=1000.0), Path(folder) / "diverged").as_dict()
    results["refused"] = refusal(folder)
    results["interrupted"] = interrupted(rank, folder)
    Path(folder, f"{rank}.json").write_text(json.dumps(results))
    dist.destroy_process_group()


def interrupted(rank: int, folder: str) -> dict[str, Any]:
    """Rank 1 receives SIGTERM in a step that diverges."""
    step = Trainer.train_step

    def disturbed(self: Trainer, images: Tensor, labels: Tensor) -> None:
        step(self, images, labels)
        if self.step == 2 and rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "train_step", disturbed)
        return train(config(lr=1e5, max_loss=1000.0), Path(folder) / "interrupted").as_dict()


def refusal(folder: str) -> str:
    """The error that rank 0 raises because the directory exists: all ranks must raise it."""
    try:
        train(config(), Path(folder) / "ddp")
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "none"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gloo")
    run_ranks(worker, folder, PATIENCE)
    return folder


@pytest.fixture(autouse=True)
def _tiny_images(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch)


def assert_same_run(several: Path, alone: Path) -> None:
    """Equal to 1e-5: the order of sums differs."""
    for name in ("metrics.jsonl",):
        lines = [[json.loads(line) for line in (run / name).read_text().splitlines()] for run in (several, alone)]
        assert len(lines[0]) == len(lines[1]) > 0
        for found, wanted in zip(*lines, strict=True):
            for key in ("epoch", "step", "lr", "train_accuracy", "validation_accuracy"):
                assert found[key] == wanted[key]
            for key in ("train_loss", "validation_loss"):
                assert found[key] == pytest.approx(wanted[key], rel=1e-5)
    ends = [load(steps(run / "checkpoints")[0], KEYS) for run in (several, alone)]
    for key in ("model", "optimizer", "ema"):
        assert (ends[0][key] or {}).keys() == (ends[1][key] or {}).keys()
        for name, value in (ends[1][key] or {}).items():
            torch.testing.assert_close(ends[0][key][name], value, rtol=1e-4, atol=1e-5)
    assert not any(isinstance(value, dist.tensor.DTensor) for value in ends[0]["model"].values())


@pytest.mark.parametrize("name", RUNS)
def test_two_processes_train_like_one(trained: Path, tmp_path: Path, name: str) -> None:
    result = train(config(**RUNS[name]), tmp_path / "alone")
    assert_same_run(trained / name, tmp_path / "alone")
    results = [json.loads((trained / f"{rank}.json").read_text()) for rank in range(WORLD)]
    assert results[0][name]["test_accuracy"] == results[1][name]["test_accuracy"] == result.test_accuracy
    assert results[0][name]["test_loss"] == pytest.approx(result.test_loss, rel=1e-5)
    assert json.loads((trained / name / "environment.json").read_text())["world_size"] == WORLD


def test_all_ranks_raise_the_error_of_rank_0(trained: Path) -> None:
    for rank in range(WORLD):
        message = json.loads((trained / f"{rank}.json").read_text())["refused"]
        assert message.startswith("RunError: run_dir: '") and "already exists; pass resume=True" in message


def test_all_ranks_agree_on_divergence(trained: Path, tmp_path: Path) -> None:
    alone = train(config(lr=1e5, max_loss=1000.0), tmp_path / "alone")
    for rank in range(WORLD):
        outcome = json.loads((trained / f"{rank}.json").read_text())["diverged"]
        assert (outcome["status"], outcome["diverged_step"]) == ("diverged", alone.diverged_step)


def test_all_ranks_agree_on_an_interrupt(trained: Path) -> None:
    for rank in range(WORLD):
        outcome = json.loads((trained / f"{rank}.json").read_text())["interrupted"]
        assert (outcome["status"], outcome["steps"], outcome["stopped_by"]) == ("interrupted", 3, "SIGTERM")
    assert train(config(lr=1e5, max_loss=1000.0), trained / "interrupted", resume=True).status == "diverged"


def test_one_process_resumes_a_run_of_two(trained: Path, tmp_path: Path) -> None:
    longer = {**RUNS["fsdp"], "epochs": LONGER}
    assert train(config(**longer), trained / "fsdp", resume=True).epochs == LONGER
    train(config(**longer), tmp_path / "alone")
    assert_same_run(trained / "fsdp", tmp_path / "alone")
    assert all(isinstance(p, Tensor) for p in load_best(trained / "fsdp").parameters())


SCRIPT = """
import os, signal, sys
sys.path.insert(0, {root!r})
from tests.support.processes import WORLD, run_ranks
from tests.support.train_cases import use_for_good
from wnfused.cli import main
from wnfused.train.loop import Trainer
use_for_good()
step = Trainer.train_step

def dangerous(self, images, labels):
    step(self, images, labels)
    if self.step == 8 and self.world.rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)

Trainer.train_step = dangerous
sys.exit(main({argv!r}))
"""


def options(settings: Config) -> list[str]:
    """The command line of a configuration."""
    given = []
    for name, value in settings.as_dict().items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            given.append(f"--{option}" if value else f"--no-{option}")
        elif value is not None:
            given.append(f"--{option}={value}")
    return given


def test_a_killed_worker_is_restarted_and_resumes(tmp_path: Path) -> None:
    settings = config(epochs=3, batch_size=8, checkpoint_steps=4, lr=0.005)  # losses stay well above rounding
    argv = ["train", *options(settings), "--run-dir", str(tmp_path / "run")]
    (tmp_path / "script.py").write_text(SCRIPT.format(root=str(Path(__file__).parents[2]), argv=argv))
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(WORLD)]
    done = subprocess.run(
        [*torchrun, "--max-restarts", "1", "script.py"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("test accuracy") == 1  # only rank 0 prints
    assert "resumed at step 8" in done.stdout
    train(settings, tmp_path / "alone")
    assert_same_run(tmp_path / "run", tmp_path / "alone")
