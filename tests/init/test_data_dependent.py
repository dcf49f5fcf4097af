"""Data-dependent initialization: the statistics it promises, and the models it takes."""

import copy

import pytest
import torch
from torch import nn

import wnfused
from tests.support.init_cases import (
    BATCH,
    Residual,
    assert_same,
    normalize,
    seeded,
    state,
)
from wnfused.init import data_dependent_
from wnfused.models import CNN, MLP, WRN, ResNet

pytestmark = pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")


def preactivations(model: nn.Module, x: torch.Tensor) -> dict[str, torch.Tensor]:
    """What each layer gives before its ReLU, fused or not: [outputs, everything else]."""
    seen: dict[str, torch.Tensor] = {}

    def remember(name):
        def hook(module, args):
            plain = copy.deepcopy(module)
            plain._forward_pre_hooks.clear()
            plain.activation = None
            y = plain(*args)
            seen[name] = y.movedim(1, 0).flatten(1)

        return hook

    hooks = [m.register_forward_pre_hook(remember(n)) for n, m in model.named_modules() if hasattr(m, "weight_g")]
    with torch.no_grad():
        model(x)
    for hook in hooks:
        hook.remove()
    return seen


@pytest.mark.parametrize(
    "model",
    [
        lambda: normalize(Residual(), "wnfused"),
        lambda: normalize(Residual(), "wnfused", dim=1),
        lambda: normalize(Residual(), "wnfused", dim=None),
        lambda: ResNet(8),
        lambda: WRN(10),
        lambda: CNN(3, channels=8),
        lambda: MLP(4, 16, inputs=192),
    ],
)
@pytest.mark.parametrize("distribution", ["orthogonal", "he"])
def test_data_dependent_statistics(model, distribution):
    model = model()
    data_dependent_(model, BATCH, distribution=distribution)
    found = preactivations(model, BATCH)
    assert len(found) == sum(hasattr(m, "weight_g") for m in model.modules())
    for name, y in found.items():
        torch.testing.assert_close(y.std(dim=1, correction=0), torch.ones(len(y)), rtol=2e-3, atol=0)
        if name != "second":  # which has no bias
            torch.testing.assert_close(y.mean(dim=1), torch.zeros(len(y)), rtol=0, atol=2e-3)


def test_data_dependent_leaves_nothing_behind():
    model = nn.Sequential(wnfused.WNConv2d(3, 4, 3, activation="relu"), nn.BatchNorm2d(4), nn.Dropout())
    data_dependent_(model, BATCH)
    assert not model[0]._forward_pre_hooks
    assert model[0].activation == "relu"
    assert model[1].num_batches_tracked == 0
    assert model.training


def test_data_dependent_takes_several_inputs():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = wnfused.WNLinear(3, 4), wnfused.WNLinear(5, 4)

        def forward(self, x, y):
            return self.a(x) + self.b(y)

    x, y = torch.randn(9, 3), torch.randn(9, 5)
    models = [Two(), Two()]
    data_dependent_(models[0], (x, y), generator=seeded())
    data_dependent_(models[1], {"y": y, "x": x}, generator=seeded())
    assert_same(models[1], state(models[0]))


def test_data_dependent_sets_a_shared_layer_at_its_first_call():
    shared = wnfused.WNLinear(4, 4)
    x = torch.randn(50, 4)
    data_dependent_(nn.Sequential(shared, nn.ReLU(), shared), x)
    torch.testing.assert_close(shared(x).std(dim=0, correction=0), torch.ones(4))
