"""Layers, weight norms and schemes that the tests of initialization go through."""

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations
from torch.nn.utils import weight_norm as hook_norm

import wnfused
from wnfused.init import data_dependent_, hanin_, he_, robust_, torch_default_

# The layer, its fan-in and its fan-out, by hand.
LAYERS = [
    (lambda: nn.Linear(12, 20), 12, 20),
    (lambda: nn.Linear(20, 12, bias=False), 20, 12),
    (lambda: nn.Conv1d(6, 10, 3), 3 * 6, 3 * 10),
    (lambda: nn.Conv2d(4, 6, (3, 2)), 6 * 4, 6 * 6),
    (lambda: nn.Conv2d(6, 9, 3, groups=3), 9 * 2, 9 * 3),
    (lambda: nn.Conv2d(8, 8, 3, groups=8), 9, 9),
    (lambda: nn.Conv3d(2, 4, 2), 8 * 2, 8 * 4),
    (lambda: nn.ConvTranspose1d(6, 4, 5), 5 * 6, 5 * 4),
    (lambda: nn.ConvTranspose2d(6, 4, 3, groups=2), 9 * 3, 9 * 2),
    (lambda: nn.ConvTranspose3d(3, 5, 2), 8 * 3, 8 * 5),
]
APIS = ["wnfused", "hook", "parametrizations"]
layers = pytest.mark.parametrize(("plain", "fan_in", "fan_out"), LAYERS)
apis = pytest.mark.parametrize("api", APIS)


def seeded(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normalize(module: nn.Module, api: str, dim: int | None = 0) -> nn.Module:
    """``module`` with all its plain layers under this weight norm."""
    if api == "wnfused":
        wnfused.apply(module, dim=dim)
        return module
    put_on = hook_norm if api == "hook" else parametrizations.weight_norm
    for layer in list(module.modules()):
        if isinstance(layer, nn.Linear | nn.modules.conv._ConvNd):
            put_on(layer, dim=dim)
    return module


def rows(layer: nn.Module) -> torch.Tensor:
    """The normalized weight as [groups, rows, columns], unfolded output by output."""
    weight, groups = layer.weight.detach(), getattr(layer, "groups", 1)
    if not isinstance(layer, nn.modules.conv._ConvTransposeNd):
        return torch.stack([part.flatten(1) for part in weight.chunk(groups)])
    return torch.stack([part.transpose(0, 1).flatten(1) for part in weight.chunk(groups)])


class Residual(nn.Module):
    """A small residual network with everything in it: groups, a shortcut, functional and module ReLUs, pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.first = nn.Conv2d(8, 12, 3, stride=2, padding=1, groups=2)
        self.second = nn.Conv2d(12, 12, 3, padding=1, bias=False)
        self.shortcut = nn.Conv2d(8, 12, 1, stride=2)
        self.up = nn.ConvTranspose2d(12, 5, 2, stride=2)
        self.relu = nn.ReLU()
        self.head = nn.Linear(5, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        x = self.shortcut(x) + self.second(F.relu(self.first(x)))
        return self.head(self.relu(self.up(x)).mean((2, 3)))


GAMMAS = {"stem": 1, "first": 2, "second": 1.0, "shortcut": 1, "up": 2, "head": 1}
BATCH = torch.randn(6, 3, 8, 8, generator=seeded(7)) + 0.5
SCHEMES = {
    "robust_": lambda model, generator: robust_(model, roles=GAMMAS, generator=generator),
    "robust_ he": lambda model, generator: robust_(model, roles=GAMMAS, distribution="he", generator=generator),
    "he_": lambda model, generator: he_(model, generator=generator),
    "torch_default_": lambda model, generator: torch_default_(model, generator=generator),
    "data_dependent_": lambda model, generator: data_dependent_(model, BATCH, generator=generator),
    "hanin_": lambda model, generator: hanin_(
        model, roles={name: role("other", gamma) for name, gamma in GAMMAS.items()}, generator=generator
    ),
}
schemes = pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES.keys())


def role(kind: str, gamma: float | None) -> SimpleNamespace:
    return SimpleNamespace(kind=kind, gamma=gamma, why="says the test")


def kept_by_padding(size: int) -> float:
    """The energy's factor along one axis, for 3 taps and one zero at each end."""
    return (1 + 2 * math.cos(math.pi / (size + 1))) / 3


def state(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: t.clone() for name, t in model.state_dict().items()}


def assert_same(model: nn.Module, before: dict[str, torch.Tensor]) -> None:
    after = model.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], before[name]) for name in before)
