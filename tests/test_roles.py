"""Role inference: every layer's kind and γ in models nobody annotated, and what happens where they cannot be told."""

import io
import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from wnfused import WNConv1d, WNConv2d, WNConvTranspose1d, WNLinear
from wnfused.init.explain import explain
from wnfused.init.activations import activation_gamma
from wnfused.init.roles import Role, RolesUnknown, infer_roles
from wnfused.models import CNN, MLP, WRN, ResNet

X = torch.randn(2, 8)
IMAGE = torch.randn(1, 3, 16, 16)


class Model(nn.Module):
    """``forward(model, *inputs)`` over named parts."""

    def __init__(self, forward: Callable[..., Any], **parts: nn.Module) -> None:
        super().__init__()
        self._forward = forward
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._forward(self, *args, **kwargs)


def fc(inputs: int = 8, outputs: int = 8) -> nn.Module:
    return WNLinear(inputs, outputs)


def conv(inputs: int = 4, outputs: int = 4, size: int = 3, stride: int = 1) -> nn.Module:
    return WNConv2d(inputs, outputs, size, stride, size // 2)


def old_norm(layer: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return torch.nn.utils.weight_norm(layer)


def kinds(model: nn.Module, example: Any = X) -> dict[str, str]:
    return {name: role.kind for name, role in infer_roles(model, example).items()}


def branches(model: nn.Module, example: Any) -> dict[str, float]:
    """γ of the layers that end residual branches."""
    roles = infer_roles(model, example)
    return {name: role.gamma for name, role in roles.items() if role.kind == "residual_end"}


# This project's models


def test_mlp_and_cnn() -> None:
    for model, example in ((MLP(3, 16, inputs=8), X), (CNN(4, channels=8), IMAGE)):
        roles = infer_roles(model, example)
        assert all(role.kind == "before_relu" and role.gamma == 2 for role in roles.values())
        assert len(roles) == (3 if isinstance(model, MLP) else 4)


def check_stages(model: nn.Module, blocks: int, last: int) -> None:
    roles = infer_roles(model, IMAGE)
    for name, role in roles.items():
        if name.endswith("shortcut"):
            expected = ("shortcut", 1.0)
        elif name.endswith(f"branch.{last}"):
            expected = ("residual_end", 1 / blocks)
        elif name == "stem" and isinstance(model, WRN):
            expected = ("other", 1.0)
        else:
            expected = ("before_relu", 2.0)
        assert (role.kind, role.gamma) == expected, (name, role)
    assert len(branches(model, IMAGE)) == 3 * blocks


def test_basic_resnet() -> None:
    check_stages(ResNet(20), blocks=3, last=1)
    assert "in a stage of 3 blocks" in infer_roles(ResNet(20), IMAGE)["stages.1.2.branch.1"].why


def test_bottleneck_resnet() -> None:
    check_stages(ResNet(20, bottleneck=True), blocks=2, last=2)


@pytest.mark.parametrize("k", [1, 2])
def test_wide_resnet(k: int) -> None:
    check_stages(WRN(16, k), blocks=2, last=1)
    assert "where a residual block forks" in infer_roles(WRN(16, k), IMAGE)["stem"].why


@pytest.mark.parametrize("norm", ["hook", "parametrizations"])
def test_torch_weight_norms_without_fused_relus(norm: str) -> None:
    """The variant without normalization, under torch's weight norms: separate ReLU modules, none of our layers."""
    put_on = old_norm if norm == "hook" else parametrizations.weight_norm
    model = WRN(16, norm="none")
    for module in list(model.stem.modules()) + list(model.stages.modules()):
        if isinstance(module, nn.Conv2d):
            put_on(module)
    roles = infer_roles(model, IMAGE)
    ours = infer_roles(WRN(16), IMAGE)
    assert [(role.kind, role.gamma) for role in roles.values()] == [(role.kind, role.gamma) for role in ours.values()]


# What may follow a layer


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


def test_a_threshold_elsewhere_is_no_relu() -> None:
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
    """γ by simulation: unit normal in, γ · E[φ(z)²] = 1 within four standard errors of the sample."""
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


@pytest.mark.parametrize("phi", [F.gelu, F.silu, F.elu, torch.tanh])
def test_pre_activations_keep_variance_one(phi: Callable[[Tensor], Tensor]) -> None:
    """The γ of the roles in use, in wide layers with g² = γ that are fed with φ(z)."""
    layers = [fc(512, 512) for _ in range(3)]
    model = Model(lambda m, x: phi(m.c(phi(m.b(phi(m.a(x)))))), **dict(zip("abc", layers, strict=True)))
    for layer, role in zip(layers, infer_roles(model, torch.randn(1, 512)).values(), strict=True):
        with torch.no_grad():
            layer.weight_v.normal_()
            layer.weight_g.fill_(role.gamma**0.5)
            layer.bias.zero_()
    with torch.no_grad():
        x = phi(torch.randn(200, 512))
        for layer in layers:
            before = layer(x)
            assert before.square().mean().item() == pytest.approx(1, abs=0.1)
            x = phi(before)


def test_through_what_keeps_the_role() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        x = F.relu(m.pool(m.drop(m.a(x))))
        x = F.relu(F.dropout2d(F.max_pool2d(m.b(x), 2), 0.5, m.training))
        x = F.relu(0.5 * m.c(x).flatten(1)[:, :8] / 2 + 1)
        x = m.d(x).view(-1, 2, 4).permute(0, 2, 1).contiguous()
        return m.e(F.relu(nn.Identity()(F.pad(x, (1, 1))).mean(1)))

    model = Model(forward, a=conv(3), drop=nn.Dropout(), pool=nn.AvgPool2d(2), b=conv(), c=conv(), d=fc(), e=fc(4, 2))
    roles = infer_roles(model, IMAGE)
    assert [role.kind for role in roles.values()] == ["before_relu"] * 4 + ["other"]
    assert roles["a"].why == "relu_1 follows through drop (Dropout), pool (AvgPool2d)"
    assert roles["e"].why == "it gives the model's output"


def test_a_layer_between_is_not_looked_through() -> None:
    roles = infer_roles(nn.Sequential(fc(), fc(), nn.BatchNorm1d(8), nn.ReLU(), fc(), nn.Softmax(-1)), X)
    assert [role.kind for role in roles.values()] == ["other"] * 3
    assert "1 follows" in roles["0"].why and "rescales" in roles["1"].why and "no activation" in roles["4"].why


def test_concatenations() -> None:
    """A dense block: each layer's output is read by every later one, always through the ReLU."""

    def dense(m: Any, x: Tensor) -> Tensor:
        features = [m.a(x)]
        for layer in (m.b, m.c):
            features.append(layer(F.relu(torch.cat(features, 1))))
        return m.d(F.relu(torch.cat(features, 1)))

    model = Model(dense, a=fc(), b=fc(), c=fc(16, 8), d=fc(24, 8))
    assert kinds(model) == {"a": "before_relu", "b": "before_relu", "c": "before_relu", "d": "other"}


def test_consumers_that_disagree_are_reported() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        h = m.a(x)
        return m.d(torch.cat([m.b(F.relu(h)), m.c(h)], 1))

    role = infer_roles(Model(forward, a=fc(), b=fc(), c=fc(), d=fc(16, 8)), X)["a"]
    assert (role.kind, role.gamma) == ("other", 1.0)
    assert "different ways" in role.why and "relu_1" in role.why and "c follows" in role.why


def test_consumers_that_agree() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        h = m.a(x)
        return m.b(F.relu(h)) + m.c(F.relu(F.dropout(h, 0.1, m.training)))

    assert kinds(Model(forward, a=fc(), b=fc(), c=fc()))["a"] == "before_relu"


def test_halves_of_an_output() -> None:
    """A gated unit reads one half through tanh and the other through a sigmoid; two ReLUs would agree."""

    def gated(m: Any, x: Tensor) -> Tensor:
        a, b = m.a(x).chunk(2, 1)
        return m.b(torch.tanh(a) * torch.sigmoid(b))

    def both(m: Any, x: Tensor) -> Tensor:
        a, b = m.a(x).chunk(2, 1)
        return m.b(a.relu_() * b.relu_())

    assert "different ways" in infer_roles(Model(gated, a=fc(8, 16), b=fc()), X)["a"].why
    assert kinds(Model(both, a=fc(8, 16), b=fc()))["a"] == "before_relu"


# Residual blocks


class PostActivation(nn.Module):
    """He et al.'s block: ReLU after the sum, in place."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1, self.conv2 = conv(inputs, outputs, 3, stride), conv(outputs, outputs)
        self.relu = nn.ReLU(inplace=True)
        self.down = conv(inputs, outputs, 1, stride) if inputs != outputs else None

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv2(self.relu(self.conv1(x)))
        out += x if self.down is None else self.down(x)
        return self.relu(out)


class PreActivation(nn.Module):
    """The identity, or a shortcut convolution that reads what the branch reads."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1, self.conv2 = conv(inputs, outputs, 3, stride), conv(outputs, outputs)
        self.down = conv(inputs, outputs, 1, stride) if inputs != outputs else None

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(x)
        shortcut = x if self.down is None else self.down(out)
        out = self.conv2(F.dropout(F.relu(self.conv1(out)), 0.3, self.training))
        return torch.add(shortcut, out)


def network(block: Any, stem_relu: bool) -> nn.Sequential:
    """Stages of 3 and 2 blocks."""
    stem = nn.Sequential(conv(3, 4), nn.ReLU()) if stem_relu else nn.Sequential(conv(3, 4))
    first = nn.Sequential(*(block(4, 4) for _ in range(3)))
    second = nn.Sequential(block(4, 8, 2), block(8, 8))
    head = nn.Sequential(nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), fc(8, 2))
    return nn.Sequential(stem, first, second, head)


@pytest.mark.parametrize("block", [PostActivation, PreActivation])
def test_blocks_with_a_relu_after_the_sum_or_before_the_branch(block: Any) -> None:
    roles = infer_roles(network(block, stem_relu=block is PostActivation), IMAGE)
    assert roles.pop("0.0").kind == ("before_relu" if block is PostActivation else "other")
    assert roles.pop("3.3").kind == "other"
    for name, role in roles.items():
        expected = {"conv1": ("before_relu", 2.0), "down": ("shortcut", 1.0)}
        ends = ("residual_end", 1 / (3 if name.startswith("1.") else 2))
        assert (role.kind, role.gamma) == expected.get(name.split(".")[-1], ends), (name, role)


def test_in_place_relu_on_the_value_that_forks() -> None:
    """The shortcut then carries the ReLU's result too: the stem is before a ReLU, whatever its author meant."""

    def forward(m: Any, x: Tensor) -> Tensor:
        h = m.stem(x)
        y = m.b(F.relu(m.a(h.view(2, 2, 4).relu_().view(2, 8))))
        return m.head(h + y)

    expected = {"stem": "before_relu", "a": "before_relu", "b": "residual_end", "head": "other"}
    assert kinds(Model(forward, stem=fc(), a=fc(), b=fc(), head=fc())) == expected


def test_padded_shortcut_scaled_branch_and_difference() -> None:
    """He et al.'s shortcut without parameters; a branch scaled by a constant; x - f(x) as denoisers have it."""

    def forward(m: Any, x: Tensor) -> Tensor:
        x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 1, 0)) + 0.2 * m.b(F.relu(m.a(x)))
        return x - m.d(F.relu(m.c(x)))

    assert branches(Model(forward, a=conv(3, 4, 3, 2), b=conv(), c=conv(), d=conv()), IMAGE) == {"b": 0.5, "d": 0.5}


