"""apply: plain layers become weight-normalized with unchanged outputs; the others are skipped with a reason."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import wnfused

pytestmark = pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")


class Scaled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def plain():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.ConvTranspose2d(4, 2, 2, stride=2), nn.Flatten(), nn.Linear(128, 3)
    )


@pytest.mark.parametrize(("dim", "eps"), [(0, 0.0), (1, 0.0), (None, 0.25)])
def test_apply_keeps_outputs_and_weights(dim, eps):
    model, x = plain(), torch.randn(2, 2, 4, 4)
    before, weights = model(x), [p for name, p in model.named_parameters() if name.endswith("weight")]
    report = wnfused.apply(model, dim=dim, eps=eps)
    assert report.converted == ["0", "2", "4"]
    torch.testing.assert_close(model(x), before, rtol=1e-5, atol=1e-6)
    assert [model[int(name)].weight_v for name in report.converted] == weights
    assert wnfused.apply(model).skipped == dict.fromkeys(report.converted, "already weight-normalized")


@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1e20, 1e30])
@pytest.mark.parametrize("dim", [0, 1, None])
def test_apply_keeps_weights_whose_squares_overflow_or_underflow(scale, dim):
    plain = nn.Linear(5, 4)
    with torch.no_grad():
        plain.weight.mul_(scale)
        plain.weight[2].zero_()
    weight = plain.weight.detach().clone()
    wnfused.apply(plain, dim=dim)
    torch.testing.assert_close(plain.weight, weight, rtol=1e-6, atol=0.0)


def test_apply_filter_requires_grad_and_root():
    model = plain()
    model[0].requires_grad_(False)
    assert wnfused.apply(model, lambda name, module: isinstance(module, nn.Conv2d)).converted == ["0"]
    assert not any(p.requires_grad for p in model[0].parameters())
    root = nn.Linear(3, 4)
    wnfused.apply(root)
    assert type(root) is wnfused.WNLinear


def test_apply_skips_with_a_reason():
    embedding = nn.Embedding(5, 4)
    tied = nn.Linear(4, 5)
    tied.weight = embedding.weight
    stale = parametrize.remove_parametrizations(parametrizations.weight_norm(nn.Linear(4, 4)), "weight")
    model = nn.ModuleDict(
        {
            "embedding": embedding,
            "tied": tied,
            "normed": parametrizations.weight_norm(nn.Linear(4, 4)),
            "hooked": nn.utils.weight_norm(nn.Linear(4, 4)),
            "spectral": parametrizations.spectral_norm(nn.Linear(4, 4)),
            "scaled": Scaled(4, 4),
            "lazy": nn.LazyLinear(4),
            "complex": nn.Linear(4, 4, dtype=torch.complex64),
            "stale": stale,
        }
    )
    report = wnfused.apply(model)
    assert report.converted == ["stale"]
    assert report.skipped == {
        "tied": "its weight is tied to embedding.weight",
        "normed": "under torch's weight norm: use wnfused.convert",
        "hooked": "under torch's weight norm: use wnfused.convert",
        "spectral": "already parametrized (_SpectralNorm)",
        "scaled": "Scaled is a subclass of a torch.nn layer",
        "lazy": "lazy: its weight has no shape before the first forward",
        "complex": "dtype torch.complex64 is not supported",
    }
    assert tied.weight is embedding.weight
    stale.load_state_dict(stale.state_dict())  # the hook that torch left behind does not rename our keys


def test_apply_with_a_dim_that_some_layer_lacks_changes_nothing():
    model = nn.Sequential(nn.Conv1d(2, 3, 1), nn.Linear(3, 3))
    with pytest.raises(ValueError, match=r"layer '1'.*dim"):
        wnfused.apply(model, dim=2)
    assert [type(m) for m in model] == [nn.Conv1d, nn.Linear]
    assert wnfused.apply(model, lambda name, module: isinstance(module, nn.Conv1d), dim=2).converted == ["0"]
