"""Autograd's usual manners: what is saved, changes in place, hooks, checkpoints, modes, threads.

tests/ops/backends/test_choice.py runs these once more without the native library.
"""

import itertools
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import wnfused
from tests.support.autograd_cases import Torch, assert_same, model, scalar, some_samples
from tests.support.chosen_backends import CHOSEN, OTHER
from tests.support.reference import CONVS, assert_close, normalized
from tests.support.samples import BY_NAME, Sample
from wnfused.functional import weight_norm, wn_conv1d, wn_linear
from wnfused.ops.backends import native

pytestmark = pytest.mark.usefixtures("_one_thread")


def linear_inputs(relu: bool = False) -> tuple[Tensor, ...]:
    return BY_NAME["linear-relu" if relu else "linear"].tensors()


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(backend: str, reentrant: bool) -> None:
    own, x = model(), torch.randn(2, 2, 4, dtype=torch.float64, requires_grad=True)
    leaves = [x, *own.parameters()]

    def gradients(run: Callable[[Tensor], Tensor]) -> list[Tensor]:
        for leaf in leaves:
            leaf.grad = None
        run(x).sin().sum().backward()
        return [leaf.grad for leaf in leaves]

    saved = gradients(lambda x: own(x))
    again = gradients(lambda x: checkpoint(own, x, use_reentrant=reentrant))
    assert all(torch.equal(a, b) for a, b in zip(saved, again, strict=True))
    assert_same(again, gradients(Torch(own)))


@pytest.mark.parametrize("relu", [False, True])
def test_what_is_saved(backend: str, relu: bool) -> None:
    """x, v, g and the row norms, with a ReLU the output: never a second copy of the weight."""
    x, v, g = torch.randn(2, 30), torch.randn(20, 30), torch.rand(20, 1)
    b = torch.randn(20)
    inputs = [t.requires_grad_() for t in (x, v, g, b)]
    saved: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (saved.append(t), t)[1], lambda t: t):
        y = wn_linear(*inputs, activation="relu" if relu else None)
    addresses = [t.data_ptr() for t in saved]
    assert [t.data_ptr() in addresses for t in (x, v, g, b, y)] == [True, True, True, False, relu]
    new = [t for t in saved if t.data_ptr() not in [t.data_ptr() for t in (x, v, g, y)]]
    assert [t.numel() for t in new] == [20]
    assert_close(new[0].flatten(), v.double().norm(dim=1), what="norms")


def test_saved_tensors_may_be_packed(backend: str) -> None:
    tensors = linear_inputs(relu=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach().numpy().copy(), torch.from_numpy):
        y = wn_linear(*tensors, activation="relu")
    own = torch.autograd.grad(y.sum(), tensors)
    assert_same(own, torch.autograd.grad(BY_NAME["linear-relu"].formula(*tensors).sum(), tensors))


@some_samples
def test_norms_are_not_differentiable(backend: str, sample: Sample) -> None:
    """The operators return them for the backward only; a gradient through them would be silently incomplete."""
    name = {"weight_norm": "weight_norm", "linear": "linear"}.get(sample.kind)
    if name is None:
        n = len(sample.v_shape) - 2
        g = ([1] * n, [0] * n, [1] * n, sample.kind == "transposed", [0] * n, 1)
        out = torch.ops.wnfused.convolution(*sample.tensors(), *g, sample.dim, 0.0, sample.relu)
    else:
        tail = [sample.relu] if name == "linear" else []
        out = getattr(torch.ops.wnfused, name)(*sample.tensors(), sample.dim, 0.0, *tail)
    assert [t.requires_grad for t in out] == [True, False]


@some_samples
def test_retain_graph(backend: str, sample: Sample) -> None:
    tensors = sample.tensors()
    y = scalar(sample.own)(*tensors)
    y.backward(retain_graph=True)
    once = [t.grad.clone() for t in tensors]
    y.backward(retain_graph=True)
    assert all(torch.equal(t.grad, 2 * o) for t, o in zip(tensors, once, strict=True))
    assert all(o.any() for o in once)


@some_samples
def test_second_backward_without_retained_graph(backend: str, sample: Sample) -> None:
    tensors = sample.tensors()
    y = sample.own(*tensors).sum()
    y.backward()
    with pytest.raises(RuntimeError, match="Trying to backward through the graph a second time"):
        y.backward()


@pytest.mark.parametrize("changed", ["x", "v", "g", "y"])
@pytest.mark.parametrize("name", ["linear-relu", "conv1d-relu-last", "transposed2d-relu-eps"])
def test_saved_tensor_changed_in_place(backend: str, name: str, changed: str) -> None:
    sample = BY_NAME[name]
    tensors = sample.tensors()
    y = sample.own(*tensors)
    with torch.no_grad():
        {"x": tensors[0], "v": tensors[1], "g": tensors[2], "y": y}[changed].add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_weight_norm_input_changed_in_place(backend: str) -> None:
    for place in range(2):
        tensors = BY_NAME["weight_norm-0"].tensors()
        y = weight_norm(*tensors)
        with torch.no_grad():
            tensors[place].add_(1.0)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


def test_what_is_not_saved_may_change_in_place(backend: str) -> None:
    """The bias, and the output where no ReLU needs it: also with a recorded operation."""
    tensors = linear_inputs()
    wanted = torch.autograd.grad(BY_NAME["linear"].formula(*tensors).mul(3.0).sum(), tensors)
    y = wn_linear(*tensors)
    with torch.no_grad():
        tensors[3].add_(1.0)
    y.mul_(3.0)
    assert_same(torch.autograd.grad(y.sum(), tensors), wanted)