def test_shortcut_of_the_same_number_of_layers_is_the_pointwise_one() -> None:
    model = Model(lambda m, x: m.head((m.b(x) + m.a(x)).mean((2, 3))), a=conv(3), b=conv(3, size=1), head=fc(4, 2))
    assert kinds(model, IMAGE) == {"b": "shortcut", "a": "residual_end", "head": "other"}


def test_parallel_paths_of_equal_depth_are_no_residual_block() -> None:
    roles = infer_roles(Model(lambda m, x: m.c(F.relu(m.a(x) + m.b(x))), a=fc(), b=fc(), c=fc()), X)
    assert {role.kind for role in roles.values()} == {"other"}
    assert roles["a"].why == "it is one term of add_1, before relu_1"


def test_two_branches_on_one_shortcut() -> None:
    """x + f(x) + g(x): two sums of one shape, and so two branches in the stage."""
    model = Model(lambda m, x: m.d(x + m.b(F.relu(m.a(x))) + m.c(x)), a=fc(), b=fc(), c=fc(), d=fc())
    assert branches(model, X) == {"b": 0.5, "c": 0.5}


def test_branch_that_ends_in_a_concatenation() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        h = F.relu(m.a(x))
        return m.d(x + torch.cat([m.b(h), m.c(h)], 1))

    assert branches(Model(forward, a=fc(), b=fc(8, 4), c=fc(8, 4), d=fc()), X) == {"b": 1.0, "c": 1.0}


