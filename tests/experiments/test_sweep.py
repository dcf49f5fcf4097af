"""Jobs, the ledger, executors and the search for the largest stable learning rate."""

import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.experiments import Listing
from wnfused import cli
from wnfused.experiments import catalog, ledger
from wnfused.experiments.executors import Local, Ray
from wnfused.experiments.jobs import Job, Outcome
from wnfused.experiments.ledger import Ledger
from wnfused.experiments.plan import planned
from wnfused.experiments.search import largest_stable
from wnfused.experiments.statistics import plus_minus, wilson
from wnfused.experiments.sweep import Progress, Sweep
from wnfused.train import RunError

ROOT = Path(__file__).parents[2]


def job(seed: int = 0, **changes: Any) -> Job:
    """A measurement of milliseconds."""
    sizes = {"family": "mlp", "width": 60, "init": "robust", "inputs": 8, "samples": 2, "layers": 2}
    return Job("propagation:measure", {**sizes, "seed": seed, **changes})


class Here:
    """Runs jobs in this process; ``count`` is how many it ran."""

    workers = 1

    def __init__(self) -> None:
        self.count = 0

    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Outcome]]:
        for one in jobs:
            self.count += 1
            yield one, one.run()

    def close(self) -> None: ...


def test_a_key_depends_on_function_and_settings_alone() -> None:
    assert job(1).key == Job("propagation:measure", dict(reversed(job(1).settings.items()))).key
    assert len({job(1).key, job(2).key, Job("other:measure", job(1).settings).key}) == 3
    assert job(1).key == "2f11b54a66395aed"  # committed results are found by it


def test_what_is_done_is_not_run_again(tmp_path: Path) -> None:
    executor = Here()
    first = Sweep(Ledger(tmp_path), executor).run("jobs", [job(0), job(1), job(0)])
    assert executor.count == 2 and first[0] == first[2] != first[1]
    assert Sweep(Ledger(tmp_path), executor).run("jobs", [job(1), job(2), job(0)])[0] == first[1]
    assert executor.count == 3 and len(Ledger(tmp_path)) == 3


def test_a_line_cut_off_by_a_kill_is_dropped(tmp_path: Path) -> None:
    file = tmp_path / "runs-1.jsonl"
    Sweep(Ledger(tmp_path), Here()).run("jobs", [job(0), job(1)])
    whole = file.read_bytes()
    for cut in (len(whole) - 1, len(whole) - 40, whole.index(b"\n") + 2):
        file.write_bytes(whole[:cut])
        executor = Here()
        Sweep(Ledger(tmp_path), executor).run("jobs", [job(0), job(1)])
        assert executor.count == 1 and [json.loads(line)["key"] for line in file.read_text().splitlines()]
    file.write_bytes(b"{}\n" + whole)
    with pytest.raises(RunError, match=r"runs-1\.jsonl: line 1 is not the record"):
        Ledger(tmp_path)


def test_a_long_ledger_has_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "MOST_BYTES", 1000)
    outcomes = Sweep(Ledger(tmp_path), Here()).run("jobs", [job(seed) for seed in range(9)])
    files = sorted(tmp_path.iterdir())
    assert len(files) > 2 and all(file.stat().st_size <= 1000 for file in files)
    executor = Here()
    assert Sweep(Ledger(tmp_path), executor).run("jobs", [job(seed) for seed in range(10)])[:9] == outcomes
    assert executor.count == 1


def test_progress_counts_the_jobs_of_all_lists(tmp_path: Path) -> None:
    said: list[str] = []
    planned = [job(seed) for seed in range(5)]
    Sweep(Ledger(tmp_path), Here()).run("before", [job(0)])
    sweep = Sweep(Ledger(tmp_path), Here(), said.append, planned)
    sweep.run("first", [job(0), job(1), job(2)])
    sweep.run("second", [job(3), job(4), job(5)])  # one more than foreseen
    assert said[0] == "first: 3 jobs, 1 of them done before" and said[3] == "second: 3 jobs"
    assert [re.sub("[0-9.]+ s left", "T left", line) for line in said[1:3] + said[4:]] == [
        "first: 2/3; 2 of about 5 jobs, about T left",
        "first: 3/3; 3 of about 5 jobs, about T left",
        "second: 1/3; 4 of about 6 jobs, about T left",
        "second: 2/3; 5 of about 6 jobs, about T left",
        "second: 3/3; 6 of about 6 jobs",
    ]


