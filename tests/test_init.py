"""Initialization: gains by hand, directions, all three kinds of weight norm, statistics of data, and bad input."""

import copy
import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations
from torch.nn.utils import weight_norm as hook_norm

import wnfused
from wnfused.init import data_dependent_, gain, hanin_, he_, robust_, robust_layer_, torch_default_
from wnfused.init.normalized import layer_of
from wnfused.models import CNN, MLP, WRN, ResNet

# The layer, its fan-in and its fan-out, by hand.
LAYERS = [
    (lambda: nn.Linear(12, 20), 12, 20),
    (lambda: nn.Linear(20, 12, bias=False), 20, 12),
    (lambda: nn.Conv1d(6, 10, 3), 3 * 6, 3 * 10),
    (lambda: nn.Conv2d(4, 6, (3, 2)), 6 * 4, 6 * 6),
    (lambda: nn.Conv2d(6, 9, 3, groups=3), 9 * 2, 9 * 3),
    (lambda: nn.Conv2d(8, 8, 3, groups=8), 9, 9),
    (lambda: nn.Conv3d(2, 4, 2), 8 * 2, 8 * 4),
    (lambda: nn.ConvTranspose1d(6, 4, 5), 5 * 6, 5 * 4),
    (lambda: nn.ConvTranspose2d(6, 4, 3, groups=2), 9 * 3, 9 * 2),
    (lambda: nn.ConvTranspose3d(3, 5, 2), 8 * 3, 8 * 5),
]
APIS = ["wnfused", "hook", "parametrizations"]
layers = pytest.mark.parametrize(("plain", "fan_in", "fan_out"), LAYERS)
apis = pytest.mark.parametrize("api", APIS)
pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated"),
    pytest.mark.filterwarnings("ignore:Initializing zero-element tensors"),
]