def test_branch_that_ends_with_an_activation() -> None:
    """x + relu(f(x)): γ = 2 would double the mean square with every block."""

    def forward(m: Any, x: Tensor) -> Tensor:
        x = x + F.relu(m.b(F.relu(m.a(x))))
        return m.d(x + m.c(x))

    model = Model(forward, a=fc(), b=fc(), c=WNLinear(8, 8, activation="relu"), d=fc())
    assert branches(model, X) == {"b": 0.5, "c": 0.5}
    assert kinds(model)["a"] == "before_relu"


def test_gated_branch() -> None:
    """Squeeze and excitation: the gate scales the branch, the convolution before it still ends the branch."""

    def forward(m: Any, x: Tensor) -> Tensor:
        h = m.b(F.relu(m.a(x)))
        gate = torch.sigmoid(m.up(F.relu(m.down(h.mean((2, 3))))))
        return x + h * gate[:, :, None, None]

    x = torch.randn(2, 4, 6, 6)
    found = kinds(Model(forward, a=conv(), b=conv(), down=fc(4, 2), up=fc(2, 4)), x)
    assert found == {"a": "before_relu", "b": "residual_end", "down": "before_relu", "up": "sigmoid"}


def test_statistics_of_the_output_itself_are_a_normalization() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        h = m.a(x)
        return m.b(F.relu(h * h.square().mean(1, keepdim=True).rsqrt()))

    assert "rescales" in infer_roles(Model(forward, a=fc(), b=fc()), X)["a"].why


