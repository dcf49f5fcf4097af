"""Writes into the computed ``layer.weight`` are reported; reading it is not."""

import copy
import gc
import io
import warnings
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import wnfused
from wnfused import WNLinear

LOST = r"layer\.weight: .* does not reach the layer; .*wnfused\.init"


def add_to_data(layer):
    layer.weight.data += 1


def set_an_element(layer):
    with torch.no_grad():
        layer.weight[0, 0] = 1


@pytest.mark.parametrize(
    "write",
    [
        lambda layer: layer.weight.data.normal_(0, 0.01),
        lambda layer: nn.init.kaiming_normal_(layer.weight),
        lambda layer: nn.init.orthogonal_(layer.weight),
        lambda layer: nn.init.zeros_(layer.weight.data),
        lambda layer: layer.weight.detach().mul_(2),
        lambda layer: layer.weight.data[:2].fill_(1),
        lambda layer: layer.weight.data.view(-1).zero_(),
        add_to_data,
        set_an_element,
    ],
)
def test_writes_warn_at_the_line_of_the_caller(write):
    layer = WNLinear(4, 6)
    before = copy.deepcopy(layer.state_dict())
    with pytest.warns(UserWarning, match=LOST) as caught:
        write(layer)
    assert all(w.filename in (__file__, nn.init.__file__) for w in caught)
    assert all(torch.equal(value, before[key]) for key, value in layer.state_dict().items())


def test_a_copy_made_by_indexing_may_be_written():
    layer = WNLinear(4, 6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer.weight.data[[0, 2]].zero_()
        assert type(layer.weight[0] * 2) is torch.Tensor


def test_an_initialization_loop_warns_once():
    model = nn.Sequential(*[WNLinear(4, 4) for _ in range(5)])

    def init_weights(module):
        if isinstance(module, nn.Linear):
            module.weight.data.normal_(0, 0.01)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        model.apply(init_weights)
    assert len(caught) == 1


def test_reading_does_not_warn_and_keeps_no_memory():
    layer, x = WNLinear(4, 6), torch.randn(2, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        y = F.linear(x, layer.weight)
        y.square().sum().backward()
        layer.weight.data.clone().normal_()
        layer.weight.norm().item()
        weight = layer.weight
        alive = weakref.ref(weight)
        del weight
        gc.collect()
        assert alive() is None
        torch.func.vmap(lambda x: F.linear(x, layer.weight))(x)
        torch.func.functional_call(layer, dict(layer.named_parameters()), (x,))
        wnfused.fold(layer)
        layer.weight.data.normal_()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite(value):
    layer = WNLinear(4, 6)
    with torch.no_grad():
        layer.weight_v[0, 0] = value
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not layer.weight[0].isfinite().all()


def test_it_is_a_tensor_to_everything_else():
    layer, x = WNLinear(4, 6), torch.randn(2, 4)
    weight = layer.weight
    assert type(weight * 2) is type(F.linear(x, weight)) is type(weight.T) is type(weight.clone()) is torch.Tensor
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for parameter in (nn.Parameter(layer.weight), nn.Parameter(layer.weight.data, requires_grad=False)):
            assert type(parameter) is nn.Parameter
            with torch.no_grad():
                parameter.add_(1)
        assert nn.Parameter(layer.weight).is_leaf
        torch.testing.assert_close(layer.weight, nn.Parameter(layer.weight))
        torch.testing.assert_close(nn.Parameter(layer.weight.data), layer.weight)
        masked = layer.weight
        masked *= 0.5  # differentiable: a step of the caller's own computation
        masked.sum().backward()
        file = io.BytesIO()
        torch.save(layer.weight.data, file)
        file.seek(0)
        assert type(torch.load(file, weights_only=True)) is torch.Tensor
        assert type(copy.deepcopy(layer.weight.data)) is torch.Tensor
        assert repr(layer.weight).startswith("tensor(")
        assert nn.utils.parametrize.remove_parametrizations(layer, "weight").weight.is_leaf


def test_compiled_code_takes_it():
    layer = WNLinear(4, 6)
    compiled = torch.compile(lambda w: 2 * w, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(layer.weight), 2 * layer.weight)
