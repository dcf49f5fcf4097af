"""Autocast to 16 bits: dtypes and errors of results and gradients, beside torch's weight norm, also compiled."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn.utils.parametrizations import weight_norm as torch_weight_norm

import wnfused
from tests.support.compile_cases import network
from tests.support.reference import assert_close
from wnfused import WNLinear

pytestmark = pytest.mark.usefixtures("_one_thread", "_compiled_afresh")


def torch_network() -> nn.Sequential:
    """Plain torch under its own weight norm, no wnfused; ``convert`` makes the same network of it."""
    layers: list[nn.Module] = [
        nn.Conv1d(8, 16, 3, padding=1),
        nn.ConvTranspose1d(16, 12, 4, stride=2),
        nn.Conv1d(12, 12, 3, groups=4),
        nn.Flatten(),
        nn.Linear(12 * 16, 24),
    ]
    return nn.Sequential(*(layer if isinstance(layer, nn.Flatten) else torch_weight_norm(layer) for layer in layers))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast(backend: str, dtype: torch.dtype, compiled: bool) -> None:
    """16-bit output, float32 gradients of float32 weights; no further from float64 than torch's weight norm."""
    theirs = torch_network()
    ours = copy.deepcopy(theirs)
    wnfused.convert(ours)
    exact = copy.deepcopy(theirs).double()
    run = torch.compile(ours, fullgraph=True, backend="aot_eager") if compiled else ours
    x, dy = torch.randn(4, 8, 8), torch.randn(4, 24)

    def with_gradients(model: nn.Module, run: Callable[[Tensor], Tensor], autocast: bool) -> list[Tensor]:
        wide = dy.double() if not autocast else dy
        with torch.autocast("cpu", dtype, enabled=autocast):
            y = run(x if autocast else x.double())
        assert y.dtype == (dtype if autocast else torch.float64)
        parameters = list(model.parameters())
        gradients = torch.autograd.grad(y, parameters, wide.to(y.dtype))
        assert all(d.dtype == p.dtype for d, p in zip(gradients, parameters, strict=True))
        return [y, *gradients]

    own, other = with_gradients(ours, run, True), with_gradients(theirs, theirs, True)
    wanted = with_gradients(exact, exact, False)
    names = ["y", *(name for name, _ in ours.named_parameters())]
    for name, a, b, w in zip(names, own, other, wanted, strict=True):
        scale = w.abs().max()
        error, their_error = ((t.double() - w).abs().max() / scale for t in (a, b))
        assert error <= max(2 * their_error, torch.finfo(dtype).eps), f"{name}: {error:.1e}, torch {their_error:.1e}"
        assert error < 0.05


def test_autocast_and_double_backward(backend: str) -> None:
    """The second derivative of float32 parameters through 16-bit activations is float32, and near the float32 one."""
    layer, x = WNLinear(16, 12), torch.randn(8, 16)
    parameters = list(layer.parameters())
    results = []
    for enabled in (True, False):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            y = layer(x)
        first = torch.autograd.grad(y.float().square().sum(), parameters, create_graph=True)
        results.append(torch.autograd.grad(sum(d.square().sum() for d in first), parameters))
    for own, wanted in zip(*results, strict=True):
        assert own.dtype == torch.float32
        assert (own - wanted).abs().max() < 0.05 * wanted.abs().max()


def test_autocast_of_an_ensemble(backend: str) -> None:
    members = [network() for _ in range(3)]
    parameters, buffers = stack_module_state(members)
    x = torch.randn(4, 2, 4, 4)
    with torch.autocast("cpu", torch.bfloat16):
        own = vmap(lambda p, b: functional_call(members[0], (p, b), (x,)))(parameters, buffers)
        alone = torch.stack([m(x) for m in members])
    assert own.dtype == torch.bfloat16
    assert_close(own, alone)
    own.float().sum().backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in parameters.values())


@pytest.mark.parametrize("rows", [1, 3, 30])
def test_autocast_of_16_bit_weights_with_a_float32_bias(backend: str, rows: int) -> None:
    layer, x = WNLinear(16, 12), torch.randn(rows, 16)
    wanted = layer(x)
    layer.bfloat16()
    layer.bias.data = layer.bias.data.float()
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
    y.float().sum().backward()
    assert y.dtype == torch.bfloat16 and layer.bias.grad.dtype == torch.float32
    assert (y - wanted).abs().max() < 0.05 * wanted.abs().max()
