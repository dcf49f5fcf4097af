"""Derivatives of every order and kind, against numbers and against the plain formula, and autograd's usual manners.

The same tests run with Python's autograd in place of the C++ one: tests/test_backends.py starts them in a process that
never loads the native library.
"""

import itertools
import os
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from reference import CONVS, assert_close, normalized
from samples import BY_NAME, SAMPLES, Sample
from torch import Tensor, nn
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.autograd.gradcheck import GradcheckError
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, stack_module_state, vjp, vmap
from torch.utils.checkpoint import checkpoint

import wnfused
from wnfused import WNConv1d, WNConv2d, WNConvTranspose1d, WNLinear
from wnfused.functional import weight_norm, wn_conv1d, wn_linear

each_sample = pytest.mark.parametrize("sample", SAMPLES, ids=lambda e: e.name)
SOME = [
    "weight_norm-0",
    "weight_norm-all",
    "linear",
    "linear-relu",
    "conv1d-relu-last",
    "conv2d",
    "transposed2d-relu-eps",
]
some_samples = pytest.mark.parametrize("sample", [BY_NAME[name] for name in SOME], ids=lambda e: e.name)
layered_samples = pytest.mark.parametrize("sample", [e for e in SAMPLES if e.x_shape is not None], ids=lambda e: e.name)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """For tensors this small a second thread only waits, and on a busy machine it waits for ten times as long."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def scalar(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A loss whose gradient differs from output to output and whose second derivative is not zero."""
    return lambda *tensors: function(*tensors).sin().sum()


def assert_same(own: object, wanted: object) -> None:
    """Equal trees of tensors, up to rounding relative to each tensor's own scale."""
    if isinstance(own, Tensor):
        assert isinstance(wanted, Tensor)
        difference = (own - wanted).abs().max()
        assert own.shape == wanted.shape
        assert difference <= 1e-10 * wanted.abs().max().clamp_min(1e-3), f"{difference=}"
    else:
        assert isinstance(own, (tuple, list)) and isinstance(wanted, (tuple, list))
        for a, b in zip(own, wanted, strict=True):
            assert_same(a, b)


# --- Numerical derivatives -------------------------------------------------------------------------------------------


@each_sample
def test_first_derivatives(backend: str, sample: Sample) -> None:
    """Reverse and forward mode, each also batched over the cotangents or tangents."""
    assert gradcheck(
        sample.own,
        sample.tensors(),
        check_forward_ad=True,
        check_batched_grad=True,
        check_batched_forward_grad=True,
    )


@each_sample
def test_second_derivatives(backend: str, sample: Sample) -> None:
    """Reverse over reverse and forward over reverse; entry by entry where the matrices are small."""
    assert gradgradcheck(
        sample.own,
        sample.tensors(),
        check_fwd_over_rev=True,
        fast_mode=sample.kind not in ("weight_norm", "linear"),
    )


@pytest.mark.parametrize("dim", [0, 1])
def test_torch_own_second_derivative_is_wrong(backend: str, dim: int) -> None:
    """Why the backward operators are differentiated through a formula: torch 2.13's own fused weight norm is not."""
    v = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    g = torch.rand([(3, 1), (1, 4)][dim], dtype=torch.float64, requires_grad=True)
    assert gradgradcheck(lambda v, g: weight_norm(v, g, dim), (v, g))
    with pytest.raises(GradcheckError):
        gradgradcheck(lambda v, g: torch._weight_norm(v, g, dim), (v, g))


