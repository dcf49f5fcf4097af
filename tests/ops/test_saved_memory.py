"""What a layer keeps for backward: x, v, g, the norms, no second weight. What it computes there: what was asked for."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import wnfused
from tests.support.chosen_backends import CHOSEN
from wnfused.functional import weight_norm
from wnfused.ops.reference import gain_shape

# Weights large beside the activations make the native kernels scale output or input, small ones the weight. The Triton
# kernels do not ask for that, and their interpreter would take minutes.
WIDE = 160 if CHOSEN != "triton" else 24
LESS = WIDE - 8

# layer, constructor arguments, input shape
LAYERS: dict[str, tuple[type[nn.Module], dict[str, Any], tuple[int, ...]]] = {
    "linear, few rows": (wnfused.WNLinear, {"in_features": 50, "out_features": 70}, (3, 50)),
    "linear, many rows": (wnfused.WNLinear, {"in_features": 50, "out_features": 70}, (60, 50)),
    "linear, columns": (wnfused.WNLinear, {"in_features": 50, "out_features": 70, "dim": 1}, (60, 50)),
    "conv, weight": (wnfused.WNConv2d, {"in_channels": 8, "out_channels": 16, "kernel_size": 3}, (2, 8, 12, 12)),
    "conv, output": (wnfused.WNConv2d, {"in_channels": WIDE, "out_channels": LESS, "kernel_size": 3}, (1, WIDE, 4, 4)),
    "conv, input": (
        wnfused.WNConv2d,
        {"in_channels": WIDE, "out_channels": LESS, "kernel_size": 3, "dim": 1},
        (1, WIDE, 4, 4),
    ),
    "conv, padded": (
        wnfused.WNConv1d,
        {"in_channels": 8, "out_channels": 16, "kernel_size": 3, "padding": 1},
        (2, 8, 12),
    ),
    "conv, depthwise": (
        wnfused.WNConv1d,
        {"in_channels": 8, "out_channels": 8, "kernel_size": 3, "groups": 8},
        (2, 8, 12),
    ),
    "transposed, weight": (
        wnfused.WNConvTranspose2d,
        {"in_channels": 8, "out_channels": 16, "kernel_size": 3, "stride": 2},
        (2, 8, 5, 5),
    ),
    "transposed, output": (
        wnfused.WNConvTranspose2d,
        {"in_channels": WIDE, "out_channels": LESS, "kernel_size": 3, "padding": 1, "dim": 1},
        (1, WIDE, 2, 2),
    ),
    "transposed, input": (
        wnfused.WNConvTranspose2d,
        {"in_channels": WIDE, "out_channels": LESS, "kernel_size": 3, "padding": 1},
        (1, WIDE, 2, 2),
    ),
}


def size(*tensors: Tensor) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def saved_by(call: Callable[[], Any]) -> tuple[Any, list[Tensor]]:
    """What ``call`` returns, and the tensors it keeps for backward."""
    kept: list[Tensor] = []

    def keep(t: Tensor) -> Tensor:
        kept.append(t)
        return t

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        y = call()
    return y, kept


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_layer_keeps_no_second_weight(backend: str, name: str, dtype: torch.dtype) -> None:
    kind, arguments, shape = LAYERS[name]
    layer = kind(**arguments, dtype=dtype)
    x = torch.randn(shape).to(dtype).requires_grad_()
    y, kept = saved_by(lambda: layer(x))
    norms = 4 * layer.weight_g.numel()  # in float32 for either type
    assert sum(size(t) for t in kept) == size(x, layer.weight_v, layer.weight_g) + norms
    y.backward(torch.ones_like(y))
    assert all(p.grad is not None and p.grad.any() for p in layer.parameters())


@pytest.mark.parametrize("name", LAYERS)
def test_fused_relu_keeps_the_output_and_nothing_else(backend: str, name: str) -> None:
    """Which the next layer keeps anyway, as its input."""
    kind, arguments, shape = LAYERS[name]
    layer = kind(**arguments, activation="relu")
    x = torch.randn(shape, requires_grad=True)
    y, kept = saved_by(lambda: layer(x))
    assert sum(size(t) for t in kept) == size(x, layer.weight_v, layer.weight_g, layer.weight_g, y)
    assert any(t.data_ptr() == y.data_ptr() for t in kept)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("norm", [nn.utils.weight_norm, nn.utils.parametrizations.weight_norm])
@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
def test_torch_keeps_a_weight_more(backend: str, name: str, norm: Callable[..., nn.Module]) -> None:
    kind, arguments, shape = LAYERS[name]
    own = kind(**arguments)
    dim = arguments.get("dim", 0)
    theirs = norm(kind.twin(**{key: value for key, value in arguments.items() if key != "dim"}), dim=dim)
    x = torch.randn(shape, requires_grad=True)
    kept_by_own, kept_by_theirs = ({id(t): t for t in saved_by(lambda m=m: m(x))[1]} for m in (own, theirs))
    more = size(*kept_by_theirs.values()) - size(*kept_by_own.values())
    assert more >= size(own.weight_v)


@pytest.mark.parametrize("dim", [0, 1, 2, None])
def test_weight_norm_keeps_what_it_was_given_and_the_norms(backend: str, dim: int | None) -> None:
    v = torch.randn(6, 5, 4, requires_grad=True)
    g = torch.rand(gain_shape((6, 5, 4), dim), requires_grad=True)
    w, kept = saved_by(lambda: weight_norm(v, g, dim))
    assert w.requires_grad
    assert sum(size(t) for t in kept) == size(v, g, g)


@pytest.mark.parametrize("relu", [False, True])
def test_python_registration_keeps_the_same(relu: bool) -> None:
    """The operators' overloads that serve where the native library is not built."""
    operators = torch.ops.wnfused
    x, v, g, b = torch.randn(2, 5, 9), torch.randn(6, 5, 3), torch.rand(6, 1, 1), torch.randn(6)
    geometry = ([1], [0], [1], False, [0], 1)
    calls: list[tuple[Any, list[Tensor], tuple[Any, ...]]] = [
        (operators.weight_norm.python, [v, g], (0, 0.0)),
        (operators.linear.python, [x[..., :5], v[..., 0], g[..., 0], b], (0, 0.0, relu)),
        (operators.convolution.python, [x, v, g, b], (*geometry, 0, 0.0, relu)),
    ]
    for operator, tensors, options in calls:
        leaves = [t.detach().requires_grad_() for t in tensors]
        (y, norms), kept = saved_by(lambda op=operator, args=(*leaves, *options): op(*args))
        has_y = relu and len(leaves) == 4
        assert sum(size(t) for t in kept) == size(*leaves[:3], norms) + (size(y) if has_y else 0)
        whole = torch.autograd.grad(y.square().sum(), leaves)
        leaves[1].requires_grad_(False)
        y, _ = operator(*leaves, *options)
        y.square().sum().backward()
        for i, (leaf, wanted) in enumerate(zip(leaves, whole, strict=True)):
            if i == 1:
                assert leaf.grad is None
            else:
                torch.testing.assert_close(leaf.grad, wanted)


