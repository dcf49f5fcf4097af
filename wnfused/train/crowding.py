"""Notice that other programs use the cores, which makes torch's threads many times slower, and say what helps."""

import os
import time

import torch

EVERY = 10.0  # seconds between two looks
SHARE = 0.75  # of the time of its threads that a run gets on a quiet machine, at least
LOAD = 1.25  # runnable threads per core from which a machine is crowded


class Crowding:
    """Compares the CPU time of this process with the wall time of its threads, and the load with the cores.

    torch's threads spin while they wait for each other. If one of them has lost its core to another program, the others
    burn theirs until it is back: a run can become a hundred times slower, and CPU time alone looks busy.
    """

    def __init__(self) -> None:
        self._reported = torch.get_num_threads() == 1  # a single thread never waits
        self._start()

    def _start(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def notice(self) -> str | None:
        """The notice, once, if the time since the last look shows crowding. Called after every step."""
        wall = time.perf_counter() - self._wall
        if self._reported or wall < EVERY:
            return None
        threads, cores, load = torch.get_num_threads(), _cores(), _load()
        share = (time.process_time() - self._cpu) / (wall * threads)
        self._start()
        if load is None or not crowded(share, load, cores):
            return None
        self._reported = True
        return (
            f"slow: other programs use the cores (load {load:.1f} on {cores} cores; the {threads} threads of this run "
            f"get {share:.0%} of their time), and torch's threads spin while they wait for each other; "
            "set OMP_NUM_THREADS=1 or OMP_WAIT_POLICY=passive, or stop the other programs"
        )


def crowded(share: float, load: float, cores: int) -> bool:
    """Whether threads that get ``share`` of their time lack it because of other programs.

    Both are needed: threads of small layers sleep on a quiet machine too, and a high load may be all of this run.
    """
    return share < SHARE and load > LOAD * cores


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS, Windows
        return os.cpu_count() or 1


def _load() -> float | None:
    """The runnable threads of the machine, averaged over the last minute; None on Windows."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return None