def test_conditioned_block() -> None:
    """A broadcast embedding shifts the branch: neither a path of its own, nor does it hide the shortcut layer."""

    def forward(m: Any, x: Tensor, step: Tensor) -> Tensor:
        h = m.conv1(x) + m.embed(step)[:, :, None, None]
        return m.short(x) + m.conv2(F.silu(h))

    model = Model(forward, conv1=conv(4, 8), conv2=conv(8, 8), short=conv(4, 8, 1), embed=fc(3, 8))
    example = (torch.randn(2, 4, 6, 6), torch.randn(2, 3))
    expected = {"conv1": "silu", "embed": "other", "short": "shortcut", "conv2": "residual_end"}
    assert kinds(model, example) == expected


class Unit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = fc(), fc()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.b(F.relu(self.a(x)))


def test_nested_blocks() -> None:
    """Outer blocks of [inner, inner, layer]: the inner ones are stages of two, the outer ones one of three."""

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(Unit(), Unit())
            self.last = fc()

        def forward(self, x: Tensor) -> Tensor:
            return x + self.last(F.relu(self.inner(x)))

    model = nn.Sequential(fc(), Outer(), Outer(), Outer(), fc())
    for name, gamma in branches(model, X).items():
        assert gamma == (1 / 3 if name.endswith("last") else 1 / 2)
    roles = infer_roles(model, X)
    assert len(branches(model, X)) == 9 and roles["0"].kind == "other"
    assert "inside the branch into add_3" in roles["1.inner.0.b"].why


