"""warm_up: all calls of a step are recorded, and the model is left unchanged; first calls during a capture fail."""

import copy
from collections.abc import Iterator

import pytest
import torch
from torch import nn

import wnfused
from tests.support.driver.interpreted import Interpreter, interpreted
from wnfused.kernels.triton import table, tune
from wnfused.ops.backends import native
from wnfused.ops.backends import triton as triton_backend

needs_library = pytest.mark.skipif(native.load() is not None, reason=f"no native library: {native.load()}")


@pytest.fixture
def driver() -> Iterator[Interpreter]:
    with interpreted() as interpreter:
        yield interpreter


def model() -> nn.Sequential:
    return nn.Sequential(
        wnfused.WNLinear(6, 8, activation="relu"), nn.BatchNorm1d(8), nn.Dropout(), wnfused.WNLinear(8, 3)
    )


@needs_library
def test_a_step_after_it_asks_python_nothing(driver: Interpreter) -> None:
    network, x = model(), torch.randn(5, 6)
    wnfused.warm_up(network, x)
    asked = table.misses()
    network(x).backward(torch.randn(5, 3))
    assert table.misses() == asked


def test_the_model_is_unchanged() -> None:
    network, x = model(), torch.randn(5, 6)
    before, state = copy.deepcopy(network.state_dict()), torch.get_rng_state()
    network[0].weight_v.grad = torch.ones(8, 6)
    wnfused.warm_up(network, {"input": x})
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(network[0].weight_v.grad, torch.ones(8, 6)) and network[3].weight_v.grad is None


def test_bad_input() -> None:
    with pytest.raises(TypeError, match=r"warm_up: model: expected a torch\.nn\.Module"):
        wnfused.warm_up(print, torch.randn(5, 6))


@needs_library
def test_a_first_call_during_capture_names_warm_up(driver: Interpreter, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = wnfused.WNLinear(6, 5), torch.randn(4, 6)
    layer(x)
    monkeypatch.setattr(triton_backend, "_is_capturing", lambda t: True)
    layer(x)  # known
    with pytest.raises(
        RuntimeError, match=r"linear: first call with these shapes .* wnfused\.warm_up\(model, example\)"
    ):
        layer(torch.randn(3, 6))


@needs_library
def test_changes_outside_the_key_record_again(driver: Interpreter) -> None:
    """Precision flags, the choice of backend, known norms, retuned plans."""
    layer, x = wnfused.WNLinear(6, 5), torch.randn(4, 6)
    layer(x)

    def misses() -> int:
        before = table.misses()
        layer(x)
        return table.misses() - before

    assert misses() == 0
    flags = torch.backends.cuda.matmul
    before = flags.fp32_precision
    try:
        flags.fp32_precision = "tf32" if before != "tf32" else "ieee"
        assert misses() == 1
    finally:
        flags.fp32_precision = before
    assert misses() == 0
    tune.forget()
    assert misses() == 1
    launches = len(driver.launched)
    with wnfused.backend("torch"):
        table.activate(None)  # as launching.py does on a GPU
        layer(x)
    assert len(driver.launched) == launches


@needs_library
def test_a_child_process_starts_without_recipes(driver: Interpreter) -> None:
    import os

    wnfused.WNLinear(6, 5)(torch.randn(4, 6))
    assert table.size() > 0
    pid = os.fork()
    if pid == 0:
        os._exit(0 if table.size() == 0 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert table.size() > 0


@needs_library
def test_threads(driver: Interpreter) -> None:
    from concurrent.futures import ThreadPoolExecutor

    layer, x = wnfused.WNLinear(6, 5), torch.randn(4, 6)
    wanted = layer(x).detach()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda n: layer(torch.cat([x] * n)).detach(), [1, 2, 1, 3, 2, 1, 3, 1]))
    for y in found:
        torch.testing.assert_close(y[:4], wanted, rtol=1e-5, atol=1e-5)
