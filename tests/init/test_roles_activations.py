"""Roles of layers before an activation: its spellings, its γ by simulation, and the operations in between."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.support.role_models import IMAGE, Model, X, conv, fc, kinds
from wnfused.init import robust_
from wnfused.init.activations import activation_gamma
from wnfused.init.roles import infer_roles


class LeakyInPlace(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.leaky_relu_(x, 0.3)


RELUS: dict[str, Callable[[Tensor], Tensor]] = {
    "module": nn.ReLU(),
    "in-place module": nn.ReLU(inplace=True),
    "F.relu": F.relu,
    "in-place F.relu": lambda x: F.relu(x, inplace=True),
    "torch.relu": torch.relu,
    "method": lambda x: x.relu(),
    "in-place method": lambda x: x.relu_(),
    "clamp": lambda x: x.clamp(min=0),
    "clamp_": lambda x: x.clamp_(0),
    "clamp_min": lambda x: torch.clamp_min(x, 0.0),
    "threshold": nn.Threshold(0, 0),
    "keyword": lambda x: F.relu(input=x),
}


@pytest.mark.parametrize("spelling", RELUS)
def test_spellings_of_relu(spelling: str) -> None:
    relu = RELUS[spelling]
    roles = infer_roles(Model(lambda m, x: m.b(relu(m.a(x))), a=fc(), b=fc()), X)
    assert (roles["a"].kind, roles["a"].gamma, roles["b"].kind) == ("before_relu", 2.0, "other")


def test_a_nonzero_threshold_is_not_a_relu() -> None:
    for other in (lambda x: x.clamp(-1, 1), lambda x: x.clamp(min=-1), nn.Threshold(0.1, 5)):
        model = Model(lambda m, x, other=other: m.b(other(m.a(x))), a=fc(), b=fc())
        assert infer_roles(model, X)["a"].kind != "before_relu"


ACTIVATIONS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "LeakyReLU": (nn.LeakyReLU(0.2), "leaky_relu"),
    "LeakyReLU default": (F.leaky_relu, "leaky_relu"),
    "leaky_relu_": (LeakyInPlace(), "leaky_relu"),
    "PReLU": (nn.PReLU(8, 0.4), "prelu"),
    "ELU": (nn.ELU(1.5), "elu"),
    "elu": (F.elu, "elu"),
    "SELU": (nn.SELU(inplace=True), "selu"),
    "CELU": (nn.CELU(2.0), "celu"),
    "GELU": (nn.GELU(), "gelu"),
    "GELU tanh": (nn.GELU("tanh"), "gelu"),
    "SiLU": (nn.SiLU(), "silu"),
    "silu": (F.silu, "silu"),
    "x sigmoid(x)": (lambda x: x * torch.sigmoid(x), "silu"),
    "Mish": (nn.Mish(), "mish"),
    "Hardswish": (nn.Hardswish(), "hardswish"),
    "ReLU6": (nn.ReLU6(), "relu6"),
    "Softplus": (nn.Softplus(), "softplus"),
    "tanh": (torch.tanh, "tanh"),
    "sigmoid": (torch.sigmoid, "sigmoid"),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_keep_the_mean_square(name: str) -> None:
    """For unit normal inputs γ · E[φ(z)²] is 1, within four standard errors of the sample."""
    phi, kind = ACTIVATIONS[name]
    parts = {"act": phi} if isinstance(phi, nn.Module) else {}
    role = infer_roles(Model(lambda m, x: m.b(phi(m.a(x))), a=fc(), b=fc(), **parts), X)["a"]
    with torch.no_grad():
        squares = role.gamma * phi(torch.randn(50_000, 8)).double().square().flatten()
    error = 4 * squares.std().item() / len(squares) ** 0.5
    assert role.kind == kind
    assert error < 0.02 and abs(squares.mean().item() - 1) < error


def test_stated_gammas() -> None:
    assert activation_gamma(torch.relu) == pytest.approx(2, abs=1e-6)
    assert activation_gamma(lambda z: F.leaky_relu(z, 0.1)) == pytest.approx(2 / 1.01, abs=1e-6)
    stated = {F.elu: 1.55, F.gelu: 2.35, F.silu: 2.81, F.selu: 1.00, torch.tanh: 2.54, torch.sigmoid: 3.41}
    for phi, gamma in stated.items():
        assert activation_gamma(phi) == pytest.approx(gamma, abs=0.006)
    leaky = infer_roles(nn.Sequential(fc(), nn.LeakyReLU(0.5), fc()), X)
    assert leaky["0"].gamma == 2 / 1.25


# Mean square of the activations after ten layers, for inputs of mean square 1: see docs/initialization.md.
AFTER_TEN = {"gelu": (F.gelu, 3.4), "silu": (F.silu, 13), "elu": (F.elu, 0.74), "tanh": (torch.tanh, 0.39)}


@pytest.mark.parametrize(("phi", "after_ten"), AFTER_TEN.values(), ids=AFTER_TEN)
def test_drift_of_activations_with_a_scale(phi: Callable[[Tensor], Tensor], after_ten: float) -> None:
    """With γ = 1 in the first layer pre-activations keep variance 1; with the role's γ they drift as documented."""

    def forward(m: Any, x: Tensor) -> Tensor:
        for layer in m.layers:
            x = phi(layer(x))
        return x

    model, x = Model(forward, layers=nn.ModuleList(fc(300, 300) for _ in range(10))), torch.randn(50, 300)
    roles = infer_roles(model, x)
    gamma = roles["layers.0"].gamma
    assert {role.gamma for role in roles.values()} == {gamma}
    drifted, kept = [], []
    with torch.no_grad():
        for _ in range(12):  # single networks differ by 30%
            robust_(model, roles=roles, distribution="he")
            drifted.append(model(x).square().mean())
            first, second, third = model.layers[:3]
            first.weight_g.fill_(1.0)
            kept.append(third(phi(second(phi(first(x))))).square().mean())
    assert torch.stack(drifted).mean().item() == pytest.approx(after_ten, rel=0.3)
    assert torch.stack(kept).mean().item() == pytest.approx(1, abs=0.1)


