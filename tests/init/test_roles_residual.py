"""Roles in residual blocks: branches, shortcuts, stages, and sums that are none."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.support.role_models import (
    IMAGE,
    Model,
    PostActivation,
    PreActivation,
    Unit,
    X,
    branches,
    conv,
    fc,
    kinds,
    network,
)
from wnfused import WNLinear
from wnfused.init import robust_
from wnfused.init.activations import gamma_at_branch_end
from wnfused.init.roles import Role, infer_roles


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


def relu_end(blocks: int) -> float:
    """γ with which B ReLUs of mean m and variance s² add B² m² + B s² = 1 (docs/initialization.md)."""
    return 2 / (blocks * (1 - 1 / math.pi) + blocks**2 / math.pi)


def test_branch_that_ends_with_an_activation() -> None:
    """x + relu(f(x)): γ = 2 would double the mean square with every block."""

    def forward(m: Any, x: Tensor) -> Tensor:
        x = x + F.relu(m.b(F.relu(m.a(x))))
        return m.d(x + m.c(x))

    model = Model(forward, a=fc(), b=fc(), c=WNLinear(8, 8, activation="relu"), d=fc())
    assert branches(model, X) == pytest.approx({"b": relu_end(2), "c": relu_end(2)})
    assert kinds(model)["a"] == "before_relu"


def test_gamma_of_an_activation_at_the_end_of_branches() -> None:
    for blocks in (1, 2, 10, 1666):
        assert gamma_at_branch_end(lambda z: z, blocks) == pytest.approx(1 / blocks)
        assert gamma_at_branch_end(torch.relu, blocks) == pytest.approx(relu_end(blocks), rel=1e-5)
        assert gamma_at_branch_end(torch.sigmoid, blocks) is None or blocks == 1  # it gives 1/2 for nothing
    assert gamma_at_branch_end(torch.tanh, 100) == pytest.approx(1 / 100, rel=0.03)  # so small that it is linear
    model = nn.Sequential(*(Model(lambda m, x: x + torch.sigmoid(m.a(x)), a=fc()) for _ in range(3)))
    assert set(kinds(model).values()) == {"sigmoid"}


class ReluAtTheEnd(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = WNLinear(width, width, activation="relu")

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layer(x)


@pytest.mark.parametrize("blocks", [1, 3, 40])
def test_branches_that_end_with_a_relu_stay_within_the_bounds_too(blocks: int) -> None:
    """The theorem's [√2, √e]; 1/B and 2/B, which do not count the mean of a ReLU, explode with the blocks."""
    model, x = nn.Sequential(*(ReluAtTheEnd(200) for _ in range(blocks))), torch.randn(32, 200)

    def ratio(**how: Any) -> float:
        robust_(model, x, **how)
        return (model(x).norm(dim=1) / x.norm(dim=1)).mean().item()

    assert 2**0.5 - 0.05 < ratio() < math.e**0.5
    if blocks == 40:
        assert ratio(roles={f"{b}.layer": 1 / 40 for b in range(40)}) > 5
        assert ratio(roles={f"{b}.layer": 2 / 40 for b in range(40)}) > 15


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
        block=2,
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
