"""A process in which Triton kernels are compiled: the one that runs the tests has them in triton's interpreter."""

import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch


def _start() -> None:
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)  # fills fresh memory with NaN


@contextmanager
def compiling() -> Iterator[Callable[..., Any]]:
    """A function that calls a function of a module there, with arguments that can be pickled."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _start) as pool:

        def call(function: Callable[..., Any], *arguments: Any) -> Any:
            with mock.patch.dict(os.environ, {"TRITON_INTERPRET": "0"}):  # what the process starts with
                return pool.submit(function, *arguments).result()

        yield call
