"""roles= for some layers, with the rest inferred, and layers that the model does not call."""

import pytest
import torch
from torch import nn

from wnfused import WNLinear
from wnfused.init import explain, hanin_, infer_roles, robust_

X = torch.randn(4, 6)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = WNLinear(6, 6)
        self.head = WNLinear(6, 6)
        self.spare = WNLinear(6, 6)

    def forward(self, x):
        return self.head(torch.relu(self.stem(x)))


def gains(model):
    return [layer.weight_g.unique().item() for layer in (model.stem, model.head)]


def test_one_role_is_given_and_the_rest_inferred():
    model = nn.Sequential(WNLinear(6, 6), nn.ReLU(), WNLinear(6, 6))
    robust_(model, X, roles={"2": 3})
    assert [model[i].weight_g.unique().item() ** 2 for i in (0, 2)] == pytest.approx([2, 3])
    table = explain(model, X, roles={"0": 1})
    assert "given in roles=" in table.splitlines()[2]
    assert "output" in table.splitlines()[3]
    with pytest.raises(ValueError, match="got none for '2'; pass example_input to infer them"):
        robust_(model, roles={"0": 1})
    with pytest.raises(ValueError, match="no weight-normalized layer named 'stem'"):
        robust_(model, X, roles={"stem": 1})


@pytest.mark.parametrize("initialize", [robust_, hanin_])
def test_layers_that_are_not_called_are_left_unchanged(initialize):
    model = Model()
    before = model.spare.weight_v.detach().clone(), model.spare.weight_g.detach().clone()
    with pytest.warns(UserWarning, match="'spare': not called when the model runs"):
        initialize(model, X)
    assert [g**2 for g in gains(model)] == pytest.approx([2, 1])
    assert torch.equal(model.spare.weight_v, before[0])
    assert torch.equal(model.spare.weight_g, before[1])


def test_infer_roles_omits_them_and_a_given_role_is_used():
    model = Model()
    with pytest.warns(UserWarning, match="'spare': not called"):
        assert list(infer_roles(model, X)) == ["stem", "head"]
    with pytest.warns(UserWarning, match="'spare': not called"):
        robust_(model, X, roles={"spare": 4})
    assert model.spare.weight_g.unique().item() == pytest.approx(2)
