"""Activations that a model defines itself: Snake and SnakeBeta, with parameters per channel, scripted or not."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from wnfused import WNConv1d
from wnfused.init import infer_roles, robust_

X = torch.randn(2, 6, 40, generator=torch.Generator().manual_seed(0))
Z = torch.linspace(-8, 8, 16_001, dtype=torch.float64)


class Snake(nn.Module):
    def __init__(self, channels, alpha=1.0):
        super().__init__()
        self.alpha = nn.Parameter(torch.full((1, channels, 1), alpha))

    def forward(self, x):
        shape = x.shape
        x = x.reshape(shape[0], shape[1], -1)
        x = x + (self.alpha + 1e-9).reciprocal() * torch.sin(self.alpha * x).pow(2)
        return x.reshape(shape)


class SnakeBeta(nn.Module):
    """As in BigVGAN: parameters on a log scale, and a magnitude of its own."""

    def __init__(self, channels):
        super().__init__()
        self.alpha, self.beta = nn.Parameter(torch.full((channels,), 0.3)), nn.Parameter(torch.full((channels,), -0.2))

    def forward(self, x):
        alpha, beta = self.alpha.exp()[None, :, None], self.beta.exp()[None, :, None]
        return x + (1.0 / (beta + 1e-9)) * torch.pow(torch.sin(x * alpha), 2)


def _snake(x, alpha):
    return x + (alpha + 1e-9).reciprocal() * torch.sin(alpha * x).pow(2)


class ScriptedSnake(Snake):
    """As in the Descript Audio Codec."""

    def __init__(self, channels):
        super().__init__(channels)
        self.function = torch.jit.script(_snake)

    def forward(self, x):
        return self.function(x, self.alpha)


class Scale(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.gamma = nn.Parameter(torch.full((channels, 1), 0.5))

    def forward(self, x):
        return x * self.gamma


class Norm(nn.Module):
    def forward(self, x):
        return x / x.square().mean(1, keepdim=True).sqrt()


def expected(alpha, beta):
    density = torch.exp(-Z.square() / 2) / math.sqrt(2 * math.pi)
    return 1 / torch.trapezoid((Z + torch.sin(alpha * Z).square() / beta).square() * density, Z).item()


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize(
    ("activation", "gamma"),
    [
        (Snake(8), expected(1, 1)),
        (Snake(8, alpha=3.0), expected(3, 3)),
        (ScriptedSnake(8), expected(1, 1)),
        (SnakeBeta(8), expected(math.exp(0.3), math.exp(-0.2))),
    ],
    ids=["snake", "alpha 3", "scripted", "snakebeta"],
)
def test_gamma(activation, gamma):
    model = nn.Sequential(WNConv1d(6, 8, 7), activation, WNConv1d(8, 4, 3))
    roles = infer_roles(model, X)
    assert roles["0"].kind == type(activation).__name__.lower()
    assert roles["0"].gamma == pytest.approx(gamma, rel=1e-3)
    assert roles["0"].why == f"feeds 1 ({type(activation).__name__})"
    assert roles["2"].kind == "other"
    robust_(model, X)


class Unit(nn.Module):
    """DAC's residual unit."""

    def __init__(self):
        super().__init__()
        self.block = nn.Sequential(Snake(8), WNConv1d(8, 8, 7, padding=3), Snake(8), WNConv1d(8, 8, 1))

    def forward(self, x):
        return x + self.block(x)


def test_in_residual_units():
    model = nn.Sequential(WNConv1d(6, 8, 7), Unit(), Unit(), Snake(8), WNConv1d(8, 1, 7), nn.Tanh())
    roles = {name: (role.kind, round(role.gamma, 3)) for name, role in infer_roles(model, X).items()}
    gamma = round(expected(1, 1), 3)
    assert roles["1.block.1"] == roles["2.block.1"] == ("snake", gamma)
    assert roles["1.block.3"] == roles["2.block.3"] == ("residual_end", 0.5)


@pytest.mark.parametrize("module", [Scale(8), Norm()])
def test_other_modules_are_no_activations(module):
    model = nn.Sequential(WNConv1d(6, 8, 7), module, nn.ReLU())
    kind = infer_roles(model, X)["0"].kind
    assert kind == ("before_relu" if isinstance(module, Scale) else "other")


class AliasFree(nn.Module):
    """As in BigVGAN: the activation runs at twice the rate, between two fixed filters."""

    def __init__(self, channels, learned=False):
        super().__init__()
        self.activation = SnakeBeta(channels)
        taps = torch.full((1, 1, 4), 0.25)
        self.register_parameter("taps", nn.Parameter(taps)) if learned else self.register_buffer("taps", taps)

    def forward(self, x):
        taps = self.taps.expand(x.shape[1], -1, -1)
        x = 2 * F.conv_transpose1d(F.pad(x, (2, 2)), taps, stride=2, groups=x.shape[1])[..., 4:-4]
        return F.conv1d(F.pad(self.activation(x), (1, 2)), taps, stride=2, groups=x.shape[1])


@pytest.mark.parametrize("learned", [False, True])
def test_an_activation_between_fixed_filters(learned):
    def conv():
        return WNConv1d(6, 6, 3, padding=1)

    plain = infer_roles(nn.Sequential(conv(), SnakeBeta(6), conv()), X)["0"]
    role = infer_roles(nn.Sequential(conv(), AliasFree(6, learned), conv()), X)["0"]
    assert (role.kind, role.gamma) == (("other", 1.0) if learned else ("snakebeta", plain.gamma))
