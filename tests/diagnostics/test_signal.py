"""Signal propagation, compared with direct computations."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

import wnfused
from tests.support.role_models import old_norm
from wnfused.diagnostics import signal_report


def small_network(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(wnfused.WNLinear(3, 4, activation="relu"), wnfused.WNLinear(4, 3)).to(dtype)


def test_norms_match_a_direct_computation() -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[2.0, 0.0], [0.0, 2.0]]))
        model[1].weight.copy_(torch.tensor([[0.0, 3.0], [3.0, 0.0]]))
    first, second = signal_report(model, torch.randn(5, 2)).layers
    assert (first.name, second.name, first.shape) == ("0", "1", (2,))
    assert first.forward_mean == pytest.approx(2, rel=1e-5) and second.forward_mean == pytest.approx(6, rel=1e-5)
    assert first.backward_mean == pytest.approx(3, rel=1e-5) and second.backward_mean == pytest.approx(1, rel=1e-5)
    assert first.forward_std < 1e-5 and first.backward_std < 1e-5


def test_mean_and_standard_deviation_over_samples() -> None:
    model = nn.Sequential(nn.ReLU(), nn.Identity())
    x = torch.tensor([[3.0, -4.0], [5.0, 12.0]])
    layer = signal_report(model, x).layers[0]
    ratios = torch.tensor([3 / 5, 1.0])
    assert layer.forward_mean == pytest.approx(ratios.mean().item())
    assert layer.forward_std == pytest.approx(ratios.std(correction=0).item())


def test_in_place_activations_do_not_change_the_record() -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 4)
    layers = [nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2)]
    quiet = signal_report(nn.Sequential(*layers), x, generator=torch.Generator().manual_seed(1))
    layers[1] = nn.ReLU(inplace=True)
    assert signal_report(nn.Sequential(*layers), x, generator=torch.Generator().manual_seed(1)) == quiet


def test_a_module_called_twice_and_a_custom_loss() -> None:
    linear = nn.Linear(3, 3)
    model = nn.Sequential(linear, linear)
    report = signal_report(model, torch.randn(4, 3), loss_fn=lambda y: y.square().sum())
    assert [layer.name for layer in report.layers] == ["0", "0 #2"]
    assert report.layers[-1].backward_mean == pytest.approx(1.0)
    assert signal_report(model, torch.randn(4, 3), modules=["1"]).layers[0].name == "1"


def test_the_model_is_not_changed() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout())
    model[0].weight.grad = torch.ones(4, 3)
    before, random = {k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state()
    signal_report(model, torch.randn(8, 3, generator=torch.Generator().manual_seed(0)))
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert torch.equal(model[0].weight.grad, torch.ones(4, 3)) and model[0].bias.grad is None
    assert torch.equal(torch.get_rng_state(), random)
    assert model.training and not model[0]._forward_hooks


def test_table_and_plot(tmp_path: Path) -> None:
    report = signal_report(small_network(), torch.randn(5, 3, dtype=torch.float64))
    assert len(str(report).splitlines()) == 3
    assert "‖h‖/‖x‖" in report.table()
    path = report.plot(tmp_path / "folder" / "signal.png")
    assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 5000


@pytest.mark.parametrize("norm", [old_norm, weight_norm])
def test_layers_under_torchs_weight_norms(norm: Callable[[nn.Module], nn.Module]) -> None:
    """The report shows their outputs, not the weights computed by torch's parametrization, which also have 4 rows."""
    model, x = nn.Sequential(norm(nn.Linear(3, 4)), nn.ReLU(), norm(nn.Linear(4, 4))), torch.randn(4, 3)
    layers = signal_report(model, x).layers
    assert [layer.name for layer in layers] == ["0", "1", "2"]
    assert layers[2].forward_mean == pytest.approx((model(x).norm(dim=1) / x.norm(dim=1)).mean().item())


def test_a_model_that_writes_into_its_input() -> None:
    x = torch.tensor([[3.0, -4.0], [-5.0, 12.0]])
    before = x.clone()
    layer = signal_report(nn.Sequential(nn.ReLU(inplace=True), nn.Identity()), x).layers[0]
    assert layer.forward_mean == pytest.approx((3 / 5 + 12 / 13) / 2)
    assert torch.equal(x, before)


class TwoAndTwo(nn.Module):
    """Two inputs and two outputs, one of them in a dict beside a value that is not a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
        for layer, size in ((self.a, 2.0), (self.b, 3.0)):
            layer.weight.data = size * torch.eye(2)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, object]]:
        return self.a(x), {"b": self.b(self.a(y)), "steps": 3}


@pytest.mark.parametrize("loss", [None, lambda out: out[0].sum() + out[1]["b"].sum()])
def test_several_inputs_and_outputs_count_as_one(loss: Callable[[Any], Tensor] | None) -> None:
    x = torch.ones(3, 2)
    for inputs in ((x, x), {"y": x, "x": x}):
        first, second, third = signal_report(TwoAndTwo(), inputs, loss_fn=loss).layers
        assert [layer.name for layer in (first, second, third)] == ["a", "a #2", "b"]
        assert first.forward_mean == pytest.approx(2 / 2**0.5) and third.forward_mean == pytest.approx(6 / 2**0.5)
        if loss is not None:  # gradients of ones at both outputs
            assert second.backward_mean == pytest.approx(3 / 2**0.5)


def test_vanished_signals_can_be_plotted(tmp_path: Path) -> None:
    model = small_network(torch.float32)
    for gain in (0.0, math.nan):
        nn.init.constant_(model[0].weight_g, gain)
        assert signal_report(model, torch.randn(5, 3)).plot(tmp_path / "signal.png").stat().st_size > 5000


def test_bad_input() -> None:
    model = small_network()
    with pytest.raises(ValueError, match=r"signal_report: x: expected a batch .* got shape \(0, 3\)"):
        signal_report(model, torch.empty(0, 3))
    with pytest.raises(ValueError, match="signal_report: modules: the model has no module named 'nine'"):
        signal_report(model, torch.randn(2, 3), modules=["nine"])
    with pytest.raises(ValueError, match=r"signal_report: x: the model does not run on it \(shape \[2, 4\]\): "):
        signal_report(model, torch.randn(2, 4, dtype=torch.float64))
    with pytest.raises(ValueError, match="signal_report: model: expected an output for each of 2 samples, got none"):
        signal_report(nn.Flatten(0), torch.randn(2, 3))
    with pytest.raises(ValueError, match="signal_report: x: expected a batch .* got str"):
        signal_report(model, "x")
    with pytest.raises(TypeError, match="signal_report: model: expected a torch.nn.Module, got int"):
        signal_report(3, torch.randn(2, 3))
    assert not any(m._forward_hooks for m in model.modules())


def test_integers_have_no_norm() -> None:
    """Tokens: norms are relative to the first layer's output, whatever the numbers of the tokens."""
    model = nn.Sequential(nn.Embedding(100, 6), wnfused.WNLinear(6, 3))
    with torch.no_grad():
        model[0].weight[50:] = model[0].weight[:50]
    low = torch.randint(50, (4, 5))
    first, second = signal_report(model, low), signal_report(model, low + 50)
    assert first.layers[0].forward_mean == 1 and first.layers[0].forward_std == 0
    assert [s.forward_mean for s in first.layers] == [s.forward_mean for s in second.layers]