def seeded(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normalize(module: nn.Module, api: str, dim: int | None = 0) -> nn.Module:
    """``module`` with all its plain layers under this weight norm."""
    if api == "wnfused":
        wnfused.apply(module, dim=dim)
        return module
    put_on = hook_norm if api == "hook" else parametrizations.weight_norm
    for layer in list(module.modules()):
        if isinstance(layer, nn.Linear | nn.modules.conv._ConvNd):
            put_on(layer, dim=dim)
    return module


def rows(layer: nn.Module) -> torch.Tensor:
    """The normalized weight as [groups, rows, columns], unfolded output by output."""
    weight, groups = layer.weight.detach(), getattr(layer, "groups", 1)
    if not isinstance(layer, nn.modules.conv._ConvTransposeNd):
        return torch.stack([part.flatten(1) for part in weight.chunk(groups)])
    return torch.stack([part.transpose(0, 1).flatten(1) for part in weight.chunk(groups)])


class Residual(nn.Module):
    """A small residual network with everything in it: groups, a shortcut, functional and module ReLUs, pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.first = nn.Conv2d(8, 12, 3, stride=2, padding=1, groups=2)
        self.second = nn.Conv2d(12, 12, 3, padding=1, bias=False)
        self.shortcut = nn.Conv2d(8, 12, 1, stride=2)
        self.up = nn.ConvTranspose2d(12, 5, 2, stride=2)
        self.relu = nn.ReLU()
        self.head = nn.Linear(5, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        x = self.shortcut(x) + self.second(F.relu(self.first(x)))
        return self.head(self.relu(self.up(x)).mean((2, 3)))


GAMMAS = {"stem": 1, "first": 2, "second": 1.0, "shortcut": 1, "up": 2, "head": 1}
BATCH = torch.randn(6, 3, 8, 8, generator=seeded(7)) + 0.5
SCHEMES = {
    "robust_": lambda model, generator: robust_(model, roles=GAMMAS, generator=generator),
    "robust_ he": lambda model, generator: robust_(model, roles=GAMMAS, distribution="he", generator=generator),
    "he_": lambda model, generator: he_(model, generator=generator),
    "torch_default_": lambda model, generator: torch_default_(model, generator=generator),
    "data_dependent_": lambda model, generator: data_dependent_(model, BATCH, generator=generator),
    "hanin_": lambda model, generator: hanin_(
        model, roles={name: role("other", gamma) for name, gamma in GAMMAS.items()}, generator=generator
    ),
}
schemes = pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES.keys())


def role(kind: str, gamma: float | None) -> SimpleNamespace:
    return SimpleNamespace(kind=kind, gamma=gamma, why="says the test")


def state(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: t.clone() for name, t in model.state_dict().items()}


def assert_same(model: nn.Module, before: dict[str, torch.Tensor]) -> None:
    after = model.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], before[name]) for name in before)


# Gains


def test_gain():
    assert gain(300, 150, 2) == 2.0
    assert gain(150, 300, 1) == math.sqrt(0.5)
    assert gain(16, 16, 1 / 4) == 0.5
    assert gain(5, 7, 0) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 3, 2), "gain: fan_in: expected a finite number > 0, got 0"),
        ((3, 0, 2), "gain: fan_out: expected a finite number > 0, got 0"),
        ((3, math.inf, 2), "gain: fan_out"),
        ((3, 3, -1), "gain: gamma: expected a finite number >= 0, got -1"),
        ((3, 3, math.nan), "gain: gamma"),
        ((3, 3, "relu"), "gain: gamma: .* got 'relu'"),
    ],
)
def test_gain_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        gain(*arguments)


@layers
@apis
@pytest.mark.parametrize("distribution", ["orthogonal", "he"])
def test_every_row_has_the_gain_by_hand(plain, fan_in, fan_out, api, distribution):
    layer = plain()
    transposed, groups = isinstance(layer, nn.modules.conv._ConvTransposeNd), getattr(layer, "groups", 1)
    normalize(layer, api, dim=1 if transposed else 0)
    for variant, expected in (("forward", math.sqrt(2 * fan_in / fan_out)), ("backward", math.sqrt(2))):
        robust_layer_(layer, 2, variant=variant, distribution=distribution)
        norms = rows(layer).norm(dim=-1)
        if transposed and groups > 1:  # one gain for the outputs at the same place in each group
            norms = norms.square().mean().sqrt()
        torch.testing.assert_close(norms, torch.full_like(norms, expected))
        assert layer.bias is None or not layer.bias.any()


@layers
@apis
def test_other_dims_have_the_same_scale(plain, fan_in, fan_out, api):
    for dim in (*range(plain().weight.ndim), None):
        layer = normalize(plain(), api, dim)
        robust_layer_(layer, 0.5)
        g = layer_of("test", layer).g
        assert (g == g.flatten()[0]).all()
        mean_square = rows(layer).square().sum(-1).mean()
        torch.testing.assert_close(mean_square, torch.tensor(0.5 * fan_in / fan_out))


def test_gains_of_other_dims_by_hand():
    layer = wnfused.WNConvTranspose1d(6, 4, 5)  # dim=0: the input channel
    robust_layer_(layer, 2)
    torch.testing.assert_close(layer.weight_g, torch.full((6, 1, 1), math.sqrt(2)))
    layer = wnfused.WNLinear(6, 4, dim=None)
    robust_layer_(layer, 2)
    torch.testing.assert_close(layer.weight_g, torch.tensor(math.sqrt(2 * 6 / 4) * 2).expand_as(layer.weight_g))


# Directions


@layers
@apis
def test_orthogonal_group_by_group(plain, fan_in, fan_out, api):
    layer = normalize(plain(), api)
    robust_layer_(layer, 1)
    one = layer_of("test", layer)
    for matrix in one.to_matrices(one.v.detach()):
        small = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
        torch.testing.assert_close(small @ small.T, torch.eye(len(small)))
    assert one.to_matrices(one.v).shape[-1] == fan_in
    torch.testing.assert_close(one.from_matrices(one.to_matrices(one.v)), one.v)


def test_orthogonal_rows_stay_orthogonal_in_the_weight():
    layer = wnfused.WNConv2d(6, 9, 3, groups=3)
    robust_layer_(layer, 1)
    for matrix in rows(layer):
        torch.testing.assert_close(matrix @ matrix.T, 18 / 27 * torch.eye(3))


@pytest.mark.parametrize("plain", [lambda: nn.Linear(7, 5), lambda: nn.Linear(5, 7), lambda: nn.Conv2d(3, 40, 3)])
def test_one_group_is_torchs_orthogonal(plain):
    layer = normalize(plain(), "wnfused")
    robust_layer_(layer, 1, generator=seeded())
    torch.testing.assert_close(layer.weight_v, nn.init.orthogonal_(plain().weight, generator=seeded()))


def test_he_directions_have_their_variance():
    layer = wnfused.WNConv2d(40, 50, 3, groups=2)
    robust_layer_(layer, 1, distribution="he")
    assert abs(layer.weight_v.var() * 9 * 20 - 1) < 0.06
    he_(layer)
    assert abs(layer.weight_v.var() * 9 * 20 - 2) < 0.12
    assert (layer.weight_g == 1).all()
    assert not layer.bias.any()


def test_torch_default_is_torchs():
    for plain, _, _ in LAYERS:
        torch.manual_seed(3)
        new = plain()
        for api in APIS:
            layer = normalize(plain(), api)
            torch_default_(layer, generator=seeded(3))
            torch.testing.assert_close(layer.weight, new.weight)
            assert new.bias is None or torch.equal(layer.bias, new.bias)


# All three kinds of weight norm, and randomness


@schemes
def test_torchs_weight_norms_get_what_ours_get(scheme):
    outputs = []
    for api in APIS:
        model = normalize(Residual(), api)
        scheme(model, seeded())
        found = [layer_of("test", m) for m in (model.stem, model.first, model.second, model.up, model.head)]
        outputs.append([t.detach() for one in found for t in (one.g, one.v, one.module.weight)] + [model(BATCH)])
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(outputs[2], outputs[0], rtol=1e-4, atol=1e-5)


@schemes
def test_generator_decides_alone(scheme):
    models = [normalize(Residual(), "wnfused") for _ in range(3)]
    before = torch.get_rng_state()
    for model, seed in zip(models, (1, 1, 2), strict=True):
        assert scheme(model, seeded(seed)) is None
    assert torch.equal(torch.get_rng_state(), before)
    assert_same(models[1], state(models[0]))
    assert not torch.equal(models[2].stem.weight_v, models[0].stem.weight_v)
    torch.manual_seed(5)
    scheme(models[0], None)
    assert not torch.equal(torch.get_rng_state(), before)


@schemes
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes(scheme, dtype):
    model = normalize(Residual(), "wnfused").to(dtype)
    if scheme is SCHEMES["data_dependent_"]:
        data_dependent_(model, BATCH.to(dtype))
    else:
        scheme(model, seeded())
    assert {p.dtype for p in model.parameters()} == {dtype}
    assert all(torch.isfinite(p).all() for p in model.parameters())


@schemes
def test_gradients_flow_afterwards(scheme):
    model = normalize(Residual(), "hook")
    scheme(model, None)
    assert model.stem.weight.requires_grad == (scheme is not SCHEMES["data_dependent_"])  # that ran without gradients
    assert not any(p.grad_fn for p in model.parameters())
    model(BATCH).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_plain_layers_and_batch_norm_stay_as_they_are():
    model = nn.Sequential(wnfused.WNConv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3))
    before = state(model)
    robust_(model, roles={"0": 2})
    data_dependent_(model, BATCH)
    after = model.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"0.weight_g", "0.weight_v", "0.bias"}


def test_layers_without_a_formula_are_named():
    model = nn.Sequential(wnfused.WNLinear(3, 4), parametrizations.weight_norm(nn.LSTM(4, 4), "weight_hh_l0"))
    with pytest.warns(UserWarning, match=r"he_: left as they were, there is no formula for them: 1 \(LSTM\)"):
        he_(model)
    with pytest.raises(ValueError, match=r"found none .*; there is no formula for \(the model itself\) \(LSTM\)"):
        he_(model[1])


# Roles


def test_robust_takes_numbers_and_roles():
    model, other = MLP(3, [6, 8, 10], inputs=4), MLP(3, [6, 8, 10], inputs=4)
    robust_(model, roles={"hidden.0": 2, "hidden.1": 1.0, "hidden.2": 1 / 3})
    robust_(other, roles={f"hidden.{i}": role("other", gamma) for i, gamma in enumerate((2, 1, 1 / 3))})
    for i, square in enumerate((2 * 4 / 6, 6 / 8, 8 / 10 / 3)):
        torch.testing.assert_close(model.hidden[i].weight_g.square().mean(), torch.tensor(square))
        assert torch.equal(model.hidden[i].weight_g, other.hidden[i].weight_g)
    robust_(model, roles={f"hidden.{i}": 2 for i in range(3)}, variant="backward")
    assert all(torch.allclose(layer.weight_g.square(), torch.tensor(2.0)) for layer in model.hidden)


def wrn_roles(model: WRN, blocks: int) -> dict[str, SimpleNamespace]:
    kinds = {"branch.0": ("before_relu", 2), "branch.1": ("residual_end", 1 / blocks), "shortcut": ("shortcut", 1)}
    names = [name for name, m in model.named_modules() if hasattr(m, "weight_g")]
    return {name: role(*next((kinds[k] for k in kinds if name.endswith(k)), ("other", 1))) for name in names}


def test_roles_are_inferred_from_an_example():
    models = [WRN(blocks=2, k=2) for _ in range(4)]
    roles, x = wrn_roles(models[0], 2), torch.randn(2, 3, 16, 16)
    robust_(models[0], roles=roles, generator=seeded())
    robust_(models[1], x, generator=seeded())
    assert_same(models[1], state(models[0]) | {k: v for k, v in models[1].state_dict().items() if "head" in k})
    hanin_(models[2], roles=roles, generator=seeded())
    hanin_(models[3], x, generator=seeded())
    assert_same(models[3], state(models[2]) | {k: v for k, v in models[3].state_dict().items() if "head" in k})


def test_hanin_shrinks_along_each_stage():
    model = WRN(blocks=3)
    hanin_(model, roles=wrn_roles(model, 3))
    for stage in model.stages:
        for b, block in enumerate(stage, start=1):
            torch.testing.assert_close(block.branch[1].weight_g.mean(), torch.tensor(0.9**b))
        torch.testing.assert_close(stage[1].branch[0].weight_g.mean(), torch.tensor(math.sqrt(2)))
    torch.testing.assert_close(model.stages[1][0].shortcut.weight_g.mean(), torch.tensor(math.sqrt(1 / 2)))
    ours = WRN(blocks=3)
    robust_(ours, roles=wrn_roles(ours, 3))
    torch.testing.assert_close(ours.stages[2][2].branch[1].weight_g.mean(), torch.tensor(math.sqrt(1 / 3)))


# Data-dependent


def preactivations(model: nn.Module, x: torch.Tensor) -> dict[str, torch.Tensor]:
    """What each layer gives before its ReLU, fused or not: [outputs, everything else]."""
    seen: dict[str, torch.Tensor] = {}

    def remember(name):
        def hook(module, args):
            plain = copy.deepcopy(module)
            plain._forward_pre_hooks.clear()
            plain.activation = None
            y = plain(*args)
            seen[name] = y.movedim(1, 0).flatten(1)

        return hook

    hooks = [m.register_forward_pre_hook(remember(n)) for n, m in model.named_modules() if hasattr(m, "weight_g")]
    with torch.no_grad():
        model(x)
    for hook in hooks:
        hook.remove()
    return seen


@pytest.mark.parametrize(
    "model",
    [
        lambda: normalize(Residual(), "wnfused"),
        lambda: normalize(Residual(), "wnfused", dim=1),
        lambda: normalize(Residual(), "wnfused", dim=None),
        lambda: ResNet(8),
        lambda: WRN(10),
        lambda: CNN(3, channels=8),
        lambda: MLP(4, 16, inputs=192),
    ],
)
@pytest.mark.parametrize("distribution", ["orthogonal", "he"])
def test_data_dependent_statistics(model, distribution):
    model = model()
    data_dependent_(model, BATCH, distribution=distribution)
    found = preactivations(model, BATCH)
    assert len(found) == sum(hasattr(m, "weight_g") for m in model.modules())
    for name, y in found.items():
        torch.testing.assert_close(y.std(dim=1, correction=0), torch.ones(len(y)), rtol=2e-3, atol=0)
        if name != "second":  # which has no bias
            torch.testing.assert_close(y.mean(dim=1), torch.zeros(len(y)), rtol=0, atol=2e-3)


def test_data_dependent_leaves_nothing_behind():
    model = nn.Sequential(wnfused.WNConv2d(3, 4, 3, activation="relu"), nn.BatchNorm2d(4), nn.Dropout())
    data_dependent_(model, BATCH)
    assert not model[0]._forward_pre_hooks
    assert model[0].activation == "relu"
    assert model[1].num_batches_tracked == 0
    assert model.training


def test_data_dependent_takes_several_inputs():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = wnfused.WNLinear(3, 4), wnfused.WNLinear(5, 4)

        def forward(self, x, y):
            return self.a(x) + self.b(y)

    x, y = torch.randn(9, 3), torch.randn(9, 5)
    models = [Two(), Two()]
    data_dependent_(models[0], (x, y), generator=seeded())
    data_dependent_(models[1], {"y": y, "x": x}, generator=seeded())
    assert_same(models[1], state(models[0]))


def test_data_dependent_sets_a_shared_layer_at_its_first_call():
    shared = wnfused.WNLinear(4, 4)
    x = torch.randn(50, 4)
    data_dependent_(nn.Sequential(shared, nn.ReLU(), shared), x)
    torch.testing.assert_close(shared(x).std(dim=0, correction=0), torch.ones(4))


# Bad input: a clear error, and the model as it was


class Unreached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused, self.norm = wnfused.WNLinear(3, 4), wnfused.WNLinear(3, 4), nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.used(x))


def mlp() -> nn.Module:
    return nn.Sequential(wnfused.WNLinear(3, 4, activation="relu"), nn.BatchNorm1d(4), wnfused.WNLinear(4, 2))


class Constant(nn.Module):
    """The second layer sees a constant in its first input channel only, and has one group for each channel."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = wnfused.WNConv1d(2, 2, 1), wnfused.WNConv1d(2, 2, 1, groups=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x) * torch.tensor([0.0, 1.0]).view(1, 2, 1) + 3)


X = torch.randn(5, 3, generator=seeded(9))
NAN = X.clone()
NAN[2, 1] = math.nan
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
        (mlp, robust_, r"robust_: example_input: expected an input of the model \(or roles=\), got None"),
        (mlp, hanin_, "hanin_: example_input"),
        (mlp, lambda m: robust_(m, roles={"0": 2}), "robust_: roles: expected a role for every .* none for '2'"),
        (mlp, lambda m: robust_(m, roles={"0": 2, "2": 1, "3": 1}), "robust_: roles: '3': no weight-normalized layer"),
        (mlp, lambda m: robust_(m, roles={"0": 2, "2": -1}), "robust_: roles: layer '2': .* got -1"),
        (mlp, lambda m: robust_(m, roles={"0": 2, "2": "relu"}), "robust_: roles: layer '2': .* got 'relu'"),
        (
            mlp,
            lambda m: robust_(m, roles={"0": 2, "2": role("unknown", None)}),
            r"layer '2': expected a gamma, got None \(says the test\)",
        ),
        (mlp, lambda m: robust_(m, roles={"0": 2, "2": 1}, variant="both"), "robust_: variant: .* got 'both'"),
        (mlp, lambda m: robust_(m, roles={"0": 2, "2": 1}, distribution="x"), "robust_: distribution: .* got 'x'"),
        (mlp, lambda m: robust_layer_(m[0], None), "robust_layer_: gamma: .* got None"),
        (mlp, lambda m: robust_layer_(m[0], 2, variant=1), "robust_layer_: variant"),
        (mlp, lambda m: hanin_(m, roles={"0": 1, "2": 1}), "hanin_: roles: layer '0': expected a Role"),
        (mlp, lambda m: hanin_(m, roles=ENDS), "hanin_: roles: layer '0' has gamma 0.333.*: expected 1/B and B such"),
        (mlp, lambda m: data_dependent_(m, X[:1]), r"batch: expected at least 2 samples .* got shape \(1, 3\)"),
        (mlp, lambda m: data_dependent_(m, X[:0]), r"batch: expected at least 2 samples .* got shape \(0, 3\)"),
        (mlp, lambda m: data_dependent_(m, X[0]), r"batch: expected at least 2 samples .* got shape \(3,\)"),
        (mlp, lambda m: data_dependent_(m, NAN), "batch: expected finite numbers, got NaN or infinity"),
        (mlp, lambda m: data_dependent_(m, X[:1].expand(4, 3)), r"layer '0': channel 0 \(and 3 more\) is constant"),
        (mlp, lambda m: data_dependent_(m, X, distribution="x"), "data_dependent_: distribution"),
        (Constant, lambda m: data_dependent_(m, torch.randn(4, 2, 5)), "layer 'second': channel 0 is constant"),
        (Unreached, lambda m: data_dependent_(m, X), "the forward pass of the batch does not reach 'unused'"),
    ],
)
def test_errors_leave_the_model_as_it_was(build, call, message):
    model = build()
    before = state(model)
    with pytest.raises(ValueError, match=message):
        call(model)
    assert_same(model, before)
    assert not any(m._forward_pre_hooks for m in model.modules())


@apis
def test_an_error_half_way_puts_everything_back(api):
    model = normalize(Residual(), api)
    model(BATCH)
    before, weight = state(model), model.stem.weight.detach().clone()

    def stop(*_):
        raise KeyboardInterrupt

    model.head.register_forward_pre_hook(stop)
    with pytest.raises(KeyboardInterrupt):
        data_dependent_(model, BATCH)
    assert_same(model, before)
    assert torch.equal(model.stem.weight, weight)


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
