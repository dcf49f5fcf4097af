"""torch.func's transforms, alone and nested, and forward mode, against the plain formula.

tests/ops/backends/test_choice.py runs these once more without the native library.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, stack_module_state, vjp, vmap

from tests.support.autograd_cases import Torch, assert_same, each_sample, layered_samples, model, scalar, some_samples
from tests.support.reference import assert_close, normalized
from tests.support.samples import BY_NAME, Sample
from wnfused.functional import weight_norm

pytestmark = pytest.mark.usefixtures("_one_thread")


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
