"""The operators under opcheck, torch.compile, torch.export, tracing, fake and meta tensors, and autocast."""

import copy
import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from reference import assert_close
from samples import BY_NAME, SAMPLES, Sample
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call, grad, hessian, jvp, stack_module_state, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.library import opcheck
from torch.nn.utils.parametrizations import weight_norm as torch_weight_norm
from torch.utils.checkpoint import checkpoint

import wnfused
from wnfused import WNConv1d, WNConv2d, WNConvTranspose2d, WNLinear
from wnfused.functional import wn_linear
from wnfused.ops.schema import SCHEMAS

# Enough for every operator, dim, option and rank; compiling all the samples would take minutes.
SOME = [
    BY_NAME[name]
    for name in [
        "weight_norm-middle",
        "weight_norm-all",
        "linear-relu",
        "linear-all",
        "conv1d-relu-last",
        "conv2d-groups-relu",
        "conv2d-1",
        "conv3d",
        "transposed1d",
        "transposed2d-relu-eps",
    ]
]
some_samples = pytest.mark.parametrize("sample", SOME, ids=lambda s: s.name)
each_sample = pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: s.name)
ALL_CHECKS = {"test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"}


@pytest.fixture(autouse=True)
def _compiled_afresh() -> Iterator[None]:
    """Nothing compiled by another test; one thread, because with tensors this small a second one only waits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.compiler.reset()
    yield
    torch.compiler.reset()
    torch.set_num_threads(threads)


@pytest.fixture
def one_backend() -> Iterator[None]:
    """What is traced does not depend on the backend: one of them is enough where tracing takes all the time."""
    with wnfused.backend(os.environ.get("WNFUSED_BACKEND") or "native"):
        yield


# --- opcheck ---------------------------------------------------------------------------------------------------------


def operator_arguments(sample: Sample, dtype: torch.dtype = torch.float32) -> tuple[str, list[Any]]:
    """The operator behind a sample's public function, and what it is called with."""
    tensors: list[Any] = [t.detach().to(dtype).requires_grad_() for t in sample.tensors()]
    if sample.kind == "weight_norm":
        return "weight_norm", [*tensors, sample.dim, sample.eps]
    tensors += [None] * (4 - len(tensors))
    if sample.kind == "linear":
        return "linear", [*tensors, sample.dim, sample.eps, sample.relu]
    n = len(sample.v_shape) - 2

    def per_dimension(name: str, default: int) -> list[int]:
        value = sample.geometry.get(name, default)
        return [value] * n if isinstance(value, int) else list(value)

    return "convolution", [
        *tensors,
        per_dimension("stride", 1),
        per_dimension("padding", 0),
        per_dimension("dilation", 1),
        sample.kind == "transposed",
        per_dimension("output_padding", 0),
        sample.geometry.get("groups", 1),
        sample.dim,
        sample.eps,
        sample.relu,
    ]


def backward_arguments(name: str, arguments: list[Any], mask: list[bool]) -> list[Any]:
    y, norms = getattr(torch.ops.wnfused, name)(*arguments)
    dy = torch.randn_like(y)
    if name == "weight_norm":
        v, g, *options = arguments
        return [dy, v, g, norms, *options, mask]
    x, v, g, bias, *options, relu = arguments
    if name == "linear":
        options.append(bias is not None)
    return [dy, x, v, g, norms, y.detach() if relu else None, *options, mask]


def check(name: str, arguments: list[Any], overload: str = "default") -> None:
    results = opcheck(getattr(getattr(torch.ops.wnfused, name), overload), tuple(arguments))
    assert set(results) == ALL_CHECKS
    assert set(results.values()) == {"SUCCESS"}


def test_six_operators() -> None:
    """These are all there are: the tests below go through every one."""
    assert set(SCHEMAS) == {
        f"{name}{end}" for name in ("weight_norm", "linear", "convolution") for end in ("", "_backward")
    }


@some_samples
def test_opcheck_forward(backend: str, sample: Sample) -> None:
    check(*operator_arguments(sample))


FEW = [BY_NAME[name] for name in ("weight_norm-middle", "linear-relu", "conv2d", "transposed1d-1-relu")]
few_samples = pytest.mark.parametrize("sample", FEW, ids=lambda s: s.name)


@few_samples
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_opcheck_other_dtypes(backend: str, sample: Sample, dtype: torch.dtype) -> None:
    name, arguments = operator_arguments(sample, dtype)
    with torch.no_grad():
        check(name, [t.detach() if isinstance(t, Tensor) else t for t in arguments])


@few_samples
def test_opcheck_backward(one_backend: None, sample: Sample) -> None:
    """With inputs that require a gradient: double backward."""
    name, arguments = operator_arguments(sample)
    check(f"{name}_backward", backward_arguments(name, arguments, [True] * (2 if name == "weight_norm" else 4)))


@few_samples
def test_opcheck_every_mask(backend: str, sample: Sample) -> None:
    name, arguments = operator_arguments(sample)
    arguments = [t.detach() if isinstance(t, Tensor) else t for t in arguments]
    for mask in itertools.product([False, True], repeat=2 if name == "weight_norm" else 4):
        outcome = opcheck(
            getattr(torch.ops.wnfused, f"{name}_backward").default,
            tuple(backward_arguments(name, arguments, list(mask))),
            test_utils=("test_schema", "test_faketensor"),
        )
        assert set(outcome.values()) == {"SUCCESS"}


