"""Roles before gated units, and in residual networks with a ReLU after the sum."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from wnfused import WNConv1d, WNConv2d, WNLinear
from wnfused.init import infer_roles, robust_

SIGMOID, TANH, SILU = 3.41, 2.536, 2.81
X = torch.randn(64, 200, generator=torch.Generator().manual_seed(0))


class Layers(nn.Module):
    """A chain of gated units, from one layer of twice the width or from two layers."""

    def __init__(self, unit, depth=3, pairs=False):
        super().__init__()
        width = 200 if pairs else 400
        self.first = nn.ModuleList(WNLinear(200, width) for _ in range(depth))
        self.second = nn.ModuleList(WNLinear(200, width) for _ in range(depth if pairs else 0))
        self.unit = unit

    def forward(self, x):
        for i, layer in enumerate(self.first):
            x = self.unit(layer(x), self.second[i](x)) if self.second else self.unit(layer(x))
        return x


def wavenet(y):
    a, b = y.chunk(2, -1)
    return torch.tanh(a) * torch.sigmoid(b)


UNITS = {
    "wavenet": (wavenet, False, 2 * TANH * SIGMOID),
    "glu": (lambda y: F.glu(y, -1), False, 2 * SIGMOID),
    "glu written out": (lambda y: y[..., :200] * torch.sigmoid(y[..., 200:]), False, 2 * SIGMOID),
    "swiglu": (lambda y: F.silu(y[..., :200]) * y[..., 200:], False, 2 * SILU),
    "two layers": (lambda a, b: torch.tanh(a) * torch.sigmoid(b), True, TANH * SIGMOID),
    "swiglu of two layers": (lambda a, b: F.silu(a) * b, True, SILU),
}


@pytest.mark.parametrize("name", list(UNITS))
def test_gated_units(name):
    unit, pairs, gamma = UNITS[name]
    roles = infer_roles(Layers(unit, pairs=pairs), X)
    assert len(roles) == (6 if pairs else 3)
    assert {role.kind for role in roles.values()} == {"gated"}
    assert [role.gamma for role in roles.values()] == pytest.approx([gamma] * len(roles), rel=0.01)
    assert ("one side of" if pairs else "both sides of") in roles["first.0"].why


@pytest.mark.parametrize("name", list(UNITS))
def test_pre_activations_have_variance_one(name):
    """The first layer reads the output of such a unit, whose mean square is 1/γ (2/γ for halves)."""
    torch.manual_seed(0)
    unit, pairs, gamma = UNITS[name]
    model = Layers(unit, depth=1, pairs=pairs)
    robust_(model, X)
    pre = model.first[0](X * ((1 if pairs else 2) / gamma) ** 0.5)
    assert pre.square().mean().item() == pytest.approx(1, rel=0.05)


def test_a_causal_convolution_that_is_cut_before_the_gate():
    """WaveNets pad on both sides and drop the last steps: the gate is then less than half of the layer's output."""

    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.dilated, self.skip = WNConv1d(8, 16, 3, padding=4, dilation=2), WNConv1d(8, 8, 1)

        def forward(self, x):
            a, b = self.dilated(x)[:, :, : x.shape[-1]].split(8, dim=1)
            return self.skip(torch.tanh(a) * torch.sigmoid(b))

    role = infer_roles(Gated(), torch.randn(1, 8, 20))["dilated"]
    assert (role.kind, role.gamma) == ("gated", pytest.approx(2 * TANH * SIGMOID, rel=0.01))


def test_products_that_are_not_gated_units():
    other = {
        "same value": Layers(lambda y: (torch.tanh(y) * torch.sigmoid(y))[..., :200], depth=1),
        "no activation": Layers(lambda y: y[..., :200] * y[..., 200:], depth=1),
        "branch": Layers(lambda y: F.glu(y, -1) + X, depth=1),
    }
    kinds = {name: infer_roles(model, X)["first.0"].kind for name, model in other.items()}
    assert kinds == {"same value": "other", "no activation": "other", "branch": "gated"}

    class Residual(Layers):
        def forward(self, x):
            return x + F.glu(self.first[0](x), -1)

    role = infer_roles(Residual(None, depth=1), X)["first.0"]
    assert (role.kind, role.gamma) == ("other", 1.0)
    assert "a gated unit at the end of a residual branch" in role.why


class BasicBlock(nn.Module):
    """torchvision's block, with weight norm instead of batch norm."""

    def __init__(self, inputs, width, stride=1):
        super().__init__()
        self.conv1 = WNConv2d(inputs, width, 3, stride, 1, bias=False)
        self.conv2 = WNConv2d(width, width, 3, 1, 1, bias=False)
        self.downsample = WNConv2d(inputs, width, 1, stride, bias=False) if stride > 1 else None

    def forward(self, x):
        identity = x if self.downsample is None else self.downsample(x)
        return F.relu(identity + self.conv2(F.relu(self.conv1(x))))


def test_relu_after_the_residual_sum():
    stem = [WNConv2d(3, 8, 7, 2, 3), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    model = nn.Sequential(*stem, BasicBlock(8, 8), BasicBlock(8, 8), BasicBlock(8, 16, 2), BasicBlock(16, 16))
    roles = infer_roles(model, torch.randn(1, 3, 32, 32))
    assert (roles["0"].kind, roles["0"].gamma) == ("before_relu", 2)
    for i in range(3, 7):
        assert (roles[f"{i}.conv1"].kind, roles[f"{i}.conv1"].gamma) == ("before_relu", 2)
        assert (roles[f"{i}.conv2"].kind, roles[f"{i}.conv2"].gamma) == ("residual_end", 0.5)
    assert roles["5.downsample"].kind == "shortcut"


@pytest.mark.parametrize("blocks", [1, 10, 40])
def test_the_norm_with_a_relu_after_the_sum(blocks):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = WNLinear(200, 200), WNLinear(200, 200)

        def forward(self, x):
            return F.relu(x + self.b(F.relu(self.a(x))))

    torch.manual_seed(0)
    model, x = nn.Sequential(*(Block() for _ in range(blocks))), X.relu()
    robust_(model, x)
    assert 1.2 < (model(x).norm() / x.norm()).item() < 1.7
