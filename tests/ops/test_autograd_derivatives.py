"""First, second and third derivatives, compared with finite differences and with the plain formula.

tests/ops/backends/test_choice.py runs these tests again without the native library, with the Python autograd.
"""

import itertools
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck
from torch.autograd.gradcheck import GradcheckError

from tests.support.autograd_cases import Torch, assert_same, each_sample, layered_samples, model, scalar, some_samples
from tests.support.reference import normalized
from tests.support.samples import Sample
from wnfused import WNConv2d
from wnfused.functional import weight_norm, wn_linear

pytestmark = pytest.mark.usefixtures("_one_thread")


@each_sample
def test_first_derivatives(backend: str, sample: Sample) -> None:
    """Reverse and forward mode, both also batched over cotangents or tangents."""
    assert gradcheck(
        sample.own,
        sample.tensors(),
        check_forward_ad=True,
        check_batched_grad=True,
        check_batched_forward_grad=True,
    )


@each_sample
def test_second_derivatives(backend: str, sample: Sample) -> None:
    """Reverse over reverse and forward over reverse; entry by entry if the matrices are small."""
    assert gradgradcheck(
        sample.own,
        sample.tensors(),
        check_fwd_over_rev=True,
        fast_mode=sample.kind not in ("weight_norm", "linear"),
    )


@pytest.mark.parametrize("dim", [0, 1])
def test_torchs_own_second_derivative_is_wrong(backend: str, dim: int) -> None:
    """The reason why the backward operators are differentiated through a formula: torch 2.13 does not do so."""
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
    """First and second derivatives if x, v, g or the bias are frozen."""
    for wanted in itertools.product([False, True], repeat=len(sample.tensors())):
        if not any(wanted):
            continue
        results = []
        for function in (sample.own, sample.formula):
            tensors = [t.detach().requires_grad_(w) for t, w in zip(sample.tensors(), wanted, strict=True)]
            requested = [t for t in tensors if t.requires_grad]
            first = torch.autograd.grad(scalar(function)(*tensors), requested, create_graph=True)
            second = torch.autograd.grad(sum(d.sin().sum() for d in first), requested, allow_unused=True)
            zeros = [torch.zeros_like(t) for t in requested]
            results.append([first, [z if d is None else d for d, z in zip(second, zeros, strict=True)]])
        assert_same(*results)


def test_parameters_that_are_not_leaves(backend: str) -> None:
    """Direction and gain are computed from another tensor (a hypernetwork, tied weights, a mask)."""
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
    """Double backward as in WGAN-GP: a loss on the norm of the input's gradient reaches every parameter."""
    own, x = model(), torch.randn(2, 2, 4, dtype=torch.float64, requires_grad=True)

    def penalty(run: nn.Module) -> tuple[Tensor, ...]:
        (dx,) = torch.autograd.grad(run(x).square().sum(), x, create_graph=True)
        return torch.autograd.grad((dx.flatten(1).norm(dim=1) - 1).square().sum(), list(own.parameters()))

    assert_same(penalty(own), penalty(Torch(own)))


def test_layer_weight_is_differentiable(backend: str) -> None:
    layer = WNConv2d(2, 3, 2, dtype=torch.float64)
    wanted = normalized(layer.weight_v, layer.weight_g, 0)
    leaves = [layer.weight_g, layer.weight_v]
    own = torch.autograd.grad(layer.weight.sin().sum(), leaves)
    assert_same(own, torch.autograd.grad(wanted.sin().sum(), leaves))