def test_opcheck_python_overload() -> None:
    """The overload that always runs Python's choice of backend is an operator like the other."""
    name, arguments = operator_arguments(BY_NAME["linear-relu"])
    with wnfused.backend("torch"):
        check(name, arguments, "python")
        check(f"{name}_backward", backward_arguments(name, arguments, [True] * 4), "python")


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda t: t,
    "channels last": lambda t: t.movedim(1, -1).contiguous().movedim(-1, 1),
    "first two swapped": lambda t: t.transpose(0, 1).contiguous().transpose(0, 1),
    "every second element": lambda t: torch.stack([t, t - 9], dim=-1)[..., 0],
    "expanded": lambda t: t[:1].expand_as(t),
}


@pytest.mark.parametrize("v_layout", LAYOUTS)
@pytest.mark.parametrize("x_layout", LAYOUTS)
@pytest.mark.parametrize(
    "sample", ["linear-more-rows", "linear-1", "conv1d", "conv2d", "conv2d-1", "transposed1d", "conv3d"]
)
def test_fake_implementation_knows_the_strides(backend: str, sample: str, x_layout: str, v_layout: str) -> None:
    """The compiler lays out memory by what the fake implementation says, and stops where the kernels differ."""
    name, arguments = operator_arguments(BY_NAME[sample])
    arguments = [t.detach() if isinstance(t, Tensor) else t for t in arguments]
    arguments[0], arguments[1] = LAYOUTS[x_layout](arguments[0]), LAYOUTS[v_layout](arguments[1])
    opcheck(getattr(torch.ops.wnfused, name).default, tuple(arguments), test_utils="test_faketensor")
    backward = backward_arguments(name, arguments, [True] * 4)
    for dy in (backward[0], torch.ones(()).expand_as(backward[0])):
        backward[0] = dy
        outcome = opcheck(
            getattr(torch.ops.wnfused, f"{name}_backward").default, tuple(backward), test_utils="test_faketensor"
        )
        assert outcome == {"test_faketensor": "SUCCESS"}


# --- torch.compile ---------------------------------------------------------------------------------------------------


def network(activation: str | None = "relu") -> nn.Sequential:
    return nn.Sequential(
        WNConv2d(2, 4, 3, padding=1, activation=activation),
        WNConvTranspose2d(4, 3, 2, stride=2, groups=1),
        WNConv2d(3, 2, 2, stride=2, padding_mode="reflect", padding=1, bias=False, dim=None),
        nn.Flatten(),
        WNLinear(50, 5, activation=activation, eps=1e-3),
        WNLinear(5, 3, dim=1),
    )


def results(run: Callable[[Tensor], Tensor], x: Tensor, parameters: list[Tensor]) -> list[Tensor]:
    """The output, the input's gradient and the parameters'."""
    x = x.detach().requires_grad_()
    y = run(x)
    return [y, *torch.autograd.grad(y.float().sin().sum(), [x, *parameters])]


def assert_equal_results(own: list[Tensor], wanted: list[Tensor]) -> None:
    for a, w in zip(own, wanted, strict=True):
        assert a.dtype == w.dtype
        assert_close(a, w)


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


# --- torch.export and tracing ----------------------------------------------------------------------------------------


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


@each_sample
def test_fake_tensors(backend: str, sample: Sample) -> None:
    """Shapes, strides and dtypes of results and gradients, without data."""
    real = sample.tensors()
    y = sample.own(*real)
    gradients = torch.autograd.grad(y.sum(), real)
    with FakeTensorMode() as mode:
        fake = [mode.from_tensor(t) for t in real]
        fake_y = sample.own(*fake)
        fake_gradients = torch.autograd.grad(fake_y.sum(), fake)
    for a, b in zip([fake_y, *fake_gradients], [y, *gradients], strict=True):
        assert type(a).__name__ == "FakeTensor"
        assert (a.shape, a.stride(), a.dtype) == (b.shape, b.stride(), b.dtype)


@each_sample
def test_meta_tensors(one_backend: None, sample: Sample) -> None:
    real = sample.tensors()
    y = sample.own(*real)
    gradients = torch.autograd.grad(y.sum(), real)
    meta = [t.detach().to("meta").requires_grad_() for t in real]
    meta_y = sample.own(*meta)
    for a, b in zip([meta_y, *torch.autograd.grad(meta_y.sum(), meta)], [y, *gradients], strict=True):
        assert a.device.type == "meta"
        assert (a.shape, a.stride(), a.dtype) == (b.shape, b.stride(), b.dtype)


def test_meta_layers() -> None:
    with torch.device("meta"):
        model = network()
        y = model(torch.randn(4, 2, 4, 4))
    assert y.device.type == "meta"
    assert y.shape == (4, 3)
    assert all(p.device.type == "meta" for p in model.parameters())


# --- Autocast --------------------------------------------------------------------------------------------------------


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
