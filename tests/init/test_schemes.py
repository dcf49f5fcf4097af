"""The schemes on whole models: all three kinds of weight norm, randomness, dtypes, roles."""

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations

import wnfused
from tests.support.init_cases import (
    APIS,
    BATCH,
    SCHEMES,
    Residual,
    assert_same,
    normalize,
    role,
    schemes,
    seeded,
    state,
)
from wnfused.init import data_dependent_, hanin_, he_, robust_
from wnfused.init.layers import layer_of
from wnfused.models import MLP, WRN, ResNet

pytestmark = pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")


# All three kinds of weight norm, and randomness


@schemes
def test_torchs_weight_norms_get_what_ours_get(scheme):
    outputs = []
    for api in APIS:
        model = normalize(Residual(), api)
        scheme(model, seeded())
        found = [layer_of("test", m) for m in (model.stem, model.first, model.second, model.up, model.head)]
        outputs.append([t.detach() for one in found for t in (one.g, one.v, one.module.weight)] + [model(BATCH)])
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(outputs[2], outputs[0], rtol=1e-4, atol=1e-5)


@schemes
def test_generator_decides_alone(scheme):
    models = [normalize(Residual(), "wnfused") for _ in range(3)]
    before = torch.get_rng_state()
    for model, seed in zip(models, (1, 1, 2), strict=True):
        assert scheme(model, seeded(seed)) is None
    assert torch.equal(torch.get_rng_state(), before)
    assert_same(models[1], state(models[0]))
    assert not torch.equal(models[2].stem.weight_v, models[0].stem.weight_v)
    torch.manual_seed(5)
    scheme(models[0], None)
    assert not torch.equal(torch.get_rng_state(), before)


@schemes
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes(scheme, dtype):
    model = normalize(Residual(), "wnfused").to(dtype)
    if scheme is SCHEMES["data_dependent_"]:
        data_dependent_(model, BATCH.to(dtype))
    else:
        scheme(model, seeded())
    assert {p.dtype for p in model.parameters()} == {dtype}
    assert all(torch.isfinite(p).all() for p in model.parameters())


@schemes
def test_gradients_flow_afterwards(scheme):
    model = normalize(Residual(), "hook")
    scheme(model, None)
    assert model.stem.weight.requires_grad == (scheme is not SCHEMES["data_dependent_"])  # that ran without gradients
    assert not any(p.grad_fn for p in model.parameters())
    model(BATCH).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_plain_layers_and_batch_norm_stay_as_they_are():
    model = nn.Sequential(wnfused.WNConv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3))
    before = state(model)
    robust_(model, roles={"0": 2})
    data_dependent_(model, BATCH)
    after = model.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"0.weight_g", "0.weight_v", "0.bias"}


def test_layers_without_a_formula_are_named():
    model = nn.Sequential(wnfused.WNLinear(3, 4), parametrizations.weight_norm(nn.LSTM(4, 4), "weight_hh_l0"))
    with pytest.warns(UserWarning, match=r"he_: left as they were, there is no formula for them: 1 \(LSTM\)"):
        he_(model)
    with pytest.raises(ValueError, match=r"found none .*; there is no formula for \(the model itself\) \(LSTM\)"):
        he_(model[1])


# Roles


def test_robust_takes_numbers_and_roles():
    model, other = MLP(3, [6, 8, 10], inputs=4), MLP(3, [6, 8, 10], inputs=4)
    robust_(model, roles={"hidden.0": 2, "hidden.1": 1.0, "hidden.2": 1 / 3})
    robust_(other, roles={f"hidden.{i}": role("other", gamma) for i, gamma in enumerate((2, 1, 1 / 3))})
    for i, square in enumerate((2 * 4 / 6, 6 / 8, 8 / 10 / 3)):
        torch.testing.assert_close(model.hidden[i].weight_g.square().mean(), torch.tensor(square))
        assert torch.equal(model.hidden[i].weight_g, other.hidden[i].weight_g)
    robust_(model, roles={f"hidden.{i}": 2 for i in range(3)}, variant="backward")
    assert all(torch.allclose(layer.weight_g.square(), torch.tensor(2.0)) for layer in model.hidden)


def wrn_roles(model: WRN, blocks: int) -> dict[str, SimpleNamespace]:
    kinds = {"branch.0": ("before_relu", 2), "branch.1": ("residual_end", 1 / blocks), "shortcut": ("shortcut", 1)}
    names = [name for name, m in model.named_modules() if hasattr(m, "weight_g")]
    return {name: role(*next((kinds[k] for k in kinds if name.endswith(k)), ("other", 1))) for name in names}


def test_roles_are_inferred_from_an_example():
    models = [WRN(blocks=2, k=2) for _ in range(4)]
    roles, x = wrn_roles(models[0], 2), torch.randn(2, 3, 16, 16)
    robust_(models[0], roles=roles, generator=seeded())
    robust_(models[1], x, generator=seeded())
    assert_same(models[1], state(models[0]) | {k: v for k, v in models[1].state_dict().items() if "head" in k})
    hanin_(models[2], roles=roles, generator=seeded())
    hanin_(models[3], x, generator=seeded())
    assert_same(models[3], state(models[2]) | {k: v for k, v in models[3].state_dict().items() if "head" in k})


def test_hanin_shrinks_along_each_stage():
    model = WRN(blocks=3)
    hanin_(model, roles=wrn_roles(model, 3))
    for stage in model.stages:
        for b, block in enumerate(stage, start=1):
            torch.testing.assert_close(block.branch[1].weight_g.mean(), torch.tensor(0.9**b))
        torch.testing.assert_close(stage[1].branch[0].weight_g.mean(), torch.tensor(math.sqrt(2)))
    torch.testing.assert_close(model.stages[1][0].shortcut.weight_g.mean(), torch.tensor(math.sqrt(1 / 2)))
    ours = WRN(blocks=3)
    robust_(ours, roles=wrn_roles(ours, 3))
    torch.testing.assert_close(ours.stages[2][2].branch[1].weight_g.mean(), torch.tensor(math.sqrt(1 / 3)))


def test_hanin_of_bottlenecks_is_the_papers_formula():
    model = ResNet(29, bottleneck=True)  # three blocks a stage; the last layer widens by a factor of 4
    hanin_(model, torch.randn(2, 3, 8, 8))
    for b, block in enumerate(model.stages[0], start=1):
        torch.testing.assert_close(block.branch[2].weight_g.mean(), torch.tensor(0.9**b))


class Nested(nn.Module):
    """Two inner blocks and a last layer in the branch, which ends in two layers side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ModuleList(wnfused.WNLinear(8, 8) for _ in range(2))
        self.left, self.right = wnfused.WNLinear(8, 4), wnfused.WNLinear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x
        for layer in self.inner:
            h = h + layer(F.relu(h))
        return x + torch.cat([self.left(h), self.right(h)], 1)


def test_hanin_counts_blocks_and_not_layers():
    model = nn.Sequential(*(Nested() for _ in range(3)))
    hanin_(model, torch.randn(2, 8))
    for b, block in enumerate(model, start=1):
        for layer in (block.left, block.right):
            torch.testing.assert_close(layer.weight_g.mean(), torch.tensor(0.9**b))
        for i, layer in enumerate(block.inner, start=1):
            torch.testing.assert_close(layer.weight_g.mean(), torch.tensor(0.9**i))