def test_nested_blocks_whose_branch_ends_with_an_inner_sum() -> None:
    model = Model(lambda m, x: m.head(x + m.inner(x)), inner=nn.Sequential(Unit(), Unit()), head=fc())
    roles = infer_roles(model, X)
    assert roles["inner.1.b"] == Role(
        "residual_end",
        0.5,
        "adds to the shortcut in a stage of 2 blocks, at add_2, the sum that ends the outer branch into add_3",
    )
    assert roles["inner.0.b"].gamma == 0.5


def test_long_skip_around_a_stage() -> None:
    """A super-resolution network: the body's blocks are a stage inside the long skip."""
    body = nn.Sequential(*(Unit() for _ in range(4)), fc())
    model = Model(lambda m, x: m.tail((h := m.head(x)) + m.body(h)), head=fc(), body=body, tail=fc())
    assert branches(model, X) == {**{f"body.{i}.b": 0.25 for i in range(4)}, "body.4": 1.0}


def test_a_layer_between_blocks_ends_the_stage() -> None:
    model = nn.Sequential(Unit(), Unit(), fc(), Unit(), nn.Dropout(), Unit(), Unit())
    assert list(branches(model, X).values()) == [1 / 2, 1 / 2, 1 / 3, 1 / 3, 1 / 3]


