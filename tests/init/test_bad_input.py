"""Bad input to every scheme raises a clear error and leaves the model unchanged."""

import math
from typing import Any

import pytest
import torch
from torch import nn

import wnfused
from tests.support.init_cases import (
    BATCH,
    Residual,
    apis,
    normalize,
    role,
    seeded,
)
from wnfused.init import (
    RolesUnknown,
    data_dependent_,
    explain,
    hanin_,
    he_,
    infer_roles,
    robust_,
    robust_layer_,
    torch_default_,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated"),
    pytest.mark.filterwarnings("ignore:Initializing zero-element tensors"),
]


class Uncalled(nn.ModuleList):
    """Calls none of its layers."""

    def __init__(self):
        super().__init__([wnfused.WNLinear(3, 3)])

    def forward(self, x):
        return x


class Unreached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused, self.norm = wnfused.WNLinear(3, 4), wnfused.WNLinear(3, 4), nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.used(x))


def mlp() -> nn.Module:
    return nn.Sequential(wnfused.WNLinear(3, 4, activation="relu"), nn.BatchNorm1d(4), wnfused.WNLinear(4, 2))


class Constant(nn.Module):
    """The first input channel of the second layer is constant; each channel is a group."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = wnfused.WNConv1d(2, 2, 1), wnfused.WNConv1d(2, 2, 1, groups=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x) * torch.tensor([0.0, 1.0]).view(1, 2, 1) + 3)


X = torch.randn(5, 3, generator=seeded(9))
NAN = X.clone()
NAN[2, 1] = math.nan
WRONG = torch.randn(5, 7)
MISFIT = r"the model does not run on it \(shape \[5, 7\]\)"
PLAIN = lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU())  # noqa: E731
NO_LAYERS = "model: expected weight-normalized layers, found none in Sequential"
EMPTY = lambda: nn.Sequential(wnfused.WNLinear(3, 3), wnfused.WNLinear(0, 4))  # noqa: E731
FAN_0 = r"layer '1': fan_in: expected > 0, got 0 \(weight of shape \(4, 0\)\)"
ENDS = {"0": role("residual_end", 1 / 3), "2": role("other", 1)}


@pytest.mark.parametrize(
    ("build", "call", "message"),
    [
        (PLAIN, lambda m: robust_(m, X), f"robust_: {NO_LAYERS}"),
        (PLAIN, he_, f"he_: {NO_LAYERS}"),
        (PLAIN, torch_default_, f"torch_default_: {NO_LAYERS}"),
        (PLAIN, lambda m: hanin_(m, X), f"hanin_: {NO_LAYERS}"),
        (PLAIN, lambda m: data_dependent_(m, X), f"data_dependent_: {NO_LAYERS}"),
        (PLAIN, lambda m: robust_layer_(m[0], 2), "robust_layer_: layer: expected a weight-normalized .* got Linear"),
        (EMPTY, lambda m: robust_(m, roles={"0": 1, "1": 1}), f"robust_: {FAN_0}"),
        (EMPTY, he_, f"he_: {FAN_0}"),
        (EMPTY, torch_default_, f"torch_default_: {FAN_0}"),
        (EMPTY, lambda m: data_dependent_(m, X), f"data_dependent_: {FAN_0}"),
        (mlp, robust_, r"robust_: example_input: expected an input of the model, got None; .* roles="),
        (mlp, hanin_, "hanin_: example_input"),
        (mlp, lambda m: robust_(m, roles={"0": 2}), "robust_: roles: expected a role for every .* none for '2'"),
        (
            mlp,
            lambda m: robust_(m, roles={"0": 2, "2": 1, "3": 1}),
            "robust_: roles: the model has no weight-normalized layer named '3'",
        ),
        (mlp, lambda m: robust_(m, roles={"0": 2, "2": -1}), "robust_: roles: layer '2': .* got -1"),
        (mlp, lambda m: robust_(m, roles={"0": 2, "2": "relu"}), "robust_: roles: layer '2': .* got 'relu'"),
        (
            mlp,
            lambda m: robust_(m, roles={"0": 2, "2": role("unknown", None)}),
            r"layer '2': expected a gamma, got None \(set by the test\)",
        ),
        (mlp, lambda m: robust_(m, roles={"0": 2, "2": 1}, variant="both"), "robust_: variant: .* got 'both'"),
        (mlp, lambda m: robust_(m, roles={"0": 2, "2": 1}, distribution="x"), "robust_: distribution: .* got 'x'"),
        (mlp, lambda m: robust_layer_(m[0], None), "robust_layer_: gamma: .* got None"),
        (mlp, lambda m: robust_layer_(m[0], 2, variant=1), "robust_layer_: variant"),
        (mlp, lambda m: hanin_(m, roles={"0": 1, "2": 1}), "hanin_: roles: layer '0': expected a Role"),
        (mlp, lambda m: hanin_(m, roles=ENDS), "hanin_: roles: layer '0' has gamma 0.333.*: expected 1/B in B"),
        (mlp, lambda m: data_dependent_(m, X[:1]), r"batch: expected at least 2 samples .* got shape \(1, 3\)"),
        (mlp, lambda m: data_dependent_(m, X[:0]), r"batch: expected at least 2 samples .* got shape \(0, 3\)"),
        (mlp, lambda m: data_dependent_(m, X[0]), r"batch: expected at least 2 samples .* got shape \(3,\)"),
        (mlp, lambda m: data_dependent_(m, NAN), "batch: expected finite numbers, got NaN or infinity"),
        (mlp, lambda m: data_dependent_(m, X[:1].expand(4, 3)), r"layer '0': channel 0 \(and 3 more\) is constant"),
        (mlp, lambda m: data_dependent_(m, X, distribution="x"), "data_dependent_: distribution"),
        (Constant, lambda m: data_dependent_(m, torch.randn(4, 2, 5)), "layer 'second': channel 0 is constant"),
        (Unreached, lambda m: data_dependent_(m, X), "the forward pass of the batch does not reach 'unused'"),
        (mlp, lambda m: data_dependent_(m, WRONG), rf"batch: {MISFIT}: ArgumentValueError: wn_linear: x"),
        *[
            (build, lambda m, call=call, x=x: call(m, x), f"infer_roles: {message}")
            for call in (robust_, hanin_, explain, infer_roles)
            for build, x, message in ((mlp, WRONG, rf"example_input: {MISFIT}"), (Uncalled, X, "'0': not called"))
        ],
        (PLAIN, lambda m: explain(m, X), f"explain: {NO_LAYERS}"),
        (PLAIN, lambda m: infer_roles(m, X), f"infer_roles: {NO_LAYERS}"),
    ],
)
def test_an_error_leaves_the_model_unchanged(build, call, message):
    model = used(build())
    before, batch = everything(model), X.clone()
    with pytest.raises(ValueError, match=message):
        call(model)
    assert everything(model) == before
    assert torch.equal(batch, X)


def used(model: nn.Module) -> nn.Module:
    """The model with modes, flags, gradients and a hook changed from their defaults, so that a reset would show."""
    first = next(model.children())
    first.eval()
    first.register_forward_hook(lambda *_: None)
    parameters = list(model.parameters())
    parameters[0].requires_grad_(False)
    parameters[1].grad = torch.ones_like(parameters[1])
    return model


def everything(model: nn.Module) -> list[Any]:
    """The whole state of a model, bit for bit, in a comparable form."""

    def form(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return (
                id(value),
                value.requires_grad,
                value.detach().numpy().tobytes(),
                form(value.grad if value.is_leaf else 0),
            )
        return {k: form(v) for k, v in value.items()} if isinstance(value, dict) else value

    return [form(module.__dict__) for module in model.modules()]


@apis
@pytest.mark.parametrize("how", ["interrupted", "wrong shape"])
def test_an_error_halfway_restores_the_model(api, how):
    model = used(normalize(Residual(), api))
    model(BATCH)
    stop = KeyboardInterrupt() if how == "interrupted" else RuntimeError("forward failed")

    def hook(*_):
        raise stop

    model.head.register_forward_pre_hook(hook)
    before = everything(model)
    with pytest.raises(KeyboardInterrupt if how == "interrupted" else ValueError, match="^$|batch: .*: forward failed"):
        data_dependent_(model, BATCH)
    assert everything(model) == before
    if how == "wrong shape":
        with pytest.raises(RolesUnknown, match="example_input: .*: forward failed"):
            robust_(model, BATCH)
        assert everything(model) == before


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: he_("model"), "he_: model: expected a torch.nn.Module, got str"),
        (lambda: he_(mlp(), generator=3), "he_: generator: expected a torch.Generator or None, got int"),
        (lambda: robust_(mlp(), roles=[2, 1]), "robust_: roles: expected a dict .* got list"),
        (lambda: data_dependent_(mlp(), [1, 2]), "data_dependent_: batch: expected a tensor"),
        (lambda: robust_layer_(None, 2), "robust_layer_: layer: expected a torch.nn.Module, got NoneType"),
    ],
)
def test_wrong_types(call, message):
    with pytest.raises(TypeError, match=message):
        call()
