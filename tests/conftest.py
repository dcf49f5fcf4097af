"""Shared by all tests: seeds, NaN in fresh memory, threads, and the two ways the operators can be reached."""

import os

# Some virtual machines advertise AMX without having it, and oneDNN's bf16 matmul dies there; read before torch starts.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRITON_INTERPRET", "1")  # read when the kernels are imported; `make test-gpu` sets it to 0
# Threads that spin between tiny parallel loops make the suite ten times slower when anything else uses the cores.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from collections.abc import Generator, Iterator

import hypothesis
import pytest
import torch

import wnfused
from tests.support.chosen_backends import BACKENDS
from wnfused.ops.backends import native

# Several processes share the cores (make test); two threads each still run what is parallel in parallel.
if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(2)

hypothesis.settings.register_profile("wnfused", deadline=None, max_examples=60, derandomize=True)
hypothesis.settings.load_profile("wnfused")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _poisoned() -> Iterator[None]:
    """``torch.empty`` is filled with NaN, so a result that depends on memory nobody wrote shows itself."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(before)


@pytest.fixture
def _one_thread() -> Iterator[None]:
    """For tiny tensors a second thread only waits, and on a busy machine it waits for ten times as long."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def _compiled_afresh() -> Iterator[None]:
    """Nothing compiled by another test, and nothing left to the next."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def _skip_without_compiler(error: wnfused.BackendUnavailable) -> None:
    """On a machine that cannot build the native kernels, what needs them is skipped with the reason, not failed."""
    if native.why_not(torch.device("cpu")) is not None:
        pytest.skip(str(error))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    try:
        return (yield)
    except wnfused.BackendUnavailable as error:
        _skip_without_compiler(error)
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    try:
        return (yield)
    except wnfused.BackendUnavailable as error:
        _skip_without_compiler(error)
        raise


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    with wnfused.backend(request.param):
        yield request.param


@pytest.fixture
def one_backend() -> Iterator[None]:
    """What is traced does not depend on the backend: one of them is enough where tracing takes all the time."""
    with wnfused.backend(os.environ.get("WNFUSED_BACKEND") or "native"):
        yield