@some_samples
def test_third_derivatives(backend: str, sample: Sample) -> None:
    def third(function: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        tensors = sample.tensors()
        value = scalar(function)(*tensors)
        for _ in range(2):
            value = sum(d.sin().sum() for d in torch.autograd.grad(value, tensors, create_graph=True))
        return torch.autograd.grad(value, tensors)

    assert_same(third(sample.own), third(sample.formula))


@layered_samples
def test_every_choice_of_inputs_that_require_gradients(backend: str, sample: Sample) -> None:
    """First and second derivatives where x, v, g or the bias are frozen."""
    for wanted in itertools.product([False, True], repeat=len(sample.tensors())):
        if not any(wanted):
            continue
        results = []
        for function in (sample.own, sample.formula):
            tensors = [t.detach().requires_grad_(w) for t, w in zip(sample.tensors(), wanted, strict=True)]
            asked = [t for t in tensors if t.requires_grad]
            first = torch.autograd.grad(scalar(function)(*tensors), asked, create_graph=True)
            second = torch.autograd.grad(sum(d.sin().sum() for d in first), asked, allow_unused=True)
            zeros = [torch.zeros_like(t) for t in asked]
            results.append([first, [z if d is None else d for d, z in zip(second, zeros, strict=True)]])
        assert_same(*results)


# --- torch.func ------------------------------------------------------------------------------------------------------


@each_sample
def test_grad_and_vjp(backend: str, sample: Sample) -> None:
    tensors = sample.tensors()
    everything = tuple(range(len(tensors)))
    own, wanted = (grad(scalar(f), everything)(*tensors) for f in (sample.own, sample.formula))
    assert_same(own, wanted)
    y, pull = vjp(sample.own, *tensors)
    y_wanted, pull_wanted = vjp(sample.formula, *tensors)
    cotangent = torch.randn_like(y)
    assert_same([y, pull(cotangent)], [y_wanted, pull_wanted(cotangent)])


@each_sample
def test_jvp(backend: str, sample: Sample) -> None:
    """torch.func.jvp, and dual numbers by hand, which need not carry a tangent on every input."""
    tensors = tuple(t.detach() for t in sample.tensors())
    tangents = tuple(torch.randn_like(t) for t in tensors)
    wanted = jvp(sample.formula, tensors, tangents)
    assert_same(jvp(sample.own, tensors, tangents), wanted)
    for place in range(len(tensors)):
        with forward_ad.dual_level():
            inputs = list(tensors)
            inputs[place] = forward_ad.make_dual(tensors[place], tangents[place])
            own, formula = (forward_ad.unpack_dual(f(*inputs)).tangent for f in (sample.own, sample.formula))
        assert_same(own, formula)


SECOND_ORDER = {
    "hessian": hessian,
    "jacrev-jacrev": lambda f, n: jacrev(jacrev(f, n), n),
    "jacfwd-jacrev": lambda f, n: jacfwd(jacrev(f, n), n),
    "jacrev-jacfwd": lambda f, n: jacrev(jacfwd(f, n), n),
    "jacfwd-jacfwd": lambda f, n: jacfwd(jacfwd(f, n), n),
    "grad-grad": lambda f, n: grad(lambda *t: sum(d.sin().sum() for d in grad(f, n)(*t)), n),
}


@pytest.mark.parametrize("transform", SECOND_ORDER)
@each_sample
def test_nested_transforms(backend: str, sample: Sample, transform: str) -> None:
    """Norms saved at one level must not pass for constants at the next: d(1/n)/dv is in every second derivative."""
    tensors = tuple(t.detach() for t in sample.tensors())
    everything = tuple(range(len(tensors)))
    own, wanted = (SECOND_ORDER[transform](scalar(f), everything)(*tensors) for f in (sample.own, sample.formula))
    assert_same(own, wanted)


def test_comparison_of_hessians_sees_constant_norms() -> None:
    """The comparison above fails for a gradient that takes the norms for constants."""
    v, g = BY_NAME["weight_norm-0"].tensors()

    def with_constant_norms(v: Tensor, g: Tensor) -> Tensor:
        return v * (g / v.detach().norm(dim=1, keepdim=True))

    with pytest.raises(AssertionError, match="difference"):
        assert_same(hessian(scalar(with_constant_norms))(v, g), hessian(scalar(lambda v, g: normalized(v, g, 0)))(v, g))


@layered_samples
@pytest.mark.parametrize("batched", ["x", "parameters", "all", "gain", "last-dim"])
def test_vmap(backend: str, sample: Sample, batched: str) -> None:
    """Over inputs, over stacked parameters (an ensemble), over both, over one of them, over a last dimension."""
    copies = [sample.tensors(seed) for seed in range(3)]
    count = len(copies[0])
    stacked = {"x": [0], "parameters": range(1, count), "all": range(count), "gain": [2], "last-dim": range(count)}
    at = -1 if batched == "last-dim" else 0
    in_dims = tuple(at if i in stacked[batched] else None for i in range(count))
    arguments = [
        (torch.stack([c[i] for c in copies], at) if in_dims[i] is not None else copies[0][i]).detach().requires_grad_()
        for i in range(count)
    ]

    def member(k: int) -> list[Tensor]:
        return [t if d is None else t.select(d, k) for t, d in zip(arguments, in_dims, strict=True)]

    own = vmap(sample.own, in_dims)(*arguments)
    wanted = torch.stack([sample.formula(*member(k)) for k in range(3)])
    assert_same(own, wanted)
    assert_same(*(torch.autograd.grad(y.sin().sum(), arguments) for y in (own, wanted)))


@pytest.mark.parametrize("dim", [0, 1, None])
def test_vmap_of_weight_norm(backend: str, dim: int | None) -> None:
    v, g = torch.randn(5, 3, 4), torch.rand(5, *[(3, 1), (1, 4), ()][2 if dim is None else dim]) + 0.5
    own = vmap(lambda v, g: weight_norm(v, g, dim))(v, g)
    assert_close(own, torch.stack([normalized(v[i].double(), g[i].double(), dim) for i in range(5)]))


@layered_samples
def test_per_sample_gradients(backend: str, sample: Sample) -> None:
    x, *parameters = (t.detach() for t in sample.tensors())
    inputs = torch.randn(4, *x.shape, dtype=x.dtype)
    asked = tuple(range(1, 1 + len(parameters)))
    own = vmap(grad(scalar(sample.own), asked), (0, *(None for _ in parameters)))(inputs, *parameters)
    loop = [grad(scalar(sample.formula), asked)(x, *parameters) for x in inputs]
    assert_same(own, tuple(torch.stack(parts) for parts in zip(*loop, strict=True)))


@some_samples
def test_vmap_beneath_and_above_forward_mode(backend: str, sample: Sample) -> None:
    tensors = tuple(t.detach() for t in sample.tensors())
    tangents = tuple(torch.randn(3, *t.shape, dtype=t.dtype) for t in tensors)
    in_dims = tuple(0 for _ in tensors)

    def pushed(function: Callable[..., Tensor]) -> tuple[Tensor, Tensor]:
        above = vmap(lambda *t: jvp(function, tensors, t)[1])(*tangents)
        beneath = jvp(vmap(function, in_dims), tuple(torch.stack([t] * 3) for t in tensors), tangents)[1]
        return above, beneath

    own, wanted = pushed(sample.own), pushed(sample.formula)
    assert_same(own, wanted)
    assert_same(own[0], own[1])


class Torch(nn.Module):
    """What ``model()`` computes, from the same parameters by torch's own operations."""

    def __init__(self, own: nn.Sequential) -> None:
        super().__init__()
        self.own = own

    def forward(self, x: Tensor) -> Tensor:
        first, second, _, last = self.own
        y = F.conv1d(x, normalized(first.weight_v, first.weight_g, 0), first.bias, padding=1).relu()
        y = F.conv_transpose1d(y, normalized(second.weight_v, second.weight_g, 0), second.bias, stride=2)
        return F.linear(y.flatten(1), normalized(last.weight_v, last.weight_g, 0), last.bias)


def model() -> nn.Sequential:
    layers = [
        WNConv1d(2, 3, 3, padding=1, activation="relu"),
        WNConvTranspose1d(3, 2, 2, stride=2),
        nn.Flatten(),
        WNLinear(16, 3),
    ]
    return nn.Sequential(*layers).double()


def test_functional_call(backend: str) -> None:
    """Parameters handed in take the place of the layer's own, and gradients flow to them."""
    own, x = model(), torch.randn(2, 2, 4, dtype=torch.float64)
    given = {name: torch.randn_like(p) for name, p in own.named_parameters()}

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        return functional_call(own, parameters, (x,)).sin().sum()

    def wanted_loss(parameters: dict[str, Tensor]) -> Tensor:
        return functional_call(Torch(own), {f"own.{name}": p for name, p in parameters.items()}, (x,)).sin().sum()

    assert_same(loss(given), wanted_loss(given))
    assert not torch.isclose(loss(given), own(x).sin().sum())
    gradients, wanted = grad(loss)(given), grad(wanted_loss)(given)
    for name in given:
        assert_same(gradients[name], wanted[name])
    assert all(p.grad is None for p in own.parameters())


def test_ensemble(backend: str) -> None:
    """stack_module_state and vmap: each member as if it ran alone, and its own gradients."""
    members = [model() for _ in range(3)]
    parameters, buffers = stack_module_state(members)
    x = torch.randn(2, 2, 4, dtype=torch.float64)
    outputs = vmap(lambda p, b: functional_call(members[0], (p, b), (x,)))(parameters, buffers)
    alone = torch.stack([Torch(m)(x) for m in members])
    assert_same(outputs, alone)
    outputs.sin().sum().backward()
    alone.sin().sum().backward()
    for name, stacked in parameters.items():
        assert_same(stacked.grad, torch.stack([m.get_parameter(name).grad for m in members]))


# --- Autograd's usual manners ----------------------------------------------------------------------------------------


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
        return [leaf.grad for leaf in leaves]  # type: ignore[misc]

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
    once = [t.grad.clone() for t in tensors]  # type: ignore[union-attr]
    y.backward(retain_graph=True)
    assert all(torch.equal(t.grad, 2 * o) for t, o in zip(tensors, once, strict=True))  # type: ignore[arg-type]
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
    if os.environ.get("WNFUSED_BACKEND") in ("torch", "triton"):
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
    with context():  # type: ignore[attr-defined]
        y = own(x)
    assert y.grad_fn is None and not y.requires_grad
    assert torch.equal(y, own(x))


def test_parameters_that_are_not_leaves(backend: str) -> None:
    """A direction and gain computed from something else (a hypernetwork, tied weights, a mask)."""
    seed = torch.randn(6, dtype=torch.float64, requires_grad=True)
    x = torch.randn(3, 4, dtype=torch.float64)

    def loss(linear: Callable[[Tensor, Tensor, Tensor], Tensor], seed: Tensor) -> Tensor:
        v = torch.outer(seed[:3], seed[2:]).tanh()
        return linear(x, v, seed[3:, None].exp()).sin().sum()

    own = loss(wn_linear, seed)
    wanted = loss(lambda x, v, g: F.linear(x, normalized(v, g, 0)), seed)
    assert_same(torch.autograd.grad(own, seed), torch.autograd.grad(wanted, seed))
    assert gradgradcheck(lambda s: loss(wn_linear, s), seed)


def test_one_tensor_in_two_places(backend: str) -> None:
    """v is also the input: both contributions are summed."""
    v, g = torch.randn(3, 3, dtype=torch.float64, requires_grad=True), torch.rand(3, 1, dtype=torch.float64)
    own = torch.autograd.grad(wn_linear(v, v, g).sin().sum(), v)
    assert_same(own, torch.autograd.grad(F.linear(v, normalized(v, g, 0)).sin().sum(), v))


def test_gradient_penalty(backend: str) -> None:
    """WGAN-GP's use of double backward: a loss on the norm of the input's gradient reaches every parameter."""
    own, x = model(), torch.randn(2, 2, 4, dtype=torch.float64, requires_grad=True)

    def penalty(run: nn.Module) -> tuple[Tensor, ...]:
        (dx,) = torch.autograd.grad(run(x).square().sum(), x, create_graph=True)
        return torch.autograd.grad((dx.flatten(1).norm(dim=1) - 1).square().sum(), list(own.parameters()))

    assert_same(penalty(own), penalty(Torch(own)))


def test_threads(backend: str) -> None:
    """Forward and backward of one model in several threads at once: each its own graph, gradients summed."""
    own, inputs = model(), torch.randn(4, 2, 2, 4, dtype=torch.float64)
    wanted = torch.autograd.grad(sum(Torch(own)(x).sin().sum() for x in inputs), list(own.parameters()))
    with ThreadPoolExecutor(4) as pool:
        gradients = list(
            pool.map(lambda x: torch.autograd.grad(own(x).sin().sum(), list(own.parameters())), inputs, timeout=60)
        )
    assert_same([sum(parts) for parts in zip(*gradients, strict=True)], wanted)


def test_layer_weight_is_differentiable(backend: str) -> None:
    layer = WNConv2d(2, 3, 2, dtype=torch.float64)
    wanted = normalized(layer.weight_v, layer.weight_g, 0)
    leaves = [layer.weight_g, layer.weight_v]
    own = torch.autograd.grad(layer.weight.sin().sum(), leaves)
    assert_same(own, torch.autograd.grad(wanted.sin().sum(), leaves))


def test_backend_may_change_between_forward_and_backward() -> None:
    """Also between the first and the second backward: nothing saved belongs to one backend."""
    names = ["torch"] if os.environ.get("WNFUSED_BACKEND") == "torch" else ["native", "torch", "native"]
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
