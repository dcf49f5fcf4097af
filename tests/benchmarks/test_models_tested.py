"""The table of models: each conversion is exact, and a wrong one would be seen."""

import pytest
import torch
from torch import nn

import wnfused
from wnfused.benchmarks import models_tested
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
