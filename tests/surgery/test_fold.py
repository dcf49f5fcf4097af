"""fold and to_torch: the same outputs from torch.nn's own layers, in the same objects."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize, prune

import wnfused
from wnfused import WNConv1d, WNConv2d, WNConvTranspose1d, WNConvTranspose2d, WNLinear

pytestmark = pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")


def perturb(model):
    torch.manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p), alpha=0.2)
    return model


def network(**kwargs):
    """Several kinds and dims; kwargs (a fused ReLU, an eps) go to one of the layers."""
    torch.manual_seed(0)
    return perturb(
        nn.Sequential(
            WNConv2d(2, 4, 3, padding=1, padding_mode="replicate", **kwargs),
            WNConvTranspose2d(4, 3, 2, stride=2, dim=1),
            nn.Flatten(),
            WNLinear(192, 5, bias=False, dim=None),
        )
    )


def result(model, x):
    x = x.clone().requires_grad_()
    y = model(x)
    y.square().sum().backward()
    return y.detach(), x.grad


@pytest.mark.parametrize("eps", [0.0, 0.1])
def test_fold_gives_plain_layers_in_place(eps):
    model, x = network(eps=eps), torch.randn(2, 2, 4, 4)
    expected, objects = result(model, x), list(model)
    assert wnfused.fold(model) == 3
    assert list(model) == objects
    assert [type(m) for m in model] == [nn.Conv2d, nn.ConvTranspose2d, nn.Flatten, nn.Linear]
    for mine, theirs in zip(result(model, x), expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)
    fresh = nn.Conv2d(2, 4, 3, padding=1, padding_mode="replicate")
    assert list(model[0].state_dict()) == list(fresh.state_dict())  # weight first, as in a plain layer
    assert vars(model[0]).keys() == vars(fresh).keys()  # no attribute of wnfused is left
    assert wnfused.fold(model) == 0


def test_fold_keeps_a_fused_relu():
    model, x = network(activation="relu"), torch.randn(2, 2, 4, 4)
    seen, layer = [], model[0]
    layer.register_forward_hook(lambda m, args, y: seen.append(bool((y < 0).any())))
    layer.tag = "mine"
    model.eval()
    expected = result(model, x)
    assert wnfused.fold(model) == 3
    assert model[0] is layer
    assert [type(m) for m in layer] == [nn.Conv2d, nn.ReLU]
    for mine, theirs in zip(result(model, x), expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)
    assert seen == [False, False]  # the hook saw the activated output before and after
    assert layer.tag == "mine"
    assert layer.kernel_size == (3, 3)
    assert not any(m.training for m in layer.modules())
    assert list(layer.state_dict()) == ["0.weight", "0.bias"]
    torch.testing.assert_close(copy.deepcopy(model)(x), model(x))
    assert wnfused.fold(model) == 0


@pytest.mark.parametrize("activation", [None, "relu"])
def test_fold_the_model_itself(activation):
    layer = perturb(WNLinear(4, 3, activation=activation, dtype=torch.float64))
    x = torch.randn(2, 4, dtype=torch.float64)
    y = layer(x)
    assert wnfused.fold(layer) == 1
    assert type(layer) is (nn.Linear if activation is None else nn.Sequential)
    torch.testing.assert_close(layer(x), y)


def test_fold_keeps_ties_and_requires_grad():
    first, second, third = WNLinear(4, 4), WNLinear(4, 4), WNLinear(4, 4)
    second.weight_g, second.weight_v = first.weight_g, first.weight_v
    third.weight_v = first.weight_v
    third.requires_grad_(False)
    first.bias.requires_grad_(False)
    model = nn.Sequential(first, second, third, first)
    assert wnfused.fold(model) == 3
    assert first.weight is second.weight
    assert third.weight is not first.weight
    assert [m.weight.requires_grad for m in (first, third)] == [True, False]
    single = WNLinear(4, 4)
    single.weight_v.requires_grad_(False)
    wnfused.fold(single)
    assert single.weight.requires_grad


def test_fold_converted_models_and_half_precision():
    layer = nn.utils.parametrizations.weight_norm(nn.Conv1d(3, 4, 3)).to(torch.bfloat16)
    expected = layer.weight.detach().clone()
    wnfused.convert(layer)
    wnfused.fold(layer)
    assert type(layer) is nn.Conv1d
    assert layer.weight.dtype == torch.bfloat16
    torch.testing.assert_close(layer.weight.detach(), expected)


class Causal(WNConv1d):
    def forward(self, x):
        return super().forward(nn.functional.pad(x, (2, 0)))


@pytest.mark.parametrize("back", [wnfused.fold, wnfused.to_torch])
def test_subclasses_with_code_raise_before_anything_changes(back):
    model = nn.Sequential(WNLinear(3, 3), Causal(2, 2, 3))
    with pytest.raises(TypeError, match=r"layer '1' is Causal, a subclass of WNConv1d with its own forward"):
        back(model)
    assert type(model[0]) is WNLinear
    assert back(model, filter=lambda name, module: not isinstance(module, Causal)) == 1
    assert type(model[1]) is Causal


@pytest.mark.parametrize("back", [wnfused.fold, wnfused.to_torch])
def test_pruned_layers_raise_before_anything_changes(back):
    model = nn.Sequential(WNLinear(3, 3), WNLinear(3, 3))
    prune.l1_unstructured(model[1], "weight_v", amount=1)
    with pytest.raises(ValueError, match="layer '1'"):
        back(model)
    assert [type(m) for m in model] == [WNLinear, WNLinear]


@pytest.mark.parametrize("api", ["hook", "parametrizations"])
@pytest.mark.parametrize("activation", [None, "relu"])
def test_to_torch_and_back(api, activation):
    model, x = network(activation=activation), torch.randn(2, 2, 4, 4)
    parameters, objects = list(model.parameters()), list(model)
    expected = result(model, x)
    model.zero_grad()
    result(model, x)
    gradients = [p.grad.clone() for p in parameters]
    assert wnfused.to_torch(model, api=api) == 3
    assert not any(isinstance(m, WNConv2d | WNConvTranspose2d | WNLinear) for m in model.modules())
    assert list(model) == objects
    assert [id(p) for p in model.parameters()] == [id(p) for p in parameters]
    layer = model[0] if activation is None else model[0][0]
    if api == "hook":
        assert len(layer._forward_pre_hooks) == 1
    else:
        assert parametrize.is_parametrized(layer, "weight")
    model.zero_grad()
    for mine, theirs in zip(result(model, x), expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)
    for p, gradient in zip(parameters, gradients, strict=True):
        torch.testing.assert_close(p.grad, gradient, rtol=1e-4, atol=1e-4)
    assert wnfused.to_torch(model, api=api) == 0
    assert wnfused.convert(model).count == 3
    torch.testing.assert_close(result(model, x)[0], expected[0], rtol=1e-5, atol=1e-5)
    assert [id(p) for p in model.parameters()] == [id(p) for p in parameters]


def test_to_torch_root_equals_torchs_own():
    layer = perturb(WNConvTranspose1d(3, 4, 5, stride=2))
    reference = nn.utils.parametrizations.weight_norm(nn.ConvTranspose1d(3, 4, 5, stride=2))
    wnfused.to_torch(layer)
    reference.load_state_dict(layer.state_dict())
    assert repr(layer) == repr(reference)
    assert list(layer.state_dict()) == list(reference.state_dict())
    hooked = perturb(WNConvTranspose1d(3, 4, 5, stride=2))
    wnfused.to_torch(hooked, api="hook")
    layer.load_state_dict(hooked.state_dict())  # the new API reads the older one's keys
    x = torch.randn(1, 3, 6)
    torch.testing.assert_close(layer(x), hooked(x))
    nn.utils.remove_weight_norm(hooked)
    torch.testing.assert_close(layer(x), hooked(x))


def test_to_torch_raises_before_anything_changes():
    model = nn.Sequential(WNLinear(3, 3), WNLinear(3, 3, eps=1e-6))
    with pytest.raises(ValueError, match="eps=1e-06"):
        wnfused.to_torch(model)
    assert type(model[0]) is WNLinear
    with pytest.raises(ValueError, match="api"):
        wnfused.to_torch(model, api="old")
    with pytest.raises(TypeError, match="model"):
        wnfused.to_torch(None)


@pytest.mark.parametrize(
    "use",
    [
        lambda model: model(torch.randn(2, 4)),
        lambda model: model.eval(),
        lambda model: model.conv1,
        lambda model: model.remove_weight_norm(),
        lambda model: model[0],
        lambda model: list(model),
    ],
)
def test_a_report_taken_for_the_model_explains(use):
    report = wnfused.fold(WNLinear(4, 3))
    with pytest.raises((TypeError, AttributeError), match="report of wnfused, not the model; .* changed in place"):
        use(report)
    assert copy.deepcopy(report) == report == 1