def node_name(kind: str) -> str:
    """C++ nodes carry the operation's name; in a process without the native library one Python node serves all."""
    if not native.is_loaded():
        return "_DifferentiableBackward"
    return {"weight_norm": "WeightNormBackward", "linear": "WNLinearBackward"}.get(kind, "WNConvolutionBackward")


@some_samples
def test_hooks_on_the_node(backend: str, sample: Sample) -> None:
    tensors = sample.tensors()
    y = sample.own(*tensors)
    node = y.grad_fn
    assert node is not None
    assert node.name() == node_name(sample.kind)
    seen: dict[str, tuple[Tensor, ...]] = {}
    node.register_prehook(lambda incoming: seen.setdefault("before", incoming) and None)
    node.register_hook(lambda outgoing, incoming: seen.setdefault("after", outgoing) and None)
    dy = torch.randn_like(y)
    gradients = torch.autograd.grad(y, tensors, dy)
    assert torch.equal(seen["before"][0], dy)
    outgoing = [t for t in seen["after"] if t is not None]
    assert all(torch.equal(a, b) for a, b in zip(outgoing, gradients, strict=True))


def test_hooks_on_tensors_and_parameters(backend: str) -> None:
    tensors = linear_inputs()
    wanted = torch.autograd.grad(BY_NAME["linear"].formula(*tensors).sum(), tensors)
    tensors[1].register_hook(lambda dv: 2 * dv)
    accumulated = []
    tensors[2].register_post_accumulate_grad_hook(lambda g: accumulated.append(g.grad.clone()))
    y = wn_linear(*tensors)
    y.register_hook(lambda dy: -dy)
    y.sum().backward()
    assert_same([t.grad for t in tensors], [-wanted[0], -2 * wanted[1], -wanted[2], -wanted[3]])
    assert_same(accumulated, [-wanted[2]])


def test_anomaly_mode(backend: str) -> None:
    """Names the operation whose backward gave NaN and shows its forward call; otherwise changes nothing."""
    tensors = linear_inputs()
    with warnings.catch_warnings(record=True) as caught, torch.autograd.set_detect_anomaly(True):
        warnings.simplefilter("always")
        y = wn_linear(*tensors)
        assert_same(
            torch.autograd.grad(y, tensors, torch.ones_like(y), retain_graph=True),
            torch.autograd.grad(BY_NAME["linear"].formula(*tensors), tensors, torch.ones_like(y)),
        )
        with pytest.raises(RuntimeError, match=f"Function '{node_name('linear')}' returned nan"):
            torch.autograd.grad(y, tensors, torch.full_like(y, torch.nan))
    assert any("y = wn_linear(*tensors)" in str(w.message) for w in caught)


def test_inference_mode(backend: str) -> None:
    """Same values, nothing recorded; and what it made cannot be saved for a later backward, as everywhere in torch."""
    tensors = linear_inputs()
    recorded = wn_linear(*tensors)
    with torch.inference_mode():
        y = wn_linear(*tensors)
        x = tensors[0] + 0.0
    assert torch.equal(y, recorded)
    assert y.is_inference() and not y.requires_grad
    with pytest.raises(RuntimeError, match="does not require grad"):
        y.sum().backward()
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        wn_linear(x, *tensors[1:])


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_nothing_is_recorded_without_grad_mode(backend: str, context: Callable[[], object]) -> None:
    own, x = model(), torch.randn(2, 2, 4, dtype=torch.float64, requires_grad=True)
    with context():
        y = own(x)
    assert y.grad_fn is None and not y.requires_grad
    assert torch.equal(y, own(x))


def test_threads(backend: str) -> None:
    """Forward and backward of one model in several threads at once: each its own graph, gradients summed."""
    own, inputs = model(), torch.randn(4, 2, 2, 4, dtype=torch.float64)
    wanted = torch.autograd.grad(sum(Torch(own)(x).sin().sum() for x in inputs), list(own.parameters()))
    with ThreadPoolExecutor(4) as pool:
        gradients = list(
            pool.map(lambda x: torch.autograd.grad(own(x).sin().sum(), list(own.parameters())), inputs, timeout=60)
        )
    assert_same([sum(parts) for parts in zip(*gradients, strict=True)], wanted)


def test_backend_may_change_between_forward_and_backward() -> None:
    """Also between the first and the second backward: nothing saved belongs to one backend."""
    names = ["torch"] if CHOSEN == "torch" else ["native", OTHER, "native"]
    for first, second in itertools.pairwise([*names, *names]):
        tensors = BY_NAME["conv1d"].tensors()
        with wnfused.backend(first):
            y = wn_conv1d(*tensors, **BY_NAME["conv1d"].geometry)
        with wnfused.backend(second):
            gradients = torch.autograd.grad(y.sin().sum(), tensors, create_graph=True)
        with wnfused.backend(first):
            again = torch.autograd.grad(sum(d.sin().sum() for d in gradients), tensors)
        x, v, g, b = tensors
        wanted_y = CONVS[1](x, normalized(v, g, 0), b, **BY_NAME["conv1d"].geometry)
        wanted = torch.autograd.grad(wanted_y.sin().sum(), tensors, create_graph=True)
        assert_same(gradients, wanted)
        assert_same(again, torch.autograd.grad(sum(d.sin().sum() for d in wanted), tensors))
