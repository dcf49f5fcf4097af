"""The networks of a configuration: every norm, initialization and implementation that go together."""

import pytest
import torch
from torch import Tensor, nn

import wnfused
from wnfused.train import Config
from wnfused.train.build import architecture, network
from wnfused.train.config import INITS

SHAPE = (3, 8, 8)
BATCH = torch.randn(16, *SHAPE, generator=torch.Generator().manual_seed(0))


def build(**settings: str) -> nn.Module:
    return network(Config(model="resnet8", **settings), SHAPE, 10, lambda: BATCH)


def gains(model: nn.Module) -> Tensor:
    layers = [m for m in model.modules() if isinstance(m, wnfused.WNConv2d)]
    return torch.cat([layer.weight_g.detach().flatten() for layer in layers])


@pytest.mark.parametrize(("norm", "init"), [(norm, init) for norm, inits in INITS.items() for init in inits])
def test_every_combination_gives_a_network_that_runs(norm: str, init: str) -> None:
    model = build(norm=norm, init=init)
    assert model(BATCH).isfinite().all()
    kinds = {"weight": wnfused.WNConv2d, "batch": nn.BatchNorm2d, "none": nn.Conv2d}
    found = {name for name, kind in kinds.items() if any(type(m) is kind for m in model.modules())}
    assert found == ({"batch", "none"} if norm == "batch" else {norm})


def test_initializations_differ_and_are_seeded() -> None:
    models = {init: build(init=init) for init in INITS["weight"]}
    values = {init: gains(model) for init, model in models.items()}
    assert torch.equal(values["he"], torch.ones_like(values["he"]))
    outputs = {init: model(BATCH) for init, model in models.items()}
    for first in values:
        assert torch.equal(values[first], gains(build(init=first)))
        assert sum(torch.equal(outputs[first], other) for other in outputs.values()) == 1
    assert torch.equal(values["robust"], values["robust_he"])  # only the directions differ
    other = network(Config(model="resnet8", seed=1), SHAPE, 10, lambda: BATCH)
    assert not torch.equal(models["robust"](BATCH), other(BATCH))


def test_robust_gains_are_the_papers() -> None:
    gammas = {round(float(g), 6) for g in gains(build(init="robust"))}
    # c_in / c_out is 3/16, 1/2 or 1; γ is 2 before a ReLU, 1 for shortcuts and, with one block a stage, for its end.
    assert gammas == {
        round((gamma * ratio) ** 0.5, 6) for gamma, ratio in ((2, 3 / 16), (2, 1), (2, 0.5), (1, 1), (1, 0.5))
    }


def test_norm_gain_is_the_plain_network_of_that_weight() -> None:
    """g = ‖v‖, so w = v: what the paper calls PyTorch's default."""
    for init, norm in (("norm_gain", 1.0), ("norm_gain_he", 2**0.5)):
        layers = [m for m in build(init=init).modules() if isinstance(m, wnfused.WNConv2d)]
        for layer in layers:
            torch.testing.assert_close(layer.weight, layer.weight_v.detach())
            assert layer.bias is not None and not layer.bias.any()
        norms = layers[-2].weight_g.flatten()  # 64 rows of 576 numbers
        torch.testing.assert_close(norms.mean().item(), norm, rtol=0.02, atol=0)


@pytest.mark.parametrize(
    ("name", "blocks", "layers", "stride"),
    [
        ("resnet1202", 200, 2, 1),
        ("resnet164", 18, 3, 1),
        ("resnet164-basic", 27, 2, 1),
        ("resnet11-bottleneck", 1, 3, 1),
        ("wrn-16-1", 2, 2, 1),
        ("wrn-16-1-stem2", 2, 2, 2),
    ],
)
def test_networks_by_name(name: str, blocks: int, layers: int, stride: int) -> None:
    with torch.device("meta"):
        model = architecture(name, "weight", SHAPE, 10)
    assert [len(stage) for stage in model.stages] == [blocks] * 3
    assert len(model.stages[0][0].branch) == layers and model.stem.stride == (stride, stride)


def test_torchs_weight_norm_is_the_same_network() -> None:
    ours, theirs = build(), build(impl="torch")
    assert not any(isinstance(m, wnfused.WNConv2d) for m in theirs.modules())
    assert sum("original0" in name for name, _ in theirs.named_parameters()) == 9
    torch.testing.assert_close(theirs(BATCH), ours(BATCH))


def test_without_norm_robust_starts_as_the_same_function() -> None:
    torch.testing.assert_close(build(norm="none")(BATCH), build()(BATCH))


def test_orthogonal_without_weight_norm() -> None:
    first = next(m for m in build(norm="batch", init="orthogonal").modules() if isinstance(m, nn.Conv2d))
    rows = first.weight.detach().flatten(1)
    torch.testing.assert_close(rows @ rows.T, torch.eye(16), rtol=0, atol=1e-5)