def test_the_time_left_is_that_of_jobs_of_the_same_kind() -> None:
    """Deeper networks take longer: the mean of all jobs would be wrong for both."""
    jobs = {layers: [job(seed, layers=layers, init=init) for seed in (0, 1) for init in "ab"] for layers in (2, 9)}
    progress = Progress([one for some in jobs.values() for one in some], workers=2)
    assert progress.line([]) == "0 of about 8 jobs"
    progress.done(jobs[2][0], {"seconds": 10.0})
    assert progress.line([]) == "1 of about 8 jobs, at least 35.0 s left"  # of 9 layers nothing is known yet
    progress.done(jobs[9][0], {"seconds": 60.0})
    progress.done(jobs[9][0], {"seconds": 60.0})  # asked for again, counted once
    assert progress.line([]) == "2 of about 8 jobs, about 1 min 45 s left"


@pytest.mark.parametrize("name", ["wrn-depth", "hessian", "generalization"])
def test_the_plan_has_the_jobs_that_come_and_writes_nothing(name: str, tmp_path: Path) -> None:
    experiment, executor = catalog.get(name), Listing()
    setting = experiment.scales["small"]
    plan = planned(experiment.run, setting, Ledger(tmp_path))
    assert not list(tmp_path.iterdir())
    experiment.run(setting, Sweep(Ledger(tmp_path), executor))
    assert {one.key for one in plan} == {one.key for one in executor.jobs} and len(plan) == len(executor.jobs)


def test_worker_processes_give_the_same_outcomes() -> None:
    executor = Local(workers=2)
    found = {one.key: outcome for one, outcome in executor.run([job(0), job(1)])}
    found |= {one.key: outcome for one, outcome in executor.run([job(2)])}  # by the same workers
    executor.close()
    for seed in range(3):
        wanted = job(seed).run()
        assert found[job(seed).key]["forward"] == wanted["forward"]


def test_an_error_in_a_worker_is_raised_here() -> None:
    executor = Local(workers=1)
    incomplete = {name: value for name, value in job().settings.items() if name != "samples"}
    with pytest.raises(KeyError, match="samples"):
        list(executor.run([Job("propagation:measure", incomplete)]))
    executor.close()


def command(out: Path) -> list[str]:
    return [sys.executable, "-m", "wnfused", "experiment", "seed-robustness", "--out", str(out), "--workers", "1"]


