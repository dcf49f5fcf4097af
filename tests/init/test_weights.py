"""The functions of torch.nn.init, applied to the computed weight of a layer."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import wnfused
from wnfused import WNConv1d, WNConvTranspose1d, WNLinear

pytestmark = pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")

LAYERS = {
    "linear": lambda: WNLinear(12, 20),
    "convolution": lambda: WNConv1d(6, 9, 5, groups=3),
    "transposed": lambda: WNConvTranspose1d(6, 9, 4, dim=1),
    "one norm": lambda: WNLinear(12, 20, dim=None),
    "eps": lambda: WNLinear(12, 20, eps=0.1),
    "hook": lambda: nn.utils.weight_norm(nn.Conv1d(6, 9, 5)),
    "parametrized": lambda: parametrizations.weight_norm(nn.Linear(12, 20)),
    "plain": lambda: nn.Conv1d(6, 9, 5),
}
CALLS = [
    ("normal_", {"std": 0.01}),
    ("uniform_", {"a": -0.2, "b": 0.1}),
    ("trunc_normal_", {"std": 0.02, "a": -0.03, "b": 0.03}),
    ("xavier_uniform_", {"gain": 2.0}),
    ("xavier_normal_", {}),
    ("kaiming_uniform_", {"nonlinearity": "relu"}),
    ("kaiming_normal_", {"a": 0.1, "mode": "fan_out"}),
    ("orthogonal_", {"gain": 1.5}),
]


@pytest.mark.parametrize("name", list(LAYERS))
@pytest.mark.parametrize(("function", "arguments"), CALLS, ids=[name for name, _ in CALLS])
def test_the_weight_is_the_one_that_torch_draws(name, function, arguments):
    layer = LAYERS[name]()
    bias, parameters = layer.bias.detach().clone(), list(layer.parameters())
    torch.manual_seed(3)
    expected = getattr(nn.init, function)(torch.empty(layer.weight.shape), **arguments)
    torch.manual_seed(3)
    getattr(wnfused.init, function)(layer, **arguments)
    torch.testing.assert_close(layer.weight.detach(), expected)
    layer(torch.randn(2, 6, 8) if isinstance(layer, nn.modules.conv._ConvNd) else torch.randn(2, 12))
    torch.testing.assert_close(layer.weight.detach(), expected)  # torch's hook computes it again
    assert torch.equal(layer.bias, bias)
    assert [id(p) for p in layer.parameters()] == [id(p) for p in parameters]


def test_a_user_function_in_a_loop_over_a_model():
    model = nn.Sequential(WNConv1d(4, 6, 3), nn.ReLU(), nn.Conv1d(6, 6, 3))

    def init_weights(module):
        if isinstance(module, nn.Conv1d):
            wnfused.init.weight_(module, lambda w: w.zero_().diagonal().fill_(0.5))

    model.apply(init_weights)
    for layer in (model[0], model[2]):
        assert layer.weight.sum().item() == pytest.approx(0.5 * layer.weight.diagonal().numel(), rel=1e-6)


def test_other_modules_are_refused():
    with pytest.raises(ValueError, match="normal_: layer: expected a weight-normalized linear or convolution layer"):
        wnfused.init.normal_(nn.ReLU())
    with pytest.raises(TypeError, match=r"normal_: layer: expected a torch\.nn\.Module, got Tensor"):
        wnfused.init.normal_(torch.zeros(3))
