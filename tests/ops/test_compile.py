"""Functions, layers and networks under torch.compile: one graph, equal results and gradients."""

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.func import grad, hessian, jvp, vmap
from torch.utils.checkpoint import checkpoint

from tests.support.compile_cases import assert_equal_results, network, results, some_samples
from tests.support.reference import assert_close
from tests.support.samples import BY_NAME, Sample
from wnfused import WNConv1d, WNConv2d, WNConvTranspose2d, WNLinear
from wnfused.functional import wn_linear

pytestmark = pytest.mark.usefixtures("_one_thread", "_compiled_afresh")


@pytest.mark.parametrize(("dynamic", "recompiled"), [(None, [1, 0]), (True, [0, 0])])
def test_compiled_network(one_backend: None, dynamic: bool | None, recompiled: list[int]) -> None:
    """One graph, whatever the batch; with dynamic shapes one for all of them."""
    model = network()
    parameters = list(model.parameters())
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, fullgraph=True, backend=counter, dynamic=dynamic)
    compilations = []
    for batch in (5, 7, 3):
        x = torch.randn(batch, 2, 4, 4)
        assert_equal_results(results(compiled, x, parameters), results(model, x, parameters))
        compilations.append(counter.frame_count)
    assert [after - before for before, after in itertools.pairwise(compilations)] == recompiled


@some_samples
def test_compiled_functions(one_backend: None, sample: Sample) -> None:
    tensors = sample.tensors()
    compiled = torch.compile(sample.own, fullgraph=True, backend="aot_eager")
    own, wanted = compiled(*tensors), sample.formula(*tensors)
    assert_close(own, wanted)
    for a, w in zip(*(torch.autograd.grad(y.sin().sum(), tensors) for y in (own, wanted)), strict=True):
        assert_close(a, w, terms=1.0)


def test_compiled_weight(one_backend: None) -> None:
    layer = WNConv1d(3, 4, 2)
    compiled = torch.compile(lambda: layer.weight * 2, fullgraph=True, backend="aot_eager")
    assert_close(compiled(), layer.weight.double() * 2)


def test_compiled_training_step(one_backend: None) -> None:
    """Nothing is remembered of the weights: each step sees what the optimizer wrote."""
    model = network()
    twin = copy.deepcopy(model)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for run, owner in ((compiled, model), (twin, twin)):
        torch.manual_seed(1)
        optimizer = torch.optim.SGD(owner.parameters(), lr=0.1, momentum=0.9)
        for _ in range(3):
            optimizer.zero_grad()
            run(torch.randn(4, 2, 4, 4)).square().sum().backward()
            optimizer.step()
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        assert_close(p, q)


COMPILED_TRANSFORMS: dict[str, Callable[[Callable[..., Tensor]], Callable[..., Any]]] = {
    "per-sample gradients": lambda f: vmap(grad(f, (1, 2, 3)), (0, None, None, None)),
    "hessian": lambda f: hessian(f, (1, 2)),
    "jvp": lambda f: lambda *t: jvp(f, t, t),
    "checkpoint": lambda f: lambda *t: checkpoint(f, *t, use_reentrant=False),
}


@pytest.mark.parametrize("name", COMPILED_TRANSFORMS)
def test_compiled_transforms(one_backend: None, name: str) -> None:
    """torch.func inside the compiled function, in one graph, equals the same of the formula."""
    sample = BY_NAME["linear-relu"]
    tensors = sample.tensors()

    def of(function: Callable[..., Tensor]) -> Callable[..., Any]:
        return COMPILED_TRANSFORMS[name](lambda *t: function(*t).sin().sum())

    own = torch.compile(of(sample.own), fullgraph=True, backend="aot_eager")(*tensors)
    own, wanted = (torch.utils._pytree.tree_leaves(t) for t in (own, of(sample.formula)(*tensors)))
    assert len(own) == len(wanted)
    for a, w in zip(own, wanted, strict=True):
        assert_close(a, w, terms=1.0)


def test_wrong_arguments_are_still_named(one_backend: None) -> None:
    compiled = torch.compile(wn_linear, backend="aot_eager")
    with pytest.raises(ValueError, match="wn_linear: x: expected last dimension 4"):
        compiled(torch.randn(2, 5), torch.randn(3, 4), torch.randn(3, 1))


class Turned(nn.Module):
    """Linear layers see [batch, time, channels], the convolution [batch, channels, time], and nobody copies."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.convolution, self.last = WNLinear(4, 4), WNConv1d(4, 6, 3, padding=1), WNLinear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.convolution(self.first(x).transpose(1, 2)).transpose(1, 2))


INDUCTOR = {  # only our operators and views: inductor has nothing to compile, and checks every result's strides
    "network": (network, (4, 2, 4, 4)),
    "turned": (Turned, (2, 5, 4)),
    "channels last after contiguous": (
        lambda: nn.Sequential(WNConv2d(3, 4, 2), WNConv2d(4, 4, 2).to(memory_format=torch.channels_last)),
        (2, 3, 5, 5),
    ),
    "channels last": (
        lambda: nn.Sequential(WNConv2d(3, 4, 2, dim=1), WNConvTranspose2d(4, 4, 2)).to(
            memory_format=torch.channels_last
        ),
        (2, 3, 5, 5),
    ),
}


@pytest.mark.parametrize("name", INDUCTOR)
def test_inductor_takes_the_layouts(backend: str, name: str) -> None:
    make, shape = INDUCTOR[name]
    model, x = make(), torch.randn(shape)
    parameters = list(model.parameters())
    compiled = torch.compile(model, fullgraph=True)
    assert_equal_results(results(compiled, x, parameters), results(model, x, parameters))


@pytest.mark.slow
def test_inductor() -> None:
    """Between operations of inductor's own, forward and backward; most of the time is its C++ compiler's."""
    layer, x = WNLinear(8, 4, activation="relu"), torch.randn(3, 8)

    def run(x: Tensor) -> Tensor:
        return layer(x.tanh()).sigmoid()

    compiled = torch.compile(run, fullgraph=True)
    parameters = list(layer.parameters())
    assert_equal_results(results(compiled, x, parameters), results(run, x, parameters))
    with torch.no_grad():
        assert_close(compiled(x), run(x).double())
