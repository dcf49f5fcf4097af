"""The layers against torch's weight norm of their twins: same numbers from the same seed, same module behaviour."""

import copy
import inspect
import io
import pickle

import pytest
import torch
from torch import nn

import wnfused
from wnfused.nn.layers import (
    WNConv1d,
    WNConv2d,
    WNConv3d,
    WNConvTranspose1d,
    WNConvTranspose2d,
    WNConvTranspose3d,
    WNLinear,
)

CASES = [
    pytest.param(WNLinear, (5, 7), {}, (3, 5), id="linear"),
    pytest.param(WNLinear, (5, 7), {"bias": False}, (2, 3, 5), id="linear-no-bias"),
    pytest.param(WNConv1d, (4, 6, 3), {"stride": 2, "padding": 1, "groups": 2}, (2, 4, 11), id="conv1d-groups"),
    pytest.param(WNConv1d, (4, 6, 4), {"padding": "same", "dilation": 2}, (2, 4, 11), id="conv1d-same"),
    pytest.param(WNConv2d, (3, 5, (3, 2)), {"padding": (1, 0), "bias": False}, (2, 3, 6, 7), id="conv2d"),
    pytest.param(WNConv2d, (3, 5, 3), {"padding": 1, "padding_mode": "circular"}, (2, 3, 6, 7), id="conv2d-circular"),
    pytest.param(WNConv2d, (3, 5, 3), {}, (3, 6, 7), id="conv2d-unbatched"),
    pytest.param(WNConv3d, (2, 3, 2), {"stride": (1, 2, 1)}, (2, 2, 4, 5, 3), id="conv3d"),
    pytest.param(WNConvTranspose1d, (4, 6, 4), {"stride": 3, "output_padding": 1}, (2, 4, 5), id="transpose1d"),
    pytest.param(WNConvTranspose2d, (4, 6, 3), {"groups": 2, "padding": 1}, (2, 4, 5, 4), id="transpose2d"),
    pytest.param(WNConvTranspose3d, (2, 3, 2), {"dilation": 2}, (1, 2, 3, 4, 3), id="transpose3d"),
]


def pair(kind, args, kwargs, dim=0):
    """Our layer and torch's weight norm of its twin, from the same seed."""
    torch.manual_seed(0)
    ours = kind(*args, **kwargs, dim=dim)
    after_ours = torch.rand(1)
    torch.manual_seed(0)
    theirs = nn.utils.parametrizations.weight_norm(kind.twin(*args, **kwargs), dim=dim)
    assert torch.equal(torch.rand(1), after_ours)  # the same random numbers were consumed
    return ours, theirs


def perturb(*modules):
    """The same change to both, so that the gain is no longer the norm."""
    for module in modules:
        torch.manual_seed(1)
        with torch.no_grad():
            for p in module.parameters():
                p.add_(torch.randn_like(p), alpha=0.3)


@pytest.mark.parametrize("dim", [0, 1, None])
@pytest.mark.parametrize(("kind", "args", "kwargs", "shape"), CASES)
def test_equals_torch_weight_norm_of_the_twin(kind, args, kwargs, shape, dim):
    ours, theirs = pair(kind, args, kwargs, dim)
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(mine, other)  # bit for bit, and in the same order
    perturb(ours, theirs)
    x = torch.randn(shape)
    x1, x2 = x.clone().requires_grad_(), x.clone().requires_grad_()
    y1, y2 = ours(x1), theirs(x2)
    torch.testing.assert_close(y1, y2, rtol=1e-5, atol=1e-5)
    dy = torch.randn_like(y1)
    y1.backward(dy)
    y2.backward(dy)
    torch.testing.assert_close(x1.grad, x2.grad, rtol=1e-5, atol=1e-5)
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("kind", "args", "kwargs", "shape"), CASES)
def test_new_layer_is_the_plain_layer_and_relu_is_fused(kind, args, kwargs, shape):
    torch.manual_seed(0)
    plain = kind.twin(*args, **kwargs)
    x = torch.randn(shape)
    for eps in (0.0, 0.5):
        torch.manual_seed(0)
        layer = kind(*args, **kwargs, activation="relu", eps=eps)
        torch.testing.assert_close(layer(x), plain(x).relu(), rtol=1e-5, atol=1e-6)
        assert (layer(x) == 0).any()
        assert (layer(x) > 0).any()


