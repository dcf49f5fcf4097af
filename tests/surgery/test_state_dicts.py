"""Checkpoints are interchangeable among torch's two weight norms, plain models and wnfused, in every direction."""

import pytest
import torch
from torch import nn

import wnfused
from wnfused import WNConv1d, WNConvTranspose1d, WNLinear

pytestmark = pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")

APIS = {"hook": nn.utils.weight_norm, "parametrizations": nn.utils.parametrizations.weight_norm}
SPELLED = {
    "hook": ["weight_g", "weight_v"],
    "parametrizations": ["parametrizations.weight.original0", "parametrizations.weight.original1"],
}


def torch_model(api, seed=0):
    torch.manual_seed(seed)
    weight_norm = APIS[api]
    model = nn.ModuleDict(
        {
            "conv": weight_norm(nn.Conv1d(3, 4, 3)),
            "norm": nn.BatchNorm1d(4),
            "up": weight_norm(nn.ConvTranspose1d(4, 2, 3, bias=False), dim=1),
            "head": nn.Sequential(weight_norm(nn.Linear(8, 5), dim=None)),
        }
    )
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p), alpha=0.2)
    return model


def our_model():
    return nn.ModuleDict(
        {
            "conv": WNConv1d(3, 4, 3),
            "norm": nn.BatchNorm1d(4),
            "up": WNConvTranspose1d(4, 2, 3, bias=False, dim=1),
            "head": nn.Sequential(WNLinear(8, 5, dim=None)),
        }
    )


def output(model, x):
    return model["head"](model["up"](model["norm"](model["conv"](x))))


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("api", list(APIS))
def test_loads_both_spellings(api, assign):
    theirs, ours, x = torch_model(api), our_model(), torch.randn(2, 3, 8)
    result = ours.load_state_dict(theirs.state_dict(), strict=True, assign=assign)
    assert (result.missing_keys, result.unexpected_keys) == ([], [])
    torch.testing.assert_close(output(ours, x), output(theirs, x), rtol=1e-5, atol=1e-5)
    assert all(isinstance(p, nn.Parameter) and p.requires_grad for p in ours.parameters())


@pytest.mark.parametrize("api", list(APIS))
@pytest.mark.parametrize("spelling", list(SPELLED))
def test_saves_in_either_spelling(api, spelling):
    model = torch_model(api)
    x = torch.randn(2, 3, 8)
    expected = output(model.eval(), x)
    wnfused.convert(model)
    state = wnfused.state_dict(model, spelling=spelling)
    other = torch_model(spelling, seed=1).eval()
    assert list(state) == list(other.state_dict())  # the original's keys in the original's order
    assert state._metadata == model.state_dict()._metadata
    other.load_state_dict(state, strict=True)
    torch.testing.assert_close(output(other, x), expected, rtol=1e-5, atol=1e-5)
    ours = our_model().eval()
    ours.load_state_dict(state, strict=True)
    torch.testing.assert_close(output(ours, x), expected, rtol=1e-5, atol=1e-5)


def test_default_state_dict_is_the_older_spelling():
    model = our_model()
    assert list(model.state_dict()) == list(torch_model("hook").state_dict())
    assert list(wnfused.state_dict(model)) == list(torch_model("parametrizations").state_dict())
    assert list(wnfused.state_dict(WNLinear(2, 3), spelling="hook")) == ["bias", "weight_g", "weight_v"]
    assert wnfused.state_dict(model, keep_vars=True)["conv.bias"] is model["conv"].bias
    with pytest.raises(ValueError, match="spelling"):
        wnfused.state_dict(model, spelling="old")


def test_shared_layers_are_renamed_everywhere():
    shared = WNLinear(3, 3, bias=False)
    state = wnfused.state_dict(nn.ModuleDict({"a": shared, "b": shared}))
    assert list(state) == [f"{name}.{key}" for name in "ab" for key in SPELLED["parametrizations"]]


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("eps", [0.0, 0.5])
def test_a_plain_checkpoint_gives_the_plain_outputs(eps, assign):
    plain = nn.Sequential(nn.Conv1d(3, 4, 3), nn.ReLU(), nn.ConvTranspose1d(4, 2, 3))
    ours = nn.Sequential(WNConv1d(3, 4, 3, eps=eps), nn.ReLU(), WNConvTranspose1d(4, 2, 3, dim=None, eps=eps))
    ours.load_state_dict(plain.state_dict(), strict=True, assign=assign)
    x = torch.randn(2, 3, 8)
    torch.testing.assert_close(ours(x), plain(x), rtol=1e-5, atol=1e-6)
    low = {key: value.to(torch.bfloat16) for key, value in plain.state_dict().items()}
    ours.float().load_state_dict(low)
    plain.load_state_dict(low)
    torch.testing.assert_close(ours(x), plain(x), rtol=1e-5, atol=1e-6)  # norms are computed in the layer's precision


def test_fold_and_load_back():
    model, other = our_model().eval(), our_model().eval()
    x = torch.randn(2, 3, 8)
    expected = output(model, x)
    wnfused.fold(model)
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(output(other, x), expected, rtol=1e-5, atol=1e-6)


def test_strict_errors_name_the_keys():
    model = our_model()
    state = torch_model("parametrizations").state_dict()
    del state["conv.parametrizations.weight.original1"]
    state["conv.extra"] = torch.zeros(1)
    with pytest.raises(RuntimeError, match=r'Missing key.*"conv.weight_v"[\s\S]*Unexpected key.*"conv.extra"'):
        model.load_state_dict(state)
    result = model.load_state_dict(state, strict=False)
    assert result.missing_keys == ["conv.weight_v"]
    assert result.unexpected_keys == ["conv.extra"]


def test_ambiguous_and_misshaped_weights_raise():
    layer = WNLinear(3, 4)
    both = {**layer.state_dict(), "weight": torch.zeros(4, 3)}
    with pytest.raises(RuntimeError, match=r'Unexpected key.*"weight"'):
        layer.load_state_dict(both)
    twice = {**layer.state_dict(), **wnfused.state_dict(layer)}
    with pytest.raises(RuntimeError, match=r"Unexpected key.*original0"):
        layer.load_state_dict(twice)
    with pytest.raises(RuntimeError, match=r"size mismatch for weight_v"):
        layer.load_state_dict({"weight": torch.zeros(4, 5), "bias": torch.zeros(4)})


def test_loading_does_not_modify_the_checkpoint():
    layer = WNLinear(3, 4)
    for state in (wnfused.state_dict(layer), nn.Linear(3, 4).state_dict()):
        keys = list(state)
        layer.load_state_dict(state)
        assert list(state) == keys


def test_assign_to_a_meta_model():
    with torch.device("meta"):
        ours = our_model()
    theirs = torch_model("parametrizations")
    ours.load_state_dict(theirs.state_dict(), assign=True)
    assert not any(p.is_meta for p in ours.parameters())
    x = torch.randn(2, 3, 8)
    torch.testing.assert_close(output(ours.eval(), x), output(theirs.eval(), x), rtol=1e-5, atol=1e-5)
