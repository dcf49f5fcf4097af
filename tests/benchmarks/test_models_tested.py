"""The table of models: each conversion is exact, and a wrong one would be seen."""

import pytest
import torch
from torch import nn

import wnfused
from wnfused.benchmarks import models_of_transformers, models_tested
from wnfused.benchmarks.shapes_of_models import MODELS


@pytest.mark.parametrize("name", MODELS)
def test_conversion_is_exact(name: str) -> None:
    make, shape = MODELS[name]
    tried = models_tested.try_model(name, make, {"": torch.randn(shape)}, rounds=1)
    assert tried.converted == tried.layers > 0 and tried.left == ""
    assert tried.outputs < 1e-5 and tried.wide_gradients < 1e-10 and tried.folded < 1e-5
    assert tried.row().startswith(f"| {name} | {tried.layers} | {tried.layers} | – |")


def test_a_wrong_conversion_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    make, shape = MODELS["SDF MLP"]
    convert = wnfused.convert

    def wrong(model: nn.Module) -> object:
        report = convert(model)
        with torch.no_grad():
            model[0].weight_g.mul_(1.01)
        return report

    monkeypatch.setattr(wnfused, "convert", wrong)
    tried = models_tested.try_model("SDF MLP", make, {"": torch.randn(shape)}, rounds=1)
    assert tried.outputs > 1e-4 and tried.gradients > 1e-4 and tried.folded > 1e-4


def test_every_model_of_transformers_with_weight_norm_is_tried_or_named() -> None:
    users = models_of_transformers.users_of_weight_norm()
    assert len(users) >= 20 and set(users) == models_of_transformers.MODELS.keys()
    tried = {name.removeprefix("transformers: ") for name, _, _ in models_tested.cases()}
    assert {folder for folder in users if folder not in tried} == models_tested.not_tried().keys()
    assert all("No module named" in reason for reason in models_tested.not_tried().values())


def test_a_model_without_a_configuration_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(models_of_transformers.MODELS, "vits")
    assert "no configuration" in models_tested.not_tried()["vits"]


@pytest.mark.parametrize(("folder", "layers"), [("vits", 96), ("seamless_m4t", 97), ("mimi", 18)])
def test_conversion_of_transformers_is_exact(folder: str, layers: int) -> None:
    inputs = models_of_transformers.inputs(folder, torch.Generator().manual_seed(0))
    tried = models_tested.try_model(folder, lambda: models_of_transformers.make(folder), inputs, rounds=1)
    assert (tried.layers, tried.converted) == (layers, layers)
    assert 0 < tried.outputs < 1e-5 and 0 < tried.wide_gradients < 1e-10 and tried.folded < 1e-5
