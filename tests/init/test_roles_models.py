"""Roles in whole networks: this project's, and those of others."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from tests.support.role_models import IMAGE, Model, X, branches, old_norm
from wnfused import WNConv1d, WNConvTranspose1d, apply
from wnfused.init.roles import infer_roles
from wnfused.models import CNN, MLP, WRN, ResNet


def test_mlp_and_cnn() -> None:
    for model, example in ((MLP(3, 16, inputs=8), X), (CNN(4, channels=8), IMAGE)):
        roles = infer_roles(model, example)
        assert all(role.kind == "before_relu" and role.gamma == 2 for role in roles.values())
        assert len(roles) == (3 if isinstance(model, MLP) else 4)


def check_stages(model: nn.Module, blocks: int, last: int) -> None:
    roles = infer_roles(model, IMAGE)
    for name, role in roles.items():
        if name.endswith("shortcut"):
            expected = ("shortcut", 1.0)
        elif name.endswith(f"branch.{last}"):
            expected = ("residual_end", 1 / blocks)
        elif name == "stem" and isinstance(model, WRN):
            expected = ("other", 1.0)
        else:
            expected = ("before_relu", 2.0)
        assert (role.kind, role.gamma) == expected, (name, role)
    assert len(branches(model, IMAGE)) == 3 * blocks


def test_basic_resnet() -> None:
    check_stages(ResNet(20), blocks=3, last=1)
    assert "in a stage of 3 blocks" in infer_roles(ResNet(20), IMAGE)["stages.1.2.branch.1"].why


def test_bottleneck_resnet() -> None:
    check_stages(ResNet(20, bottleneck=True), blocks=2, last=2)


@pytest.mark.parametrize("k", [1, 2])
def test_wide_resnet(k: int) -> None:
    check_stages(WRN(16, k), blocks=2, last=1)
    assert "where a residual block forks" in infer_roles(WRN(16, k), IMAGE)["stem"].why


NETWORKS: dict[str, Callable[[str], nn.Module]] = {
    "MLP": lambda norm: MLP(3, 8, inputs=768, norm=norm),
    "CNN": lambda norm: CNN(3, channels=4, norm=norm),
    "ResNet": lambda norm: ResNet(14, norm=norm),
    "bottleneck": lambda norm: ResNet(20, bottleneck=True, norm=norm),
    "WRN": lambda norm: WRN(16, norm=norm),
}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("put_on", [old_norm, parametrizations.weight_norm, apply], ids=["hook", "new", "ours"])
def test_networks_without_fused_relus(name: str, put_on: Callable[[nn.Module], Any]) -> None:
    """The variant without normalization, weight-normalized by anyone: its ReLUs are modules of their own."""
    model = NETWORKS[name]("none")
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear) and module is not model.head:
            put_on(module)
    roles, ours = infer_roles(model, IMAGE), infer_roles(NETWORKS[name]("weight"), IMAGE)
    assert [(role.kind, role.gamma) for role in roles.values()] == [(role.kind, role.gamma) for role in ours.values()]


def test_networks_with_batch_norm() -> None:
    """Where a batch norm follows a layer, its gain does not matter, and the role says so."""
    model = ResNet(14, norm="batch")
    apply(model.stages)
    roles = infer_roles(model, IMAGE)
    assert len(roles) == 14 and all(r.kind == "other" and "BatchNorm2d) rescales" in r.why for r in roles.values())


def test_vocoder() -> None:
    """HiFi-GAN's generator in small: residual towers side by side, whose sum is no residual sum."""

    class Tower(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.ModuleList(WNConv1d(4, 4, 3, padding=1) for _ in range(3))
            self.second = nn.ModuleList(WNConv1d(4, 4, 3, padding=1) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            for first, second in zip(self.first, self.second, strict=True):
                x = second(F.leaky_relu(first(F.leaky_relu(x, 0.1)), 0.1)) + x
            return x

    def forward(m: Any, x: Tensor) -> Tensor:
        x = m.up(F.leaky_relu(m.pre(x), 0.1))
        total = m.towers[0](x)
        total += m.towers[1](x)
        return torch.tanh(m.post(F.leaky_relu(total / 2)))

    towers = nn.ModuleList([Tower(), Tower()])
    pre, up, post = WNConv1d(2, 8, 7, padding=3), WNConvTranspose1d(8, 4, 4, 2, 1), WNConv1d(4, 1, 7, padding=3)
    roles = infer_roles(Model(forward, pre=pre, up=up, towers=towers, post=post), torch.randn(1, 2, 8))
    ends = {name: role.gamma for name, role in roles.items() if "second" in name}
    assert len(ends) == 6 and set(ends.values()) == {1 / 3}
    assert [roles[name].kind for name in ("pre", "up", "post")] == ["leaky_relu", "other", "tanh"]


def test_wavenet() -> None:
    """Gated, conditioned, with skip outputs: only the residual layers end branches, the skip sum is no residual sum."""

    def forward(m: Any, x: Tensor, condition: Tensor) -> Tensor:
        h, total = m.stem(x), 0
        for i in range(3):
            a, b = (m.filters[i](h) + m.conditions[i](condition)).chunk(2, 1)
            z = torch.tanh(a) * torch.sigmoid(b)
            total = total + m.skips[i](z)
            h = (h + m.residuals[i](z)) * 0.5**0.5
        return m.out(F.relu(torch.cat([total, h], 1)))

    def three(inputs: int, outputs: int, size: int = 1) -> nn.ModuleList:
        return nn.ModuleList(WNConv1d(inputs, outputs, size, padding=size // 2) for _ in range(3))

    parts = {"filters": three(4, 8, 3), "conditions": three(2, 8), "skips": three(4, 4), "residuals": three(4, 4)}
    model = Model(forward, stem=WNConv1d(1, 4, 1), **parts, out=WNConv1d(8, 1, 1))
    roles = infer_roles(model, (torch.randn(1, 1, 16), torch.randn(1, 2, 16)))
    for name, role in roles.items():
        assert role.gamma == (1 / 3 if name.startswith("residuals") else 1.0), (name, role)