@pytest.mark.parametrize(("kind", "args", "kwargs", "shape"), CASES)
def test_constructor_takes_the_twins_arguments(kind, args, kwargs, shape):
    twin = list(inspect.signature(kind.twin).parameters.values())
    ours = list(inspect.signature(kind).parameters.values())
    assert [(p.name, p.default) for p in ours[: len(twin)]] == [(p.name, p.default) for p in twin]
    extra = {p.name: p.default for p in ours[len(twin) :]}
    assert extra == {"activation": None, "dim": 0, "eps": 0.0}
    assert all(p.kind is inspect.Parameter.KEYWORD_ONLY for p in ours[len(twin) :])
    assert isinstance(kind(*args, **kwargs), kind.twin)


def test_weight_is_a_differentiable_read_only_view():
    layer = WNConv1d(3, 4, 5)
    perturb(layer)
    expected = torch._weight_norm(layer.weight_v, layer.weight_g, 0)
    torch.testing.assert_close(layer.weight, expected)
    layer.weight.sum().backward()
    assert layer.weight_g.grad.abs().sum() > 0
    assert layer.weight_v.grad.abs().sum() > 0
    for value in (torch.zeros(4, 3, 5), nn.Parameter(torch.zeros(4, 3, 5)), None):
        with pytest.raises(AttributeError, match="computed from weight_g and weight_v"):
            layer.weight = value
    assert [name for name, _ in layer.named_parameters()] == ["bias", "weight_g", "weight_v"]
    assert all(p.is_leaf for p in layer.parameters())


def test_reset_parameters_repeats_the_constructor():
    torch.manual_seed(3)
    first = WNConvTranspose1d(3, 4, 5, dim=1)
    second = WNConvTranspose1d(3, 4, 5, dim=1, device="meta").to_empty(device="cpu")
    torch.manual_seed(3)
    second.reset_parameters()
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(("kind", "args", "kwargs", "shape"), CASES)
def test_copying_and_saving(kind, args, kwargs, shape):
    layer = kind(*args, **kwargs, activation="relu", dim=None, eps=0.25).eval()
    perturb(layer)
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    copies = [
        copy.deepcopy(layer),
        pickle.loads(pickle.dumps(layer)),
        torch.load(file, weights_only=False),
        copy.deepcopy(layer).share_memory(),
    ]
    x = torch.randn(shape)
    for other in copies:
        assert type(other) is kind
        assert torch.equal(other(x), layer(x))
        assert other.weight_v is not layer.weight_v
        assert not other.training
        assert repr(other) == repr(layer)
    assert copies[-1].weight_g.is_shared()


def test_dtypes_and_devices():
    double = WNLinear(4, 3).to(torch.float64)
    assert double(torch.randn(2, 4, dtype=torch.float64)).dtype == torch.float64
    half = WNLinear(4, 3).half()
    assert {p.dtype for p in half.parameters()} == {torch.float16}
    assert WNConv2d(2, 3, 1, dtype=torch.bfloat16).weight.dtype == torch.bfloat16
    meta = WNConv2d(2, 3, 3, device="meta")
    assert meta(torch.empty(1, 2, 5, 5, device="meta")).shape == (1, 3, 3, 3)
    assert meta.weight.device.type == "meta"
    with torch.device("meta"):
        assert WNLinear(2, 2).weight_g.is_meta


def test_repr_reads_like_the_twins():
    assert repr(WNLinear(3, 4)) == "WNLinear(in_features=3, out_features=4, bias=True)"
    conv = WNConv2d(3, 4, 3, padding=1, dim=None, eps=1e-5, activation="relu")
    assert repr(conv) == (
        "WNConv2d(3, 4, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), dim=None, eps=1e-05, activation='relu')"
    )


def test_output_size_of_transposed_convolutions():
    layer = WNConvTranspose2d(3, 4, 3, stride=2)
    plain = nn.ConvTranspose2d(3, 4, 3, stride=2)
    plain.load_state_dict({"weight": layer.weight.detach(), "bias": layer.bias})
    x = torch.randn(1, 3, 5, 5)
    torch.testing.assert_close(layer(x, output_size=[12, 11]), plain(x, output_size=[12, 11]))
    with pytest.raises(ValueError, match="requested an output size"):
        layer(x, output_size=[20, 20])