def test_operations_that_preserve_the_role() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        x = F.relu(m.pool(m.drop(m.a(x))))
        x = F.relu(F.dropout2d(F.max_pool2d(m.b(x), 2), 0.5, m.training))
        x = F.relu(0.5 * m.c(x).flatten(1)[:, :8] / 2 + 1)
        x = m.d(x).view(-1, 2, 4).permute(0, 2, 1).contiguous()
        return m.e(F.relu(nn.Identity()(F.pad(x, (1, 1))).mean(1)))

    model = Model(forward, a=conv(3), drop=nn.Dropout(), pool=nn.AvgPool2d(2), b=conv(), c=conv(), d=fc(), e=fc(4, 2))
    roles = infer_roles(model, IMAGE)
    assert [role.kind for role in roles.values()] == ["before_relu"] * 4 + ["other"]
    assert roles["a"].why == "feeds relu_1 through drop (Dropout), pool (AvgPool2d)"
    assert roles["e"].why == "produces the model's output"


def test_another_layer_does_not_preserve_the_role() -> None:
    roles = infer_roles(nn.Sequential(fc(), fc(), nn.BatchNorm1d(8), nn.ReLU(), fc(), nn.Softmax(-1)), X)
    assert [role.kind for role in roles.values()] == ["other"] * 3
    assert "feeds 1" in roles["0"].why and "rescales" in roles["1"].why and "not an activation" in roles["4"].why


def test_concatenations() -> None:
    """A dense block: every later layer reads each layer's output, always through the ReLU."""

    def dense(m: Any, x: Tensor) -> Tensor:
        features = [m.a(x)]
        for layer in (m.b, m.c):
            features.append(layer(F.relu(torch.cat(features, 1))))
        return m.d(F.relu(torch.cat(features, 1)))

    model = Model(dense, a=fc(), b=fc(), c=fc(16, 8), d=fc(24, 8))
    assert kinds(model) == {"a": "before_relu", "b": "before_relu", "c": "before_relu", "d": "other"}


def test_conflicting_uses_are_reported() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        h = m.a(x)
        return m.d(torch.cat([m.b(F.relu(h)), m.c(h)], 1))

    role = infer_roles(Model(forward, a=fc(), b=fc(), c=fc(), d=fc(16, 8)), X)["a"]
    assert (role.kind, role.gamma) == ("other", 1.0)
    assert "different ways" in role.why and "relu_1" in role.why and "feeds c" in role.why


def test_consistent_uses() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        h = m.a(x)
        return m.b(F.relu(h)) + m.c(F.relu(F.dropout(h, 0.1, m.training)))

    assert kinds(Model(forward, a=fc(), b=fc(), c=fc()))["a"] == "before_relu"


def test_halves_of_an_output() -> None:
    """Gated units read one half through one activation and the other through another, or the same."""

    def gated(m: Any, x: Tensor) -> Tensor:
        a, b = m.a(x).chunk(2, 1)
        return m.b(torch.tanh(a) * torch.sigmoid(b))

    def both(m: Any, x: Tensor) -> Tensor:
        a, b = m.a(x).chunk(2, 1)
        return m.b(a.relu_() * b.relu_())

    def apart(m: Any, x: Tensor) -> Tensor:
        a, b = m.a(x).chunk(2, 1)
        return m.b(torch.tanh(a)) + m.b(torch.sigmoid(b))

    assert infer_roles(Model(gated, a=fc(8, 16), b=fc()), X)["a"].kind == "gated"
    assert infer_roles(Model(both, a=fc(8, 16), b=fc()), X)["a"].gamma == 8
    assert "different ways" in infer_roles(Model(apart, a=fc(8, 16), b=fc()), X)["a"].why
