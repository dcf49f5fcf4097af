"""Gains by hand and directions, for every kind of layer, weight norm and dim."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import wnfused
from tests.support.init_cases import APIS, LAYERS, apis, layers, normalize, rows, seeded
from wnfused.init import gain, he_, robust_layer_, torch_default_
from wnfused.init.layers import layer_of

pytestmark = pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")


# Gains


def test_gain():
    assert gain(300, 150, 2) == 2.0
    assert gain(150, 300, 1) == math.sqrt(0.5)
    assert gain(16, 16, 1 / 4) == 0.5
    assert gain(5, 7, 0) == 0
    assert gain(np.int64(16), np.int32(16), np.float32(0.25)) == 0.5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 3, 2), "gain: fan_in: expected a finite number > 0, got 0"),
        ((3, 0, 2), "gain: fan_out: expected a finite number > 0, got 0"),
        ((3, math.inf, 2), "gain: fan_out"),
        ((3, 3, -1), "gain: gamma: expected a finite number >= 0, got -1"),
        ((3, 3, math.nan), "gain: gamma"),
        ((3, 3, "relu"), "gain: gamma: .* got 'relu'"),
    ],
)
def test_gain_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        gain(*arguments)


@layers
@apis
@pytest.mark.parametrize("distribution", ["orthogonal", "he"])
def test_every_row_has_the_gain_by_hand(plain, fan_in, fan_out, api, distribution):
    layer = plain()
    transposed, groups = isinstance(layer, nn.modules.conv._ConvTransposeNd), getattr(layer, "groups", 1)
    normalize(layer, api, dim=1 if transposed else 0)
    for variant, expected in (("forward", math.sqrt(2 * fan_in / fan_out)), ("backward", math.sqrt(2))):
        robust_layer_(layer, 2, variant=variant, distribution=distribution)
        norms = rows(layer).norm(dim=-1)
        if transposed and groups > 1:  # one gain for the outputs at the same place in each group
            norms = norms.square().mean().sqrt()
        torch.testing.assert_close(norms, torch.full_like(norms, expected))
        assert layer.bias is None or not layer.bias.any()


@layers
@apis
def test_other_dims_have_the_same_scale(plain, fan_in, fan_out, api):
    for dim in (*range(plain().weight.ndim), None):
        layer = normalize(plain(), api, dim)
        robust_layer_(layer, 0.5)
        g = layer_of("test", layer).g
        assert (g == g.flatten()[0]).all()
        mean_square = rows(layer).square().sum(-1).mean()
        torch.testing.assert_close(mean_square, torch.tensor(0.5 * fan_in / fan_out))


def test_gains_of_other_dims_by_hand():
    layer = wnfused.WNConvTranspose1d(6, 4, 5)  # dim=0: the input channel
    robust_layer_(layer, 2)
    torch.testing.assert_close(layer.weight_g, torch.full((6, 1, 1), math.sqrt(2)))
    layer = wnfused.WNLinear(6, 4, dim=None)
    robust_layer_(layer, 2)
    torch.testing.assert_close(layer.weight_g, torch.tensor(math.sqrt(2 * 6 / 4) * 2).expand_as(layer.weight_g))


# Directions


@layers
@apis
def test_orthogonal_group_by_group(plain, fan_in, fan_out, api):
    layer = normalize(plain(), api)
    robust_layer_(layer, 1)
    one = layer_of("test", layer)
    for matrix in one.to_matrices(one.v.detach()):
        small = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
        torch.testing.assert_close(small @ small.T, torch.eye(len(small)))
    assert one.to_matrices(one.v).shape[-1] == fan_in
    torch.testing.assert_close(one.from_matrices(one.to_matrices(one.v)), one.v)


def test_orthogonal_rows_stay_orthogonal_in_the_weight():
    layer = wnfused.WNConv2d(6, 9, 3, groups=3)
    robust_layer_(layer, 1)
    for matrix in rows(layer):
        torch.testing.assert_close(matrix @ matrix.T, 18 / 27 * torch.eye(3))


@pytest.mark.parametrize("plain", [lambda: nn.Linear(7, 5), lambda: nn.Linear(5, 7), lambda: nn.Conv2d(3, 40, 3)])
def test_one_group_is_torchs_orthogonal(plain):
    layer = normalize(plain(), "wnfused")
    robust_layer_(layer, 1, generator=seeded())
    torch.testing.assert_close(layer.weight_v, nn.init.orthogonal_(plain().weight, generator=seeded()))


def test_he_directions_have_their_variance():
    layer = wnfused.WNConv2d(40, 50, 3, groups=2)
    robust_layer_(layer, 1, distribution="he")
    assert abs(layer.weight_v.var() * 9 * 20 - 1) < 0.06
    he_(layer)
    assert abs(layer.weight_v.var() * 9 * 20 - 2) < 0.12
    assert (layer.weight_g == 1).all()
    assert not layer.bias.any()


def test_torch_default_is_torchs():
    for plain, _, _ in LAYERS:
        torch.manual_seed(3)
        new = plain()
        for api in APIS:
            layer = normalize(plain(), api)
            torch_default_(layer, generator=seeded(3))
            torch.testing.assert_close(layer.weight, new.weight)
            assert new.bias is None or torch.equal(layer.bias, new.bias)
