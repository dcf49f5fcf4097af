"""Shared by the tests of compiled Triton kernels."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support import tensor_cores
from tests.support.ptx.worker import compiling

tensor_cores.install()


@pytest.fixture(scope="session")
def compiled() -> Iterator[Callable[..., Any]]:
    """Calls a function in a process where Triton kernels are compiled for sm_80."""
    with compiling() as call:
        yield call