@pytest.mark.parametrize("name", LAYERS)
def test_nothing_is_kept_without_a_graph(backend: str, name: str) -> None:
    kind, arguments, shape = LAYERS[name]
    layer, x = kind(**arguments, activation="relu"), torch.randn(shape)
    with torch.no_grad():
        assert saved_by(lambda: layer(x))[1] == []
    layer.requires_grad_(False)
    assert saved_by(lambda: layer(x))[1] == []


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize(
    "frozen", [["weight_g"], ["weight_v"], ["weight_g", "weight_v"], ["bias"], ["x"]], ids="+".join
)
def test_frozen_tensors_get_no_gradient(backend: str, name: str, frozen: list[str]) -> None:
    """And the others the same one as without them frozen."""
    kind, arguments, shape = LAYERS[name]
    layer, x = kind(**arguments), torch.randn(shape, requires_grad=True)
    tensors: dict[str, Tensor] = {"x": x, **dict(layer.named_parameters())}
    whole = torch.autograd.grad(layer(x).square().sum(), list(tensors.values()))
    wanted = dict(zip(tensors, whole, strict=True))
    for key in frozen:
        tensors[key].requires_grad_(False)
    layer(x).square().sum().backward()
    for key, t in tensors.items():
        if key in frozen:
            assert t.grad is None
        else:
            torch.testing.assert_close(t.grad, wanted[key], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dim", [0, 1, 2, None])
def test_weight_norm_backward_returns_what_is_asked_for(backend: str, dim: int | None) -> None:
    v, g = torch.randn(6, 5, 4), torch.rand(gain_shape((6, 5, 4), dim))
    w, norms = torch.ops.wnfused.weight_norm(v, g, dim, 0.0)
    for mask in ([False, False], [True, False], [False, True], [True, True]):
        results = torch.ops.wnfused.weight_norm_backward(torch.ones_like(w), v, g, norms, dim, 0.0, mask)
        assert [t is not None for t in results] == mask


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("name", [name for name in LAYERS if "linear" not in name])
def test_convolution_backward_returns_what_is_asked_for(backend: str, name: str, relu: bool) -> None:
    """Whatever the side that takes the gain, and each gradient the same whichever others are asked for."""
    kind, arguments, shape = LAYERS[name]
    layer, x = kind(**arguments), torch.randn(shape)
    transposed = isinstance(layer, nn.modules.conv._ConvTransposeNd)
    v, g, b = (t.detach() for t in (layer.weight_v, layer.weight_g, layer.bias))
    geometry = (layer.stride, layer.padding, layer.dilation, transposed, layer.output_padding, layer.groups)
    y, norms = torch.ops.wnfused.convolution(x, v, g, b, *geometry, layer.dim, 0.0, relu)
    saved = (x, v, g, norms, y if relu else None)
    dy = torch.randn_like(y)
    everything = torch.ops.wnfused.convolution_backward(dy, *saved, *geometry, layer.dim, 0.0, [True] * 4)
    for asked in range(16):
        mask = [bool(asked & bit) for bit in (1, 2, 4, 8)]
        results = torch.ops.wnfused.convolution_backward(dy, *saved, *geometry, layer.dim, 0.0, mask)
        assert [t is not None for t in results] == mask
        for own, whole in zip(results, everything, strict=True):
            if own is not None:
                torch.testing.assert_close(own, whole, rtol=1e-4, atol=1e-4)
