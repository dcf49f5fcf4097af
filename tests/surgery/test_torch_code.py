"""Code written for torch's two weight norms, run on wnfused's layers: removal, detection, a second norm, keys."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import wnfused
from wnfused import WNConv1d, WNLinear
from wnfused.nn.base import WeightNormalized

pytestmark = pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")

APIS = {"hook": nn.utils.weight_norm, "parametrizations": parametrizations.weight_norm}
REMOVALS = {
    "hook": nn.utils.remove_weight_norm,
    "parametrizations": lambda layer: parametrize.remove_parametrizations(layer, "weight"),
}


class Causal(nn.Conv1d):
    def forward(self, x):
        return super().forward(nn.functional.pad(x, (2, 0)))


@pytest.fixture(params=list(APIS))
def weight_norm(request):
    return APIS[request.param]


@pytest.fixture(params=list(REMOVALS))
def remove(request):
    return REMOVALS[request.param]


def converted(weight_norm, kind=nn.Conv1d, dim=0):
    torch.manual_seed(0)
    layer = weight_norm(kind(4, 6, 3), dim=dim)
    with torch.no_grad():
        for p in layer.parameters():
            p.mul_(1 + torch.rand_like(p))
    assert wnfused.convert(layer) == 1
    return layer


@pytest.mark.parametrize("kind", [nn.Conv1d, Causal])
@pytest.mark.parametrize("trained", [True, False])
def test_removal_folds(weight_norm, remove, kind, trained):
    layer, x = converted(weight_norm, kind), torch.randn(2, 4, 9)
    seen = []
    layer.register_forward_pre_hook(lambda module, args: seen.append("mine"))
    layer.requires_grad_(trained)
    expected = layer(x)
    assert remove(layer) is layer
    assert type(layer) is kind
    assert sorted(layer.state_dict()) == ["bias", "weight"]
    assert vars(layer).keys() == vars(kind(4, 6, 3)).keys()
    assert layer.weight.requires_grad == trained
    torch.testing.assert_close(layer(x), expected)
    assert seen == ["mine", "mine"]
    with pytest.raises(ValueError, match="not found in|does not have a parametrization"):
        remove(layer)
    torch.testing.assert_close(copy.deepcopy(layer)(x), expected)


def test_removal_from_a_layer_built_as_ours(remove):
    layer, x = WNConv1d(4, 6, 3), torch.randn(2, 4, 9)
    expected = layer(x)
    remove(layer)
    assert type(layer) is nn.Conv1d
    torch.testing.assert_close(layer(x), expected)


def test_removal_of_a_fused_relu():
    layer, x = WNLinear(4, 6, activation="relu"), torch.randn(3, 4)
    expected = layer(x)
    with pytest.raises(RuntimeError, match=r"cannot keep activation='relu'; call wnfused\.fold"):
        parametrize.remove_parametrizations(layer, "weight")
    assert torch.equal(layer(x), expected)
    nn.utils.remove_weight_norm(layer)
    torch.testing.assert_close(layer(x), expected)


def test_removal_after_a_copy(remove):
    layer = copy.deepcopy(converted(nn.utils.weight_norm))
    remove(layer)
    assert type(layer) is nn.Conv1d


def test_detection(weight_norm):
    layer = converted(weight_norm)
    assert hasattr(layer, "weight_g")
    assert parametrize.is_parametrized(layer)
    assert parametrize.is_parametrized(layer, "weight")
    assert not parametrize.is_parametrized(layer, "bias")
    assert list(layer.parametrizations) == ["weight"]
    assert layer.parametrizations.weight.original0 is layer.weight_g
    assert layer.parametrizations["weight"].original1 is layer.weight_v
    assert [type(step).__name__ for step in layer.parametrizations.weight] == ["_WeightNorm"]
    torch.testing.assert_close(layer.parametrizations.weight(), layer.weight)
    assert [type(hook).__name__ for hook in layer._forward_pre_hooks.values()] == ["FusedNorm"]
    assert len(list(layer.modules())) == 1


@pytest.mark.parametrize("dim", [0, 1])
def test_a_second_norm(dim):
    layer = converted(parametrizations.weight_norm, dim=dim)
    x, keys = torch.randn(2, 4, 9), list(layer.state_dict())
    expected = layer(x)
    with pytest.raises(RuntimeError, match="Cannot register two weight_norm hooks"):  # as on torch's own
        nn.utils.weight_norm(layer)
    parametrizations.weight_norm(layer, dim=dim)
    assert list(layer.state_dict()) == keys
    layer.load_state_dict(layer.state_dict())
    torch.testing.assert_close(layer(x), expected)
    with pytest.raises(RuntimeError, match="takes no second parametrization"):
        parametrizations.weight_norm(layer, dim=2)
    with pytest.raises(RuntimeError, match="takes no second parametrization"):
        parametrizations.orthogonal(layer)
    assert torch.equal(layer(x), expected)


class Doubled(nn.Module):
    def forward(self, b):
        return 2 * b


def test_the_bias_of_one_layer_can_be_parametrized():
    layer, other, x = WNLinear(4, 6), WNLinear(4, 6), torch.randn(2, 4)
    expected, bias = layer(x), layer.bias.detach()
    parametrize.register_parametrization(layer, "bias", Doubled())
    torch.testing.assert_close(layer(x), expected + bias)
    parametrize.register_parametrization(layer, "weight_g", Doubled())
    torch.testing.assert_close(layer(x), 2 * expected)
    assert isinstance(other.bias, nn.Parameter)
    assert not hasattr(WNLinear, "bias")
    for name in ("bias", "weight_g"):
        parametrize.remove_parametrizations(layer, name, leave_parametrized=False)
    assert type(layer) is WNLinear
    assert parametrize.is_parametrized(layer, "weight")
    torch.testing.assert_close(layer(x), expected)


@pytest.mark.parametrize("api", list(APIS))
def test_state_dicts_travel_both_ways(weight_norm, api):
    layer, theirs = converted(weight_norm), APIS[api](nn.Conv1d(4, 6, 3))
    x = torch.randn(2, 4, 9)
    theirs.load_state_dict(wnfused.state_dict(layer, spelling=api))
    torch.testing.assert_close(theirs(x), layer(x))
    theirs.load_state_dict(layer.state_dict())  # torch's parametrization has a hook that renames our keys
    with torch.no_grad():
        for p in theirs.parameters():
            p.add_(0.1)
    layer.load_state_dict(theirs.state_dict())
    torch.testing.assert_close(theirs(x), layer(x))


class Vocoder(nn.Module):
    """As HiFi-GAN's generator: it calls torch's function on each layer."""

    def __init__(self, weight_norm):
        super().__init__()
        self.ups = nn.ModuleList([weight_norm(nn.ConvTranspose1d(4, 4, 4, 2)), weight_norm(nn.Conv1d(4, 2, 3))])
        self.hook = weight_norm is nn.utils.weight_norm

    def forward(self, x):
        for layer in self.ups:
            x = layer(x)
        return x

    def remove_weight_norm(self):
        for layer in self.ups:
            nn.utils.remove_weight_norm(layer) if self.hook else parametrize.remove_parametrizations(layer, "weight")
        return "removed"


@pytest.mark.parametrize("steps", ["convert", "convert fold", "fold", "convert to_torch"])
def test_a_models_own_removal(weight_norm, steps):
    torch.manual_seed(0)
    model, x = Vocoder(weight_norm), torch.randn(2, 4, 9)
    expected = model(x)
    for step in steps.split():
        api = {"api": "hook" if model.hook else "parametrizations"} if step == "to_torch" else {}
        assert getattr(wnfused, step)(model, **api) == 2
    assert model.remove_weight_norm() == (None if "fold" in steps else "removed")
    assert [type(m) for m in model.ups] == [nn.ConvTranspose1d, nn.Conv1d]
    torch.testing.assert_close(model(x), expected)
    again = copy.deepcopy(model)
    wnfused.apply(again)  # the layers carry a norm again, so the method has work to do
    assert any(isinstance(m, WeightNormalized) for m in again.modules())
    assert again.remove_weight_norm() == "removed"
    assert not any(isinstance(m, WeightNormalized) for m in again.modules())