def test_vocoder() -> None:
    """HiFi-GAN's generator in small: residual towers side by side, whose sum is no residual sum."""

    class Tower(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.ModuleList(WNConv1d(4, 4, 3, padding=1) for _ in range(3))
            self.second = nn.ModuleList(WNConv1d(4, 4, 3, padding=1) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            for first, second in zip(self.first, self.second, strict=True):
                x = second(F.leaky_relu(first(F.leaky_relu(x, 0.1)), 0.1)) + x
            return x

    def forward(m: Any, x: Tensor) -> Tensor:
        x = m.up(F.leaky_relu(m.pre(x), 0.1))
        total = m.towers[0](x)
        total += m.towers[1](x)
        return torch.tanh(m.post(F.leaky_relu(total / 2)))

    towers = nn.ModuleList([Tower(), Tower()])
    pre, up, post = WNConv1d(2, 8, 7, padding=3), WNConvTranspose1d(8, 4, 4, 2, 1), WNConv1d(4, 1, 7, padding=3)
    roles = infer_roles(Model(forward, pre=pre, up=up, towers=towers, post=post), torch.randn(1, 2, 8))
    ends = {name: role.gamma for name, role in roles.items() if "second" in name}
    assert len(ends) == 6 and set(ends.values()) == {1 / 3}
    assert [roles[name].kind for name in ("pre", "up", "post")] == ["leaky_relu", "other", "tanh"]


def test_wavenet() -> None:
    """Gated, conditioned, with skip outputs: only the residual layers end branches, the skip sum is no residual sum."""

    def forward(m: Any, x: Tensor, condition: Tensor) -> Tensor:
        h, total = m.stem(x), 0
        for i in range(3):
            a, b = (m.filters[i](h) + m.conditions[i](condition)).chunk(2, 1)
            z = torch.tanh(a) * torch.sigmoid(b)
            total = total + m.skips[i](z)
            h = (h + m.residuals[i](z)) * 0.5**0.5
        return m.out(F.relu(torch.cat([total, h], 1)))

    def three(inputs: int, outputs: int, size: int = 1) -> nn.ModuleList:
        return nn.ModuleList(WNConv1d(inputs, outputs, size, padding=size // 2) for _ in range(3))

    parts = {"filters": three(4, 8, 3), "conditions": three(2, 8), "skips": three(4, 4), "residuals": three(4, 4)}
    model = Model(forward, stem=WNConv1d(1, 4, 1), **parts, out=WNConv1d(8, 1, 1))
    roles = infer_roles(model, (torch.randn(1, 1, 16), torch.randn(1, 2, 16)))
    for name, role in roles.items():
        assert role.gamma == (1 / 3 if name.startswith("residuals") else 1.0), (name, role)


# Shared layers, control flow, wrappers


def test_shared_layers() -> None:
    unit = Unit()
    assert branches(nn.Sequential(unit, unit, unit), X) == {"0.b": 1 / 3}
    alike = infer_roles(Model(lambda m, x: F.relu(m.a(F.relu(m.a(x)))), a=fc()), X)["a"]
    assert alike == Role("before_relu", 2.0, "relu_1 follows (the first of 2 uses, all alike)")
    role = infer_roles(Model(lambda m, x: m.a(F.relu(m.a(x))), a=fc()), X)["a"]
    assert role.kind == "other" and "2 uses differ" in role.why and "relu_1" in role.why


def test_data_dependent_control_flow() -> None:
    """What a layer's output decides is no use of it: the comparison does not reach the model's output."""

    def forward(m: Any, x: Tensor) -> Tensor:
        h = m.a(x)
        if h.abs().max() > -1:
            h = F.relu(h)
        for _ in range(int(x.shape[0])):
            h = h + m.c(F.relu(m.b(h)))
        return m.d(h)

    model = Model(forward, a=fc(), b=fc(), c=fc(), d=fc())
    with pytest.raises(torch.fx.proxy.TraceError):
        torch.fx.symbolic_trace(model)
    assert kinds(model) == {"a": "before_relu", "b": "before_relu", "c": "residual_end", "d": "other"}
    assert branches(model, X) == {"c": 0.5}


def test_checkpointing_hooks_and_compiled_parts() -> None:
    """Also an activation that a forward hook applies; torch.compile is not run."""
    unit = Unit()
    model = Model(lambda m, x: m.b(checkpoint(m.unit, m.a(x), use_reentrant=False)), a=fc(), unit=unit, b=fc())
    model.a.register_forward_hook(lambda module, args, output: F.relu(output))
    assert kinds(model) == {"a": "before_relu", "unit.a": "before_relu", "unit.b": "residual_end", "b": "other"}
    compiled = torch.compile(nn.Sequential(fc(), nn.ReLU(), fc()))
    assert list(kinds(compiled).values()) == ["before_relu", "other"]


def test_on_the_meta_device() -> None:
    """Roles need no memory; there all storages have one address, which must not look like shared memory."""
    with torch.device("meta"):
        model, image = network(PostActivation, stem_relu=True), torch.empty(1, 3, 16, 16)
    assert list(branches(model, image).values()) == [1 / 3] * 3 + [1 / 2] * 2


def test_own_fused_relu() -> None:
    roles = infer_roles(nn.Sequential(WNLinear(8, 8, activation="relu"), nn.Dropout(), fc()), X)
    assert roles["0"] == Role("before_relu", 2.0, "its own fused ReLU follows")


def test_plain_layers_count_but_have_no_role() -> None:
    model = Model(lambda m, x: m.c(x + m.b(F.relu(m.a(x)))), a=nn.Linear(8, 8), b=fc(), c=nn.Linear(8, 8))
    assert kinds(model) == {"b": "residual_end"}


def test_output_objects_and_keyword_inputs() -> None:
    @dataclass
    class Output:
        logits: Tensor

    model = Model(lambda m, x, mask: Output(m.b(F.relu(m.a(x * mask)))), a=fc(), b=fc())
    assert kinds(model, {"x": X, "mask": torch.ones(2, 1)}) == {"a": "before_relu", "b": "other"}
    assert list(kinds(fc())) == [""]


# What cannot be told


def test_uncalled_layers_are_named() -> None:
    model = Model(lambda m, x: m.a(x), a=fc(), spare=fc())
    with pytest.raises(RolesUnknown, match=r"infer_roles: 'spare': not called .* pass roles="):
        infer_roles(model, X)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_an_output_that_torch_does_not_show() -> None:
    scripted = torch.jit.script(nn.GELU())
    for hidden in (lambda x: torch.from_numpy(np.maximum(x.numpy(), 0)), scripted):
        model = Model(lambda m, x, hidden=hidden: m.b(hidden(m.a(x))), a=fc(), b=fc())
        with pytest.raises(RolesUnknown, match=r"infer_roles: 'a': .*does not show.* pass roles="):
            infer_roles(model, X)


def test_an_unused_output_is_reported() -> None:
    role = infer_roles(Model(lambda m, x: (m.a(x), m.b(x))[1], a=fc(), b=fc()), X)["a"]
    assert role == Role("other", 1.0, "nothing uses its output")


def test_wrong_example_input() -> None:
    model = nn.Sequential(fc(), nn.ReLU(), fc(4, 2))
    with pytest.raises(
        RolesUnknown, match=r"example_input.*shape \[2, 8\].* in '2': .*pass an input that fits, or roles="
    ):
        infer_roles(model, X)
    with pytest.raises(RolesUnknown, match="example_input: expected an input"):
        infer_roles(model, None)
    with pytest.raises(RolesUnknown, match="not initialized yet"):
        infer_roles(nn.Sequential(nn.LazyLinear(8), fc()), X)


def test_wrong_model() -> None:
    with pytest.raises(ValueError, match="expected weight-normalized layers, found none in Linear"):
        infer_roles(nn.Linear(8, 8), X)
    with pytest.raises(TypeError, match="expected a torch.nn.Module, got str"):
        infer_roles("model", X)  # type: ignore[arg-type]


@pytest.mark.parametrize("fails", [False, True])
def test_the_model_is_left_as_it_was(fails: bool) -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        m.count += 1
        m.bn.running_mean.add_(1)
        x = F.relu(m.b(m.bn(m.a(m.act(x)))))
        x = x + torch.rand(()) + random.random() + np.random.rand()  # noqa: NPY002
        return m.c(x[:, :1] if fails else x)

    parts = {"act": nn.ReLU(inplace=True), "bn": nn.BatchNorm1d(8), "drop": nn.Dropout().eval()}
    model = Model(
        forward, a=fc(), b=old_norm(nn.Linear(8, 8)), c=parametrizations.weight_norm(nn.Linear(8, 8)), **parts
    )
    model.count = 0
    model.a.weight_g.grad = torch.ones_like(model.a.weight_g)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    weight, x = model.b.weight, X.clone()
    random_states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()  # noqa: NPY002
    hooks = [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()]
    if fails:
        with pytest.raises(RolesUnknown, match="'c'"):
            infer_roles(model, x)
    else:
        assert kinds(model, x) == {"a": "other", "b": "before_relu", "c": "other"}
    assert model.count == 0 and model.training and not model.drop.training and model.b.weight is weight
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(model.a.weight_g.grad, torch.ones_like(model.a.weight_g)) and torch.equal(x, X)
    assert hooks == [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()]
    assert torch.equal(torch.get_rng_state(), random_states[0]) and random.getstate() == random_states[1]
    assert np.array_equal(np.random.get_state()[1], random_states[2])  # noqa: NPY002


# The table


def test_explain(capsys: pytest.CaptureFixture[str]) -> None:
    model = Model(lambda m, x: m.b(F.relu(m.a(x))), a=fc(8, 32), b=fc(32, 2))
    text = explain(model, X)
    assert capsys.readouterr().out == text + "\n"
    head, _, first, second = text.splitlines()
    assert head.split() == ["layer", "role", "why", "fan_in", "fan_out", "γ", "g"]
    assert first.split() == ["a", "before_relu", "relu_1", "follows", "8", "32", "2", "0.7071"]
    assert second.split()[-4:] == ["32", "2", "1", "4"]
    file = io.StringIO()
    given = explain(model, roles={"a": 2.0, "b": Role("other", 1.0, "I say so")}, file=file)
    assert file.getvalue() == given + "\n" and "given in roles=" in given and "I say so" in given
    with pytest.raises(ValueError, match="example_input"):
        explain(model)
