"""convert: which layers become fused, which are skipped, and that nothing else about the model changes."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

import wnfused
from wnfused.nn.base import WeightNormalized

pytestmark = pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")

APIS = {"hook": nn.utils.weight_norm, "parametrizations": parametrizations.weight_norm}


@pytest.fixture(params=list(APIS))
def weight_norm(request):
    return APIS[request.param]


class Net(nn.Module):
    """Every kind of layer, every kind of dim."""

    def __init__(self, weight_norm):
        super().__init__()
        self.conv1 = weight_norm(nn.Conv1d(3, 8, 3, padding=1, padding_mode="reflect"))
        self.conv2 = weight_norm(nn.Conv2d(1, 4, 3, padding="same"), dim=1)
        self.up = weight_norm(nn.ConvTranspose2d(4, 2, 2, stride=2), dim=None)
        self.head = nn.Sequential(nn.ReLU(), weight_norm(nn.Linear(20, 6, bias=False), dim=-1), nn.LayerNorm(6))
        self.volume = weight_norm(nn.Conv3d(1, 2, 2), dim=-2)
        self.out = weight_norm(nn.ConvTranspose3d(2, 1, 2), dim=2)

    def forward(self, x):  # [B, 3, 10]
        x = self.up(self.conv2(self.conv1(x)[:, None]))  # [B, 2, 16, 20]
        return self.out(self.volume(self.head(x)[:, None]))


def perturb(model):
    torch.manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p), alpha=0.1)


def run(model, x):
    model.zero_grad()
    y = model(x)
    y.square().mean().backward()
    return y.detach(), [p.grad.clone() for p in model.parameters()]


def make(weight_norm, seed=0):
    torch.manual_seed(seed)
    return Net(weight_norm)


def test_same_outputs_gradients_and_parameters(weight_norm):
    model = make(weight_norm)
    perturb(model)
    x = torch.randn(2, 3, 10)
    before, parameters = run(model, x), list(model.parameters())
    modules = dict(model.named_modules())
    report = wnfused.convert(model)
    assert report.converted == ["conv1", "conv2", "up", "head.1", "volume", "out"]
    assert report.skipped == {}
    assert report.count == 6
    assert str(report) == "converted 6 layers, skipped 0"
    assert all(isinstance(model.get_submodule(name), WeightNormalized) for name in report.converted)
    assert all(model.get_submodule(name) is modules[name] for name in report.converted)
    assert [id(p) for p in model.parameters()] == [id(p) for p in parameters]
    assert [model.conv2.dim, model.up.dim, model.head[1].dim, model.volume.dim] == [1, None, None, 3]
    y, gradients = run(model, x)
    torch.testing.assert_close(y, before[0], rtol=1e-5, atol=1e-5)
    for mine, theirs in zip(gradients, before[1], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    assert wnfused.convert(model).count == 0  # nothing left to do


def test_root_layer_is_converted_in_place(weight_norm):
    layer = weight_norm(nn.Linear(4, 3))
    g, v = [p for name, p in layer.named_parameters() if name != "bias"]
    x = torch.randn(2, 4)
    y = layer(x)
    alias = layer
    report = wnfused.convert(layer)
    assert report.converted == [""]
    assert type(alias) is wnfused.WNLinear
    assert alias.weight_g is g
    assert alias.weight_v is v
    torch.testing.assert_close(alias(x), y)
    assert not alias._modules  # torch's parametrization is gone
    assert "weight" not in vars(alias)
    copy.deepcopy(alias)(x)


def test_existing_optimizer_keeps_working(weight_norm):
    x = torch.randn(4, 3, 10, dtype=torch.float64)  # in float32, Adam would amplify rounding errors of gradients near 0
    models = [make(weight_norm).double(), make(weight_norm).double()]
    optimizers = [torch.optim.Adam(m.parameters(), lr=1e-2) for m in models]
    for step in range(4):
        if step == 2:
            wnfused.convert(models[0])
            optimizers[0].load_state_dict(copy.deepcopy(optimizers[1].state_dict()))  # states fit by position
        for model, optimizer in zip(models, optimizers, strict=True):
            run(model, x)
            optimizer.step()
    torch.testing.assert_close(models[0](x), models[1](x), rtol=1e-8, atol=1e-8)


def test_hooks_attributes_and_modes_are_kept(weight_norm):
    seen = []
    layer = nn.Linear(4, 3)
    layer.register_forward_pre_hook(lambda m, args, kwargs: seen.append("pre"), with_kwargs=True)
    layer = weight_norm(layer)
    layer.register_forward_hook(lambda m, args, y: seen.append(("forward", m.weight.shape)))
    layer.register_full_backward_hook(lambda m, dx, dy: seen.append("backward"))
    layer.register_state_dict_post_hook(lambda m, state, *_: seen.append("state"))
    layer.tag = "mine"
    layer.register_buffer("scale", torch.ones(1))
    layer.bias.requires_grad_(False)
    model = nn.Sequential(nn.Identity(), layer).eval()
    wnfused.convert(model)
    model(torch.randn(2, 4, requires_grad=True)).sum().backward()
    model.state_dict()
    assert seen == ["pre", ("forward", (3, 4)), "backward", "state"]
    assert layer.tag == "mine"
    assert not layer.training
    assert not layer.bias.requires_grad
    assert [name for name, _ in layer.named_buffers()] == ["scale"]
    assert not layer._load_state_dict_pre_hooks  # torch's own renaming hook is gone


def test_requires_grad_dtype_and_device_are_kept(weight_norm):
    layer = weight_norm(nn.Linear(4, 3).double().requires_grad_(False))
    if weight_norm is nn.utils.weight_norm:
        layer.requires_grad_(False)  # torch's older API loses it
    wnfused.convert(layer)
    assert [(p.dtype, p.requires_grad) for p in layer.parameters()] == [(torch.float64, False)] * 3
    with torch.device("meta"):
        meta = weight_norm(nn.Conv1d(2, 3, 4))
    assert wnfused.convert(meta).count == 1
    assert meta.weight_v.is_meta


def test_shared_modules_and_tied_parameters(weight_norm):
    shared = weight_norm(nn.Linear(4, 4))
    model = nn.ModuleDict({"a": shared, "b": nn.Sequential(shared)})
    assert wnfused.convert(model).converted == ["a"]
    assert model["a"] is model["b"][0]
    first, second = weight_norm(nn.Linear(4, 4)), weight_norm(nn.Linear(4, 4))
    if weight_norm is nn.utils.weight_norm:
        second.weight_v = first.weight_v
    else:
        second.parametrizations.weight.original1 = first.parametrizations.weight.original1
    assert wnfused.convert(nn.Sequential(first, second)).count == 2
    assert first.weight_v is second.weight_v
    assert first.weight_g is not second.weight_g


def replaced_forward(weight_norm):
    layer = weight_norm(nn.Linear(4, 4))
    layer.forward = lambda x: nn.Linear.forward(layer, x)
    return layer


def own_attribute(weight_norm):
    layer = weight_norm(nn.Linear(4, 4))
    layer.activation = nn.ReLU()
    return layer


def pruned(weight_norm):
    layer = nn.Linear(4, 4)
    prune.l1_unstructured(layer, "bias", amount=1)
    return weight_norm(layer)


def other_gain_shape(weight_norm):
    layer = weight_norm(nn.Linear(4, 4))
    owner = layer if weight_norm is nn.utils.weight_norm else layer.parametrizations.weight
    setattr(owner, "weight_g" if owner is layer else "original0", nn.Parameter(torch.ones(4)))
    return layer


@pytest.mark.parametrize(
    ("build", "shape", "reason"),
    [
        (lambda wn: wn(nn.LSTM(4, 4), "weight_hh_l0"), (3, 2, 4), "LSTM has no fused counterpart"),
        (lambda wn: wn(wn(nn.LSTM(4, 4), "weight_hh_l0"), "weight_ih_l0"), (3, 2, 4), "weight_hh_l0, weight_ih_l0"),
        (lambda wn: wn(nn.Linear(4, 4), "bias"), (2, 4), "the norm is on 'bias', not on 'weight'"),
        (lambda wn: wn(wn(nn.Linear(4, 4)), "bias"), (2, 4), "several weight norms on one module (weight, bias)"),
        (replaced_forward, (2, 4), "its forward was replaced"),
        (own_attribute, (2, 4), "attribute 'activation'"),
        (pruned, (2, 4), "combined with L1Unstructured"),
        (other_gain_shape, (2, 4), "its gain has shape (4,), expected (4, 1)"),
    ],
)
def test_skipped_with_a_reason(weight_norm, build, shape, reason):
    model = nn.ModuleDict({"layer": build(weight_norm), "other": weight_norm(nn.Linear(4, 4))})
    x = torch.randn(shape)
    layer, kind = model["layer"], type(model["layer"])
    before, state = layer(x), list(layer.state_dict())
    report = wnfused.convert(model)
    assert report.converted == ["other"]
    assert list(report.skipped) == ["layer"]
    assert reason in report.skipped["layer"]
    assert type(layer) is kind
    assert list(layer.state_dict()) == state
    torch.testing.assert_close(layer(x), before)


def test_combined_parametrizations_are_skipped():
    class Half(nn.Module):
        def forward(self, w):
            return w / 2

    on_weight = parametrizations.weight_norm(nn.Linear(4, 4))
    parametrize.register_parametrization(on_weight, "weight", Half())
    on_bias = parametrizations.weight_norm(nn.Linear(4, 4))
    parametrize.register_parametrization(on_bias, "bias", Half())
    report = wnfused.convert(nn.Sequential(on_weight, on_bias))
    assert report.converted == []
    assert report.skipped == dict.fromkeys("01", "weight norm is combined with Half")


def test_filter_and_failure_leave_the_model_unchanged(weight_norm):
    model = make(weight_norm)
    report = wnfused.convert(model, filter=lambda name, module: isinstance(module, nn.Conv1d))
    assert report.converted == ["conv1"]
    assert set(report.skipped.values()) == {"excluded by the filter"}
    model = make(weight_norm)
    kinds, keys = [type(m) for m in model.modules()], list(model.state_dict())

    def broken(name, module):
        if name == "up":
            raise RuntimeError("no")
        return True

    with pytest.raises(RuntimeError, match="no"):
        wnfused.convert(model, filter=broken)
    assert [type(m) for m in model.modules()] == kinds
    assert list(model.state_dict()) == keys
    with pytest.raises(TypeError, match="model"):
        wnfused.convert("model")


def test_attention_reads_the_weight(weight_norm):
    """nn.MultiheadAttention never calls its output projection; it reads the weight."""
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    attention.out_proj = weight_norm(attention.out_proj)
    x = torch.randn(2, 3, 8)
    before = attention(x, x, x)[0]
    assert wnfused.convert(attention).converted == ["out_proj"]
    torch.testing.assert_close(attention(x, x, x)[0], before)
    attention(x, x, x)[0].sum().backward()
    assert attention.out_proj.weight_v.grad is not None