def test_geometry_changed_after_construction_is_used():
    """Descript's DAC switches off the padding of every nn.Conv1d it finds while it works on chunks."""
    model = nn.Sequential(WNConv1d(2, 3, 5, padding=2))
    for module in model.modules():
        if isinstance(module, nn.Conv1d):
            module.padding = (0,)
    assert model(torch.randn(1, 2, 9)).shape == (1, 3, 5)


def test_zero_rows_give_zeros_and_zero_gradients():
    layer = WNLinear(4, 3)
    with torch.no_grad():
        layer.weight_v[1] = 0
    y = layer(torch.randn(2, 4))
    assert torch.equal(y[:, 1], layer.bias[1].expand(2))
    y.sum().backward()
    assert torch.equal(layer.weight_v.grad[1], torch.zeros(4))
    assert layer.weight_g.grad[1] == 0
    assert layer.weight_v.grad[0].abs().sum() > 0


def test_empty_layer_and_empty_batch():
    assert WNLinear(4, 3)(torch.empty(0, 4)).shape == (0, 3)
    with pytest.warns(UserWarning, match="zero-element"):
        layer = WNLinear(0, 3)
    torch.testing.assert_close(layer(torch.empty(2, 0)), layer.bias.expand(2, 3))


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: WNLinear(-1, 3), "in_features"),
        (lambda: WNLinear(3, 2.5), "out_features"),
        (lambda: WNLinear(3, 4, activation="gelu"), "activation"),
        (lambda: WNLinear(3, 4, dim=2), "dim"),
        (lambda: WNLinear(3, 4, dim=-1), "dim=None"),
        (lambda: WNLinear(3, 4, eps=-1e-3), "eps"),
        (lambda: WNLinear(3, 4, eps=float("nan")), "eps"),
        (lambda: WNConv1d(0, 4, 3), "in_channels"),
        (lambda: WNConv1d(4, 4, 0), "kernel_size"),
        (lambda: WNConv1d(4, 4, 3, stride=0), "stride"),
        (lambda: WNConv2d(4, 4, (3, 3, 3)), "kernel_size"),
        (lambda: WNConv2d(4, 4, 3, padding=-1), "padding"),
        (lambda: WNConv2d(4, 4, 3, dilation=0), "dilation"),
        (lambda: WNConv2d(4, 6, 3, groups=4), "groups"),
        (lambda: WNConv2d(4, 6, 3, groups=0), "groups"),
        (lambda: WNConv2d(4, 6, 3, padding_mode="mirror"), "padding_mode"),
        (lambda: WNConv2d(4, 6, 3, padding="full"), "padding"),
        (lambda: WNConvTranspose1d(4, 6, 3, padding_mode="reflect"), "padding mode"),
        (lambda: WNConvTranspose1d(4, 6, 3, padding="same"), "padding"),
        (lambda: WNConvTranspose3d(4, 6, 3, output_padding=-1), "output_padding"),
    ],
)
def test_bad_arguments_are_named(make, named):
    with pytest.raises((ValueError, TypeError), match=named):
        make()


def test_traces_and_compiles():
    torch.manual_seed(0)
    model = nn.Sequential(
        WNConv1d(3, 4, 3, activation="relu"), WNConvTranspose1d(4, 2, 3), nn.Flatten(), WNLinear(18, 5)
    )
    x = torch.randn(2, 3, 9)
    graph = torch.fx.symbolic_trace(model)
    called = [node.target.__name__ for node in graph.graph.nodes if node.op == "call_function"]
    assert called == ["wn_conv1d", "wn_conv_transpose1d", "wn_linear"]
    assert torch.equal(graph(x), model(x))
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), model(x))
    compiled(x).square().sum().backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model(x).square().sum().backward()
    for a, b in zip(gradients, model.parameters(), strict=True):
        torch.testing.assert_close(a, b.grad)
    torch.testing.assert_close(torch.export.export(model, (x,)).module()(x), model(x))


def test_public_names():
    for name in wnfused.__all__:
        assert getattr(wnfused, name) is not None
    assert wnfused.__all__ == sorted(wnfused.__all__)
