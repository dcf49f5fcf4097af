"""``wnfused::model_weights``, the weights of a whole model in one operator, against float64 and ``weight_norm``."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.library import opcheck

from tests.support.reference import assert_close
from wnfused.ops import autograd_lists, reference

SHAPES = [
    ((7, 5), 0, 0.0), ((60, 3), 1, 1e-3), ((3, 700), 0, 0.0), ((4, 3, 2, 2), 1, 0.0), ((5, 6), -1, 0.5),
    ((6, 1048), 0, 0.1), ((33, 13), 1, 0.0), ((9, 8, 3), 2, 0.0), ((1, 9), 0, 0.0), ((200, 190), -1, 0.0),
]  # fmt: skip
DTYPES = [
    (torch.float32, torch.float32), (torch.float32, torch.bfloat16), (torch.float32, torch.float16),
    (torch.bfloat16, torch.bfloat16), (torch.float64, torch.float64),
]  # fmt: skip


def arguments(dtype: torch.dtype, shapes: Any = SHAPES) -> tuple[list[Tensor], list[Tensor], list[int], list[float]]:
    torch.manual_seed(0)
    v = [torch.randn(shape).to(dtype) for shape, _, _ in shapes]
    dims, eps = [dim for _, dim, _ in shapes], [eps for *_, eps in shapes]
    gains = [reference.gain_shape(tuple(t.shape), None if dim < 0 else dim) for t, dim in zip(v, dims, strict=True)]
    return v, [(torch.rand(shape) + 0.5).to(dtype) for shape in gains], dims, eps


def wide(tensors: list[Tensor]) -> list[Tensor]:
    return [t.detach().double() for t in tensors]


@pytest.mark.parametrize(("dtype", "compute"), DTYPES, ids=str)
def test_numbers(backend: str, dtype: torch.dtype, compute: torch.dtype) -> None:
    v, g, dims, eps = arguments(dtype)
    w, norms = torch.ops.wnfused.model_weights(v, g, dims, eps, compute)
    exact, exact_norms = reference.model_weights(wide(v), wide(g), dims, eps, torch.float64)
    assert_close(norms, exact_norms)
    dw = [torch.randn(t.shape).to(compute) for t in v]
    every = [True] * len(v)
    dv, dg = torch.ops.wnfused.model_weights_backward(dw, v, g, norms, dims, eps, every, every)
    exact_dv, exact_dg = reference.model_weights_backward(wide(dw), wide(v), wide(g), None, dims, eps, every, every)
    for i in range(len(v)):
        assert w[i].dtype == compute and w[i].stride() == v[i].stride()
        assert_close(w[i], exact[i], what=f"w {i}")
        terms = (exact_dg[i] * wide(g)[i]).abs().max().item() / exact_norms.min().item()
        assert_close(dv[i], exact_dv[i], terms=terms, what=f"dv {i}")
        assert_close(dg[i], exact_dg[i], terms=dw[i].double().norm().item(), what=f"dg {i}")


def test_extreme_and_zero_rows(backend: str) -> None:
    v, g, dims, eps = arguments(torch.float32, [((6, 700), 0, 0.0), ((40, 6), 1, 0.0)])
    sizes = torch.tensor([1e-30, 1e-20, 1.0, 1e20, 1e30, 0.0])
    v = [v[0] * sizes[:, None], v[1] * sizes]
    w, norms = torch.ops.wnfused.model_weights(v, g, dims, eps, torch.float32)
    exact, exact_norms = reference.model_weights(wide(v), wide(g), dims, eps, torch.float64)
    dw = [torch.randn_like(t) for t in v]
    dv, dg = torch.ops.wnfused.model_weights_backward(dw, v, g, norms, dims, eps, [True] * 2, [True] * 2)
    for own, want in zip(norms, exact_norms, strict=True):
        assert_close(own[None], want[None])
    assert_close(w[0], exact[0])
    assert_close(w[1], exact[1])
    assert w[0][5].eq(0).all() and dv[0][5].eq(0).all() and dg[0][5].eq(0).all()
    assert all(torch.isfinite(t).all() for t in (*dv, *dg))


@pytest.mark.parametrize("least", [1, 400, 10**9])
def test_gradients_are_those_of_the_single_operators(backend: str, least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In buckets of one weight, of several and of all; the second weight is frozen, the third was not used."""
    monkeypatch.setattr(autograd_lists, "BUCKET_BYTES", least)
    v, g, dims, eps = arguments(torch.float64, SHAPES[:6])
    for i, t in enumerate((*v, *g)):
        t.requires_grad_(i not in (1, 7, 9))  # weight 1, and the gain of weight 3
    w, _ = torch.ops.wnfused.model_weights(v, g, dims, eps, torch.float64)
    assert not w[1].requires_grad
    sum(w[i].sin().sum() for i in (0, 3, 4, 5)).backward()
    for i in range(6):
        own_v, own_g = (t[i].detach().clone().requires_grad_(t[i].requires_grad) for t in (v, g))
        one, _ = torch.ops.wnfused.weight_norm(own_v, own_g, None if dims[i] < 0 else dims[i], eps[i])
        if i in (1, 2):
            assert v[i].grad is None and g[i].grad is None
            continue
        one.sin().sum().backward()
        assert v[i].grad is not None and own_v.grad is not None
        torch.testing.assert_close(v[i].grad, own_v.grad)
        assert (g[i].grad is None) == (i == 3)
        if i != 3:
            torch.testing.assert_close(g[i].grad, own_g.grad)


