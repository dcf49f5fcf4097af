"""Shared by all tests: seeds, NaN in new memory, threads, and the backends of the operators."""

import os

# Some virtual machines advertise AMX without having it, and oneDNN's bf16 matmul crashes. Must be set before torch
# loads.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRITON_INTERPRET", "1")  # read when the kernels are imported; `make test-gpu` sets it to 0
# Threads that spin between tiny parallel loops make the suite ten times slower when anything else uses the cores.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager

import hypothesis
import pytest
import torch

import wnfused
from tests.support import reference
from tests.support.chosen_backends import BACKENDS
from wnfused.ops.backends import native

# Float32 products: all digits, or with WNFUSED_TEST_TF32=1 the 11 of tf32, which torch allows convolutions by default.
TF32 = os.environ.get("WNFUSED_TEST_TF32", "0") == "1"
torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = TF32
if TF32:
    reference.TOLERANCE[torch.float32] = reference.TF32_TOLERANCE

# Several processes share the cores (make test); two threads each still cover the parallel code.
if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(2)

hypothesis.settings.register_profile("wnfused", deadline=None, max_examples=60, derandomize=True)
hypothesis.settings.load_profile("wnfused")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _poisoned() -> Iterator[None]:
    """Fill ``torch.empty`` with NaN, so that results that depend on uninitialized memory fail."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(before)


@pytest.fixture
def _one_thread() -> Iterator[None]:
    """Use one thread: for tiny tensors a second one only waits, ten times as long on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def _compiled_afresh() -> Iterator[None]:
    """Discard what other tests compiled, before and after the test."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def _skip_without_compiler(error: wnfused.BackendUnavailable) -> None:
    """On a machine that cannot build the native kernels, skip the tests that need them, with the reason."""
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


def _choosing(name: str) -> AbstractContextManager[object]:
    """The choice of a backend; with WNFUSED_TEST_DRIVER=interpreter, triton's calls go through the C++ launch path."""
    if name == "triton" and os.environ.get("WNFUSED_TEST_DRIVER") == "interpreter":
        from tests.support.driver.interpreted import interpreted

        return interpreted()
    return wnfused.backend(name)


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    with _choosing(request.param):
        yield request.param


@pytest.fixture
def one_backend() -> Iterator[None]:
    """One backend is enough for tests of tracing, because the traced graph does not depend on it."""
    with _choosing(os.environ.get("WNFUSED_BACKEND") or "native"):
        yield
