"""Recurrent layers under torch's norms: they stay torch's, and wnfused's operator computes the norm."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import wnfused

pytestmark = pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")

APIS = {"hook": nn.utils.weight_norm, "parametrizations": parametrizations.weight_norm}


@pytest.fixture(params=list(APIS))
def weight_norm(request):
    return APIS[request.param]


def lstm(weight_norm, *names):
    torch.manual_seed(0)
    layer = nn.LSTM(3, 4, batch_first=True).double()
    for name in names or ("weight_hh_l0",):
        weight_norm(layer, name)
    return layer


def run(layer, x):
    layer.zero_grad()
    y = layer(x)[0]
    y.square().sum().backward()
    return [y.detach(), *(p.grad.clone() for p in layer.parameters())]


@pytest.mark.parametrize("names", [("weight_hh_l0",), ("weight_hh_l0", "weight_ih_l0")])
def test_a_round_trip_keeps_results(weight_norm, names):
    layer, x = lstm(weight_norm, *names), torch.randn(2, 5, 3, dtype=torch.float64)
    expected = run(layer, x)
    report = wnfused.convert(layer)
    assert report.converted == []
    assert report.norms_only == [""]
    assert "LSTM has no fused counterpart" in str(report)
    assert "wnfused's operator computes its norm" in str(report)
    with torch.profiler.profile() as profile:
        layer(x)
    assert "wnfused::weight_norm" in {event.key for event in profile.key_averages()}
    for mine, theirs in zip(run(layer, x), expected, strict=True):
        torch.testing.assert_close(mine, theirs)
    assert wnfused.to_torch(layer) == 1
    with torch.profiler.profile() as profile:
        layer(x)
    assert "wnfused::weight_norm" not in {event.key for event in profile.key_averages()}
    wnfused.convert(layer)
    assert wnfused.fold(layer) == 1
    torch.testing.assert_close(layer(x)[0], expected[0])
    assert sorted(layer.state_dict()) == sorted(nn.LSTM(3, 4).state_dict())


def test_rows_of_zeros_give_no_nan(weight_norm):
    layer, x = lstm(weight_norm), torch.randn(2, 5, 3, dtype=torch.float64)
    wnfused.convert(layer)
    v = dict(layer.named_parameters())
    v = v.get("weight_hh_l0_v", v.get("parametrizations.weight_hh_l0.original1"))
    with torch.no_grad():
        v[1] = 0
    assert all(value.isfinite().all() for value in run(layer, x))


def test_the_filter():
    layer = lstm(parametrizations.weight_norm)
    assert wnfused.convert(layer, filter=lambda name, module: False).norms_only == []