def test_first_and_second_derivatives(backend: str) -> None:
    v, g, dims, eps = arguments(torch.float64, [((2, 3), 0, 0.0), ((2, 2, 2), 1, 0.1), ((3,), -1, 0.0)])
    leaves = [t.requires_grad_() for t in (*v, *g)]

    def weights(*given: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.ops.wnfused.model_weights(list(given[:3]), list(given[3:]), dims, eps, torch.float64)[0])

    assert torch.autograd.gradcheck(weights, leaves)
    assert torch.autograd.gradgradcheck(weights, leaves)


def test_gradients_arrive_while_the_backward_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each bucket's as soon as its weights have theirs: DDP sends them during the rest of the backward."""
    monkeypatch.setattr(autograd_lists, "BUCKET_BYTES", 1)
    v, g, dims, eps = arguments(torch.float64, [((4, 4), 0, 0.0)] * 3)
    order: list[str] = []
    for i, t in enumerate(v):
        t.requires_grad_().register_post_accumulate_grad_hook(lambda _, i=i: order.append(f"v {i}"))
    w, _ = torch.ops.wnfused.model_weights(v, g, dims, eps, torch.float64)
    x = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    for i, weight in enumerate(w):
        x = (x @ weight).sin()
        x.register_hook(lambda _, i=i: order.append(f"x {i}"))
    x.sum().backward()
    assert order == ["x 2", "v 2", "x 1", "v 1", "x 0", "v 0"]


def test_two_backwards_reach_one_node() -> None:
    """Two towers of a model, each with its own loss and optimizer step, without retain_graph."""
    v, g, dims, eps = arguments(torch.float64, SHAPES[:2])
    leaves = [t.requires_grad_() for t in (*v, *g)]
    w, _ = torch.ops.wnfused.model_weights(v, g, dims, eps, torch.float64)
    w[0].sum().backward()
    with torch.no_grad():
        leaves[0].mul_(2.0)
    w[1].sum().backward()
    assert v[0].grad is not None and v[1].grad is not None
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        w[0].sum().backward()


@pytest.mark.usefixtures("_one_thread", "_compiled_afresh")
def test_opcheck(backend: str) -> None:
    v, g, dims, eps = arguments(torch.float32, SHAPES[:5])
    leaves = [t.requires_grad_() for t in (*v, *g)]
    results = opcheck(torch.ops.wnfused.model_weights.default, (leaves[:5], leaves[5:], dims, eps, torch.float32))
    assert set(results.values()) == {"SUCCESS"}
    _, norms = torch.ops.wnfused.model_weights(v, g, dims, eps, torch.float32)
    masks = ([True, False, True, True, False], [False, False, True, True, True])
    for requires_grad in (False, True):
        dw = [torch.randn_like(t).requires_grad_(requires_grad) for t in v]
        given = [[t.detach().requires_grad_(requires_grad) for t in ts] for ts in (v, g)]
        outcome = opcheck(
            torch.ops.wnfused.model_weights_backward.default, (dw, *given, norms.detach(), dims, eps, *masks)
        )
        assert set(outcome.values()) == {"SUCCESS"}


@pytest.mark.usefixtures("_one_thread", "_compiled_afresh")
def test_compile() -> None:
    v, g, dims, eps = arguments(torch.float32, SHAPES[:3])
    leaves = [t.requires_grad_() for t in (*v, *g)]

    def loss(v: list[Tensor], g: list[Tensor]) -> Tensor:
        w, _ = torch.ops.wnfused.model_weights(v, g, dims, eps, torch.float32)
        return sum(t.sin().sum() for t in w)

    wanted = torch.autograd.grad(loss(v, g), leaves)
    own = torch.autograd.grad(torch.compile(loss, fullgraph=True, backend="aot_eager")(v, g), leaves)
    for a, b in zip(own, wanted, strict=True):
        torch.testing.assert_close(a, b)


def test_wrong_arguments(backend: str) -> None:
    v, g, dims, eps = arguments(torch.float32, SHAPES[:2])
    op = torch.ops.wnfused.model_weights
    with pytest.raises(ValueError, match="g: expected 2 like v, got 1"):
        op(v, g[:1], dims, eps, torch.float32)
    with pytest.raises(ValueError, match="weight 1: dim: expected None or 0 to 1"):
        op(v, g, [0, 2], eps, torch.float32)
    with pytest.raises(ValueError, match="weight 1: g: shape"):
        op(v, [g[0], g[0]], dims, eps, torch.float32)
    with pytest.raises(TypeError, match="weight 1: v: expected dtype"):
        op([v[0], v[1].half()], g, dims, eps, torch.float32)
    with pytest.raises(TypeError, match="dtype: expected a floating dtype that fits"):
        op(v, g, dims, eps, torch.int32)
    w, norms = op(v, g, dims, eps, torch.float32)
    back, every = torch.ops.wnfused.model_weights_backward, [True] * 2
    with pytest.raises(ValueError, match="norms: expected shape"):
        back(w, v, g, norms[1:], dims, eps, every, every)
    with pytest.raises(ValueError, match="weight 0: dw: expected shape"):
        back([w[1], w[1]], v, g, norms, dims, eps, every, every)
