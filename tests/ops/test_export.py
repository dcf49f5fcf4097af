"""Networks and functions under torch.export and torch.fx's tracing: one operator for each layer."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from tests.support.compile_cases import assert_equal_results, network, results
from wnfused.functional import wn_linear

pytestmark = pytest.mark.usefixtures("_one_thread", "_compiled_afresh")


@pytest.mark.parametrize("strict", [None, True])
def test_export(one_backend: None, strict: bool | None) -> None:
    """Default and strict export; the program holds the parameters and one operator for each layer, for any batch."""
    model, x = network().eval(), torch.randn(4, 2, 4, 4)
    options = {} if strict is None else {"strict": strict}
    program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("batch", min=2)},), **options)
    assert {name for name, _ in program.named_parameters()} == {name for name, _ in model.named_parameters()}
    calls = [str(n.target) for n in program.graph.nodes if "wnfused" in str(n.target)]
    assert sorted(calls) == ["wnfused.convolution.default"] * 3 + ["wnfused.linear.default"] * 2
    for batch in (4, 7):
        x = torch.randn(batch, 2, 4, 4)
        assert torch.equal(program.module()(x), model(x))


def test_export_for_training(one_backend: None) -> None:
    model, x = network(), torch.randn(4, 2, 4, 4)
    exported = torch.export.export(model, (x,)).module()
    own = results(exported, x, list(exported.parameters()))
    assert len(own) == 2 + len(list(model.parameters()))
    names = [name for name, _ in exported.named_parameters()]
    assert_equal_results(own, results(model, x, [model.get_parameter(name) for name in names]))


def test_exported_program_is_saved_and_loaded(one_backend: None, tmp_path: Any) -> None:
    model, x = network().eval(), torch.randn(4, 2, 4, 4)
    torch.export.save(torch.export.export(model, (x,)), tmp_path / "model.pt2")
    assert torch.equal(torch.export.load(tmp_path / "model.pt2").module()(x), model(x))


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_make_fx(backend: str, mode: str) -> None:
    x, v, g, b = torch.randn(3, 4), torch.randn(5, 4), torch.rand(5, 1), torch.randn(5)
    graph = make_fx(lambda *t: wn_linear(*t, activation="relu").sum(0), tracing_mode=mode)(x, v, g, b)
    assert [n.target for n in graph.graph.nodes].count(torch.ops.wnfused.linear.default) == 1
    w = torch.randn(5, 4)
    assert torch.equal(graph(x, w, g, b), wn_linear(x, w, g, b, activation="relu").sum(0))


def test_make_fx_of_the_gradient(backend: str) -> None:
    """The backward is one operator in the graph, and asks for what is needed only."""
    x, v, g = torch.randn(3, 4), torch.randn(5, 4), torch.rand(5, 1)

    def dg(x: Tensor, v: Tensor, g: Tensor) -> Tensor:
        g = g.detach().requires_grad_()
        return torch.autograd.grad(wn_linear(x, v, g).square().sum(), g)[0]

    graph = make_fx(dg)(x, v, g)
    (node,) = [n for n in graph.graph.nodes if n.target == torch.ops.wnfused.linear_backward.default]
    assert list(node.args[-1]) == [False, False, True, False]
    assert torch.equal(graph(x, v, g), dg(x, v, g))


def test_symbolic_trace(one_backend: None) -> None:
    """torch.fx sees one call for each layer's function: argument checks need real tensors."""
    model, x = network(), torch.randn(4, 2, 4, 4)
    traced = torch.fx.symbolic_trace(model, concrete_args=None)
    assert torch.equal(traced(x), model(x))
