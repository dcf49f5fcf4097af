"""Layers on the triton backend: as torch's formulas give them, under autocast, torch.compile and double backward."""

import copy
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import wnfused
from tests.support.triton_cases import DEVICE, ON_GPU
from wnfused.functional import weight_norm, wn_conv1d, wn_linear


@pytest.fixture(autouse=True)
def _triton() -> Iterator[None]:
    with wnfused.backend("triton"):
        yield


def network() -> nn.Module:
    model = nn.Sequential(
        wnfused.WNConv2d(3, 6, 3, padding=1, activation="relu"),
        wnfused.WNConv2d(6, 6, 3, stride=2, groups=6),
        wnfused.WNConvTranspose2d(6, 4, 2, stride=2, activation="relu"),
        nn.Flatten(),
        wnfused.WNLinear(64, 10, activation="relu", bias=False),
        wnfused.WNLinear(10, 3, dim=None),
    )
    return model.to(DEVICE)


def results(model: nn.Module, x: Tensor) -> list[Tensor]:
    x = x.detach().requires_grad_()
    y = model(x)
    return [y, *torch.autograd.grad(y.float().square().sum(), [x, *model.parameters()])]


def assert_same(own: list[Tensor], wanted: list[Tensor], tolerance: float) -> None:
    for a, b in zip(own, wanted, strict=True):
        assert a.dtype == b.dtype and a.stride() == b.stride()
        torch.testing.assert_close(a, b, atol=tolerance * b.abs().max().item(), rtol=0)


@pytest.mark.parametrize("format", [torch.contiguous_format, torch.channels_last], ids=str)
def test_a_network(format: torch.memory_format) -> None:
    model, x = network(), torch.randn(2, 3, 5, 5, device=DEVICE).contiguous(memory_format=format)
    own = results(model, x)
    with wnfused.backend("torch"):
        assert_same(own, results(model, x), 1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_keeps_the_weights_in_float32(dtype: torch.dtype) -> None:
    model, x = network(), torch.randn(2, 3, 5, 5, device=DEVICE)
    with torch.autocast(DEVICE.type, dtype):
        own = results(model, x)
    assert own[0].dtype == dtype
    assert all(p.grad is None and p.dtype == torch.float32 for p in model.parameters())
    with wnfused.backend("torch"):
        wanted = results(copy.deepcopy(model), x)
    for a, b in zip(own, wanted, strict=True):
        assert (a.float() - b).abs().max() <= (0.1 if dtype == torch.bfloat16 else 0.02) * b.abs().max()


def test_compiled() -> None:
    model, x = network(), torch.randn(2, 3, 5, 5, device=DEVICE)
    compiled = torch.compile(model, fullgraph=True, backend="inductor" if ON_GPU else "aot_eager")
    assert_same(results(compiled, x), results(model, x), 1e-6)


def test_double_backward() -> None:
    """float64 goes the vendor path, whose norms and projections are these kernels."""
    x, v, g, b = (
        torch.randn(*s, dtype=torch.float64, device=DEVICE, requires_grad=True) for s in ((1, 3), (2, 3), (2, 1), (2,))
    )
    assert torch.autograd.gradcheck(lambda *t: wn_linear(*t), (x, v, g, b))
    assert torch.autograd.gradgradcheck(lambda *t: wn_linear(*t), (x, v, g, b))
    assert torch.autograd.gradgradcheck(lambda v, g: weight_norm(v, g), (v, g))
    x, v, g = (
        torch.randn(*s, dtype=torch.float64, device=DEVICE, requires_grad=True)
        for s in ((1, 1, 3), (2, 1, 2), (2, 1, 1))
    )
    assert torch.autograd.gradcheck(lambda *t: wn_conv1d(*t), (x, v, g))


def test_second_derivatives_in_float32() -> None:
    """Through the fused kernels: the gradient's gradient is the formulas'."""
    x, v, g = (torch.randn(*s, device=DEVICE, requires_grad=True) for s in ((2, 4), (3, 4), (3, 1)))

    def second() -> tuple[Tensor, ...]:
        (dv,) = torch.autograd.grad(wn_linear(x, v, g).square().sum(), v, create_graph=True)
        return torch.autograd.grad(dv.square().sum(), (x, v, g))

    own = second()
    with wnfused.backend("torch"):
        assert_same(list(own), list(second()), 1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not ON_GPU, reason="CUDA graphs need a GPU")
def test_cuda_graph() -> None:
    model, x = network(), torch.randn(2, 3, 5, 5, device=DEVICE)
    wanted = results(model, x)[0]
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        y = model(x)
    graph.replay()
    torch.testing.assert_close(y, wanted.detach())


@pytest.mark.gpu
@pytest.mark.skipif(not ON_GPU, reason="peak memory is a GPU's")
def test_no_second_copy_of_the_weight() -> None:
    layer, x = wnfused.WNLinear(4096, 4096, device=DEVICE), torch.randn(16, 4096, device=DEVICE)
    layer(x)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    layer(x)
    assert torch.cuda.max_memory_allocated() - before < layer.weight_v.numel() * 4 // 2
