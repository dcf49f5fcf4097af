"""Where jobs run: worker processes of this machine, or tasks on a Ray cluster.

Every executor yields (job, outcome) in the order in which jobs end.
"""

import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any, Protocol

from wnfused.experiments.jobs import Job, Outcome
from wnfused.extras import not_installed
from wnfused.train import RunError


class Executor(Protocol):
    @property
    def workers(self) -> int:
        """How many jobs run at a time."""
        ...

    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Outcome]]: ...

    def close(self) -> None: ...


class Local:
    """``workers`` processes with ``threads`` threads each, started with the first job and kept for all others."""

    def __init__(self, workers: int | None = None, threads: int = 1, data_dir: str | None = None) -> None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.threads = threads
        self.workers = max(1, cores // threads) if workers is None else workers
        self.data_dir = data_dir
        self._pool: ProcessPoolExecutor | None = None

    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Outcome]]:
        if self._pool is None:
            context, arguments = get_context("spawn"), (self.threads, os.getpid())
            self._pool = ProcessPoolExecutor(self.workers, context, _prepare, arguments)
        waiting: dict[Future[Outcome], Job] = {self._pool.submit(_run, job, self.data_dir): job for job in jobs}
        try:
            while waiting:
                done, _ = wait(waiting, return_when=FIRST_COMPLETED)
                for future in done:
                    yield waiting.pop(future), future.result()
        except BrokenProcessPool:
            reason = "a worker process died, perhaps for want of memory"
            raise RunError(f"{reason}; run the command again to continue") from None
        finally:
            if waiting:  # something failed or was interrupted: what is in the queue must not run
                self.close()

    def close(self) -> None:
        """End the workers at once. Running jobs are lost and start over next time."""
        if self._pool is None:
            return
        processes = list((self._pool._processes or {}).values())  # public from Python 3.14 on: terminate_workers
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.terminate()
        self._pool = None


def _prepare(threads: int, parent: int) -> None:
    """Pin the worker's threads, and end it with its parent: a killed parent cannot."""
    import torch

    torch.set_num_threads(threads)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _run(job: Job, data_dir: str | None) -> Outcome:
    return job.run(data_dir)


class Ray:
    """Tasks on the Ray cluster at ``address``; each requests ``threads`` CPUs, or ``gpus`` GPUs.

    The machines need wnfused and the data set; ``data_dir`` is a path that all of them see. ``short`` says what the
    cluster lacks to run a single job: jobs wait for it, as it may grow.
    """

    def __init__(self, address: str, threads: int = 1, gpus: float = 0.0, data_dir: str | None = None) -> None:
        try:
            import ray
        except ImportError:
            raise RunError(f"ray: {not_installed('ray')}") from None
        self.ray: Any = ray
        try:
            _check_reachable(address)
            ray.init(address=address, log_to_driver=False, logging_level="error")
        except Exception as error:  # Ray raises many kinds
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise RunError(f"ray: cannot reach the cluster at {address!r}: {reason}") from None
        self.threads, self.gpus, self.data_dir = threads, gpus, data_dir
        kind, each = ("GPU", gpus) if gpus else ("CPU", threads)
        there = ray.cluster_resources().get(kind, 0)
        self.workers = max(1, int(there / each))
        self.short = f"each job needs {each:g} {kind}, the cluster has {there:g} now" if there < each else None

    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Outcome]]:
        remote = self.ray.remote(num_cpus=self.threads, num_gpus=self.gpus, max_retries=3)(_run_with_threads)
        waiting = {remote.remote(job, self.data_dir, self.threads): job for job in jobs}
        while waiting:
            done, _ = self.ray.wait(list(waiting), num_returns=1)
            for reference in done:
                job = waiting.pop(reference)
                try:
                    yield job, self.ray.get(reference)
                except self.ray.exceptions.RayError as error:
                    reason = str(error).strip().splitlines()[-1]
                    raise RunError(f"ray: a task failed: {reason}; run the command again to continue") from None

    def close(self) -> None:
        self.ray.shutdown()


def _check_reachable(address: str) -> None:
    """Raise OSError if nothing listens at HOST:PORT or ray://HOST:PORT, for which Ray would wait minutes.

    Other addresses ("auto", "local") are Ray's to judge.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


def _run_with_threads(job: Job, data_dir: str | None, threads: int) -> Outcome:
    import torch

    torch.set_num_threads(threads)
    return job.run(data_dir)