def test_a_killed_experiment_continues(tmp_path: Path) -> None:
    """kill -9 of the parent: the workers end too, and the next start repeats at most the job that was cut off."""
    file = tmp_path / "seed-robustness" / "runs-1.jsonl"
    with subprocess.Popen(command(tmp_path), cwd=ROOT, stdout=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 300  # importing torch twice takes minutes on a busy machine
        while not (file.exists() and file.read_bytes().count(b"\n") >= 2):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
    done = file.read_bytes().count(b"\n")
    finished = subprocess.run(command(tmp_path), cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert finished.returncode == 0, finished.stderr
    assert f"runs: 24 jobs, {done} of them done before" in finished.stdout
    keys = [json.loads(line)["key"] for line in file.read_text().splitlines()]
    assert len(keys) == len(set(keys)) == 24
    assert (tmp_path / "seed-robustness" / "README.md").exists()


@pytest.fixture
def cluster() -> Iterator[str]:
    """The address of a Ray cluster of its own; others on this machine are left alone."""
    utils = pytest.importorskip("ray.cluster_utils")
    started = utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    yield started.address
    started.shutdown()


def test_ray_gives_the_same_outcomes(cluster: str) -> None:
    executor = Ray(cluster)
    try:
        assert executor.workers == 2
        found = {one.key: outcome for one, outcome in executor.run([job(0), job(1)])}
        incomplete = {name: value for name, value in job().settings.items() if name != "samples"}
        with pytest.raises(RunError, match="ray: a task failed: .*samples"):
            list(executor.run([Job("propagation:measure", incomplete)]))
    finally:
        executor.close()
    assert all(found[job(seed).key]["forward"] == job(seed).run()["forward"] for seed in (0, 1))


def test_ray_runs_an_experiment(cluster: str, tmp_path: Path) -> None:
    found = subprocess.run(
        [*command(tmp_path), "--ray", cluster], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert found.returncode == 0, found.stderr
    assert (tmp_path / "seed-robustness" / "runs-1.jsonl").read_bytes().count(b"\n") == 24


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_a_cluster_that_cannot_be_reached_is_one_line(
    scheme: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ray")
    with socket.socket() as listener:  # a free port, at which nothing listens after the block
        listener.bind(("127.0.0.1", 0))
        address = f"{scheme}127.0.0.1:{listener.getsockname()[1]}"
    start = time.monotonic()
    assert cli.main(["experiment", "seed-robustness", "--out", str(tmp_path), "--ray", address]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"wnfused: experiment: --ray: cannot reach the cluster at {address!r}: ")
    assert error.count("\n") == 1 and time.monotonic() - start < 30


class Pretend:
    """A run survives learning rates below its limit."""

    workers = 1

    def __init__(self, limits: dict[str, float]) -> None:
        self.limits, self.count = limits, 0

    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Outcome]]:
        for one in jobs:
            self.count += 1
            yield one, {"diverged_step": None if one.settings["lr"] < self.limits[one.settings["init"]] else 3}

    def close(self) -> None: ...


def test_bisection_finds_the_edge(tmp_path: Path) -> None:
    rates = [10.0**k for k in range(-7, 1)]
    limits = {"a": 0.05, "b": 1e-9, "c": 100.0, "d": 1e-4}
    executor = Pretend(limits)
    jobs = {init: lambda lr, init=init: Job("x:y", {"init": init, "lr": lr}) for init in limits}
    found = largest_stable(Sweep(Ledger(tmp_path), executor), "x", jobs, rates)
    assert found == {"a": pytest.approx(0.01), "b": None, "c": 1.0, "d": pytest.approx(1e-5)}
    assert executor.count <= 4 * len(limits)  # log2 of 8 rates and one


def test_wilson_intervals() -> None:
    """Values of Agresti & Coull (1998) and of R's prop.test without correction."""
    assert wilson(0, 20) == pytest.approx((0.0, 0.16113), abs=1e-4)
    assert wilson(20, 20) == pytest.approx((0.83887, 1.0), abs=1e-4)
    assert wilson(10, 20) == pytest.approx((0.29928, 0.70072), abs=1e-4)
    with pytest.raises(ValueError, match="wilson: successes, trials"):
        wilson(3, 2)


def test_plus_minus() -> None:
    assert (plus_minus([]), plus_minus([1.5]), plus_minus([1.0, 2.0], 1)) == ("–", "1.50", "1.5 ± 0.7")


def test_workers_end_with_their_parent() -> None:
    """A worker whose parent is gone cannot be told to stop: it has to notice."""
    code = (
        "import os, sys, time\n"
        "from wnfused.experiments.executors import Local\n"
        "from wnfused.experiments.jobs import Job\n"
        "def main():\n"
        "    executor = Local(workers=1)\n"
        f"    list(executor.run([Job('propagation:measure', {dict(job().settings)!r})]))\n"
        "    print(*executor._pool._processes, flush=True)\n"
        "    time.sleep(100)\n"
        "if __name__ == '__main__':\n"
        "    main()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        worker = int(process.stdout.readline())
        process.kill()
    deadline = time.monotonic() + 20
    while Path(f"/proc/{worker}").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not Path(f"/proc/{worker}").exists() or _is_zombie(worker)


def _is_zombie(process: int) -> bool:
    status = Path(f"/proc/{process}/stat")
    return status.exists() and status.read_text().split()[2] == "Z"
