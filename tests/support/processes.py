"""Two processes that run a function together, for tests of distributed training."""

import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path

WORLD = 2


def run_ranks(worker: Callable[[int, str], None], folder: Path, patience: float) -> None:
    """Run ``worker(rank, folder)`` in a new process for each rank; kill them all after ``patience`` seconds."""
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=worker, args=(rank, str(folder)), daemon=True) for rank in range(WORLD)]
    for process in processes:
        process.start()
    deadline = time.monotonic() + patience
    try:
        for process in processes:
            process.join(max(0.0, deadline - time.monotonic()))
        assert [process.exitcode for process in processes] == [0] * WORLD
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
