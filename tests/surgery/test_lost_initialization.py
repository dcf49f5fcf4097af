"""Initialization functions that write into the computed weight are found; those that work are not reported."""

import copy
import sys

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import wnfused
from wnfused.surgery.lost_initialization import lost_initializations

pytestmark = pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")

APIS = {"hook": nn.utils.weight_norm, "parametrizations": parametrizations.weight_norm}


@pytest.fixture(params=list(APIS))
def weight_norm(request):
    return APIS[request.param]


def init_weights(m, mean=0.0, std=0.01):
    """HiFi-GAN's function, as this module's models see it."""
    if m.__class__.__name__.find("Conv") != -1:
        m.weight.data.normal_(mean, std)


class Generator(nn.Module):
    def __init__(self, weight_norm):
        super().__init__()
        self.pre = weight_norm(nn.Conv1d(8, 16, 7))
        self.up = weight_norm(nn.ConvTranspose1d(16, 8, 4, 2))
        self.linear = weight_norm(nn.Linear(16, 16))
        self.up.apply(init_weights)
        self.pre.apply(init_weights)


class Discriminator(nn.Module):
    """Never calls ``init_weights``: torch's default is what it asks for."""

    def __init__(self, weight_norm):
        super().__init__()
        self.conv = weight_norm(nn.Conv1d(8, 16, 7))


class OwnMethod(Generator):
    def _init_weights(self, module):
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.5)

    init_weights = None


def snapshot(model):
    return copy.deepcopy(model.state_dict()), torch.get_rng_state()


def test_found_by_convert_before_and_by_the_function_after(weight_norm):
    torch.manual_seed(0)
    model = Generator(weight_norm)
    state, random = snapshot(model)
    (note,) = lost_initializations(model)
    assert f"{__name__}.init_weights writes into the computed weight" in note
    assert "pre and 1 more still have torch's default" in note
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    report = wnfused.convert(model)
    assert report.notes == [note]
    assert f"note: {note}" in str(report)
    assert lost_initializations(model) == [note]  # wnfused's layers lose it as well


def test_methods_of_the_model(weight_norm):
    torch.manual_seed(0)
    notes = lost_initializations(OwnMethod(weight_norm))
    assert any(n.startswith("OwnMethod._init_weights writes into") and ": linear still" in n for n in notes)


def test_initialized_or_trained_models_are_not_reported(weight_norm):
    torch.manual_seed(0)
    model = Generator(weight_norm)
    for layer in (model.pre, model.up):
        wnfused.init.normal_(layer, std=0.01)
    assert lost_initializations(model) == []
    model = Generator(weight_norm)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    assert lost_initializations(model) == []


def test_functions_that_work_are_not_reported():
    class Late(Generator):
        """Initializes before the norm is applied, as transformers does."""

        def __init__(self, weight_norm):
            super().__init__(lambda layer: layer)
            for layer in (self.pre, self.up):
                weight_norm(layer)

    torch.manual_seed(0)
    assert lost_initializations(Late(parametrizations.weight_norm)) == []


def test_a_function_concerns_the_classes_that_call_it(weight_norm):
    torch.manual_seed(0)
    assert lost_initializations(Discriminator(weight_norm)) == []
    both = nn.ModuleDict({"g": Generator(weight_norm), "d": Discriminator(weight_norm)})
    (note,) = lost_initializations(both)
    assert "g.pre and 1 more still" in note


def test_a_function_that_no_class_calls_concerns_the_whole_model(weight_norm, monkeypatch):
    def weights_init(m):
        if isinstance(m, nn.Conv1d):
            m.weight.data.normal_(0, 0.01)

    monkeypatch.setattr(sys.modules[__name__], "weights_init", weights_init, raising=False)
    torch.manual_seed(0)
    (note,) = lost_initializations(Discriminator(weight_norm))
    assert "weights_init writes into" in note and ": conv still have" in note
