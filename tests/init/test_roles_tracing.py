"""Roles in models that are hard to trace: shared layers, control flow, wrappers; and roles that cannot be inferred."""

import io
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from tests.support.role_models import (
    Model,
    PostActivation,
    Unit,
    X,
    branches,
    fc,
    kinds,
    network,
    old_norm,
)
from wnfused import WNLinear
from wnfused.init.explain import explain
from wnfused.init.roles import Role, RolesUnknown, infer_roles


def test_shared_layers() -> None:
    unit = Unit()
    assert branches(nn.Sequential(unit, unit, unit), X) == {"0.b": 1 / 3}
    same_use = infer_roles(Model(lambda m, x: F.relu(m.a(F.relu(m.a(x)))), a=fc()), X)["a"]
    assert same_use == Role("before_relu", 2.0, "feeds relu_1 (in each of its 2 calls)")
    role = infer_roles(Model(lambda m, x: m.a(F.relu(m.a(x))), a=fc()), X)["a"]
    assert role.kind == "other" and "2 calls have different roles" in role.why and "relu_1" in role.why


def test_data_dependent_control_flow() -> None:
    """A condition computed from a layer's output is not a use of it: it does not reach the model's output."""

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
    """Includes an activation applied by a forward hook. torch.compile does not run."""
    unit = Unit()
    model = Model(lambda m, x: m.b(checkpoint(m.unit, m.a(x), use_reentrant=False)), a=fc(), unit=unit, b=fc())
    model.a.register_forward_hook(lambda module, args, output: F.relu(output))
    assert kinds(model) == {"a": "before_relu", "unit.a": "before_relu", "unit.b": "residual_end", "b": "other"}
    compiled = torch.compile(nn.Sequential(fc(), nn.ReLU(), fc()))
    assert list(kinds(compiled).values()) == ["before_relu", "other"]


def test_on_the_meta_device() -> None:
    """Meta tensors all have the same address, which must not look like shared memory."""
    with torch.device("meta"):
        model, image = network(PostActivation, stem_relu=True), torch.empty(1, 3, 16, 16)
    assert list(branches(model, image).values()) == [1 / 3] * 3 + [1 / 2] * 2


def test_fused_relu() -> None:
    roles = infer_roles(nn.Sequential(WNLinear(8, 8, activation="relu"), nn.Dropout(), fc()), X)
    assert roles["0"] == Role("before_relu", 2.0, "has a fused ReLU")


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


# Roles that cannot be inferred


def test_a_model_that_calls_no_layer() -> None:
    model = Model(lambda m, x: x, spare=fc())
    with pytest.raises(RolesUnknown, match=r"infer_roles: 'spare': not called .* pass roles="):
        infer_roles(model, X)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_an_output_used_by_numpy_or_a_scripted_function() -> None:
    scripted = torch.jit.script(nn.GELU())
    for hidden in (lambda x: torch.from_numpy(np.maximum(x.numpy(), 0)), scripted):
        model = Model(lambda m, x, hidden=hidden: m.b(hidden(m.a(x))), a=fc(), b=fc())
        with pytest.raises(RolesUnknown, match=r"infer_roles: 'a': .*cannot be traced.* pass roles="):
            infer_roles(model, X)


def test_an_unused_output_is_reported() -> None:
    role = infer_roles(Model(lambda m, x: (m.a(x), m.b(x))[1], a=fc(), b=fc()), X)["a"]
    assert role == Role("other", 1.0, "its output is not used")


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
        infer_roles("model", X)


@pytest.mark.parametrize("fails", [False, True])
def test_the_model_is_not_changed(fails: bool) -> None:
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


def test_explain_fits_80_columns() -> None:
    """Evidence that does not fit stands below its layer, and so do the numbers of a layer with a long name."""
    names = {f"{letter * 60}": fc(8, 8) for letter in "ab"}
    model = Model(lambda m, x: x + m.get_submodule("b" * 60)(F.relu(m.get_submodule("a" * 60)(x))), **names)
    lines = explain(model, X, file=io.StringIO()).splitlines()
    assert max(map(len, lines)) <= 80 and "why" not in lines[0]
    assert lines[2] == "a" * 60 and lines[3].split() == ["before_relu", "8", "8", "2", "1.414"]
    assert lines[4] == "    feeds relu_1"
    wide = explain(model, roles={name: Role("other", 1.0, "so " * 60) for name in names}, file=io.StringIO())
    assert max(map(len, wide.splitlines())) <= 80 and wide.count("so") == 120


def test_explain(capsys: pytest.CaptureFixture[str]) -> None:
    model = Model(lambda m, x: m.b(F.relu(m.a(x))), a=fc(8, 32), b=fc(32, 2))
    text = explain(model, X)
    assert capsys.readouterr().out == text + "\n"
    head, _, first, second = text.splitlines()
    assert head.split() == ["layer", "role", "why", "fan_in", "fan_out", "γ", "g"]
    assert first.split() == ["a", "before_relu", "feeds", "relu_1", "8", "32", "2", "0.7071"]
    assert second.split()[-4:] == ["32", "2", "1", "4"]
    file = io.StringIO()
    given = explain(model, roles={"a": 2.0, "b": Role("other", 1.0, "I say so")}, file=file)
    assert file.getvalue() == given + "\n" and "given in roles=" in given and "I say so" in given
    with pytest.raises(ValueError, match="example_input"):
        explain(model)
