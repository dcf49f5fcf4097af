"""model_weights: the same numbers as layer by layer, one operator per call, and never a stale weight."""

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import wnfused
from tests.support.reference import assert_close
from wnfused import WNConv1d, WNConvTranspose1d, WNLinear, model_weights


def network(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        WNConv1d(3, 5, 3, activation="relu"), WNConvTranspose1d(5, 4, 2, dim=1), nn.Flatten(),
        WNLinear(28, 6, dim=None, activation="relu"), WNLinear(6, 6, eps=1e-3),
    ).to(dtype)  # fmt: skip


def batch(dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(1)).to(dtype)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def step(model: nn.Module, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    model.zero_grad()
    y = model(x)
    y.sin().sum().backward()
    return y.detach(), gradients(model)


class Calls(TorchDispatchMode):
    """How often each operator of wnfused runs."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "wnfused":
            self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def assert_same(own: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert own.keys() == wanted.keys()
    for name, value in wanted.items():
        assert_close(own[name], value, what=name)


def test_same_numbers_with_one_operator_each_way(backend: str) -> None:
    model, x = network(torch.float32), batch(torch.float32)
    wanted_y, wanted = step(copy.deepcopy(model).double(), x.double())
    with model_weights(model) as inside, Calls() as calls:
        assert inside is model
        y, own = step(model, x)
    names = [name for name in calls.names if "weights" in name or name in ("linear", "convolution")]
    assert names == ["model_weights", "model_weights_backward"]
    assert_close(y, wanted_y)
    assert_same(own, wanted)
    assert not model._forward_hooks and not model._forward_pre_hooks
    assert not any("_written" in layer.__dict__ for layer in model)


def test_autocast_writes_16_bit_weights(one_backend: None) -> None:
    model, x = network(torch.float32), batch(torch.float32)
    seen = []
    plain = model[4]._plain
    model[4]._plain = lambda input, weight, bias: seen.append(weight.dtype) or plain(input, weight, bias)
    with model_weights(model), torch.autocast("cpu", torch.bfloat16):
        y, own = step(model, x)
    assert seen == [torch.bfloat16] and y.dtype == torch.bfloat16
    wanted_y, wanted = step(copy.deepcopy(model).double(), x.double())
    assert (y - wanted_y).abs().max() < 0.05 * wanted_y.abs().max()
    assert all((own[name] - wanted[name]).norm() < 0.1 * wanted[name].norm() for name in wanted)


def rewrite(model: nn.Sequential, how: str) -> None:
    v = model[0].weight_v
    if how == "optimizer":
        torch.optim.SGD(model.parameters(), lr=0.5).step()
    elif how == "data":
        v.data.add_(1.0)
    elif how == "new data":
        v.data = v.data + 1.0
    elif how == "state dict":
        model.load_state_dict({name: t + 1.0 for name, t in model.state_dict().items()})
    else:
        with torch.no_grad():
            v.add_(1.0)


@pytest.mark.parametrize("how", ["optimizer", "data", "new data", "state dict", "in place"])
def test_changes_between_two_calls_are_seen(one_backend: None, how: str) -> None:
    model, x = network(), batch()
    with model_weights(model):
        before, _ = step(model, x)
        rewrite(model, how)
        after = model(x)
    assert not torch.equal(before, after)
    assert_close(after.detach(), model(x).detach())


@pytest.mark.parametrize("how", ["new data", "in place"])
def test_changes_during_a_call_are_seen(one_backend: None, how: str) -> None:
    model, x = network(), batch()
    handle = model[0].register_forward_pre_hook(lambda *_: rewrite(model, how))
    with model_weights(model):
        y = model(x)
    handle.remove()
    assert_close(y.detach(), model(x).detach())


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing(one_backend: None, reentrant: bool) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = network()

        def forward(self, x: Tensor) -> Tensor:
            return self.parts[3:](checkpoint(self.parts[:3], x, use_reentrant=reentrant))

    model, x = Checkpointed(), batch().requires_grad_()
    _, wanted = step(network(), batch())
    with model_weights(model):
        _, own = step(model, x)
        outer = checkpoint(model, x, use_reentrant=False)
        model.zero_grad()
        outer.sin().sum().backward()
    assert_same({name.removeprefix("parts."): t for name, t in own.items()}, wanted)
    assert_same({name.removeprefix("parts."): t for name, t in gradients(model).items()}, wanted)


def test_accumulation_over_two_calls(one_backend: None) -> None:
    model, x = network(), batch()
    (model(x).sin().sum() + model(2 * x).cos().sum()).backward()
    wanted = gradients(model)
    model.zero_grad()
    with model_weights(model):
        first, second = model(x), model(2 * x)
        first.sin().sum().backward()
        second.cos().sum().backward()
    assert_same(gradients(model), wanted)


def test_tied_unused_and_frozen_layers(one_backend: None) -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.a, self.b, self.unused, self.fixed = (WNLinear(4, 4).double() for _ in range(4))
            self.b.weight_v, self.b.weight_g = self.a.weight_v, self.a.weight_g
            self.fixed.requires_grad_(False)
            self.fixed.weight_g.requires_grad_(True)

        def forward(self, x: Tensor) -> Tensor:
            return self.fixed(self.b(self.a(x)))

    model, x = Odd(), torch.randn(3, 4, dtype=torch.float64)
    wanted_y, wanted = step(model, x)
    with model_weights(model):
        y, own = step(model, x)
    assert "unused.weight_v" not in wanted and "fixed.weight_v" not in wanted and "fixed.weight_g" in wanted
    assert_close(y, wanted_y)
    assert_same(own, wanted)


def test_inside_frozen_the_kept_weights_are_used(one_backend: None) -> None:
    model, x = network(), batch()
    wanted = model(x).detach()
    with model_weights(model), wnfused.frozen(model), torch.no_grad(), Calls() as calls:
        assert_close(model(x), wanted)
        model(x)
    assert "model_weights" not in calls.names and calls.names.count("weight_norm") == 4


def test_gradients_switched_on_inside_the_model(one_backend: None) -> None:
    class Forces(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network()

        def forward(self, x: Tensor) -> Tensor:
            with torch.enable_grad():
                return torch.autograd.grad(self.inner(x).sum(), self.inner[0].weight_v)[0]

    model = Forces()
    wanted = model(batch())
    with model_weights(model), torch.no_grad():
        assert_close(model(batch()), wanted)


def test_autocast_switched_off_inside_the_model(one_backend: None) -> None:
    class Precise(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", enabled=False):
                return super().forward(x)

    model, x = Precise(*network(torch.float32)), batch(torch.float32)
    with model_weights(model), torch.autocast("cpu", torch.bfloat16):
        y = model(x)
    assert y.dtype == torch.float32
    torch.testing.assert_close(y, model(x))


def test_copies_are_not_part_of_the_context(one_backend: None) -> None:
    model, x = network(), batch()
    with model_weights(model):
        copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    for other in copies:
        with Calls() as calls:
            assert_close(other(x).detach(), model(x).detach())
        assert "model_weights" not in calls.names


def test_an_error_in_the_model_leaves_nothing_behind(one_backend: None) -> None:
    model = network()
    with model_weights(model), pytest.raises(RuntimeError):
        model(torch.randn(2, 7, 8, dtype=torch.float64))
    assert not any("_written" in layer.__dict__ for layer in model)
    with pytest.raises(TypeError, match="model_weights: model: expected"):
        model_weights([])


def test_an_interrupt_leaves_nothing_behind(one_backend: None) -> None:
    """torch calls forward hooks after an exception, but not after a KeyboardInterrupt."""

    def interrupt(*args: Any) -> None:
        raise KeyboardInterrupt

    model = network()
    model[3].register_forward_hook(interrupt)
    with pytest.raises(KeyboardInterrupt), model_weights(model):
        model(batch())
    assert not any("_written" in layer.__dict__ for layer in model)


def test_nested_contexts_compute_the_weights_once(one_backend: None) -> None:
    model, x = network(), batch()
    wanted = model(x).detach()
    with model_weights(model):
        with model_weights(model), Calls() as inner:
            assert_close(model(x).detach(), wanted)
        with Calls() as outer:
            assert_close(model(x).detach(), wanted)
    assert inner.names.count("model_weights") == outer.names.count("model_weights") == 1
    assert not model._forward_hooks and not model._forward_pre_hooks


def test_a_model_inside_another_with_a_context_of_its_own(one_backend: None) -> None:
    model, x = network(), batch()
    inner = model[:3]
    outer = nn.Sequential(inner, model[3:])
    wanted_y, wanted = step(model, x)
    with model_weights(outer), model_weights(inner):
        y = outer(x)
        model.zero_grad()
        y.sin().sum().backward()
    assert_close(y.detach(), wanted_y)
    assert_same(gradients(model), wanted)


@pytest.mark.usefixtures("_one_thread", "_compiled_afresh")
def test_compile_ignores_the_context() -> None:
    model, x = network(torch.float32), batch(torch.float32)
    wanted = model(x)
    with model_weights(model):
        torch.testing.assert_close(torch.compile(model, fullgraph=True, backend="aot_eager")(x), wanted)


def test_functional_call_uses_the_given_parameters(one_backend: None) -> None:
    model, x = network(), batch()
    given = {name: (p.detach() * 1.5 + 0.1).requires_grad_() for name, p in model.named_parameters()}
    wanted = torch.func.functional_call(model, given, x)
    with model_weights(model):
        y = torch.func.functional_call(model, given, x)
        assert_close(y.detach(), wanted.detach())
        _, jvp = torch.func.jvp(model, (x,), (torch.ones_like(x),))
    assert torch.isfinite(jvp).all()
    y.sum().backward()
    assert given["0.weight_v"].grad is not None and model[0].weight_v.grad is None


def test_extra_memory_is_one_copy_of_the_weights(one_backend: None) -> None:
    """What autograd keeps besides the parameters and what the plain network keeps."""
    model, x = network(torch.float32), batch(torch.float32)
    kept: dict[int, int] = {}

    def keep(t: Tensor) -> Tensor:
        kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    def bytes_kept(run: nn.Module) -> int:
        own = {p.untyped_storage().data_ptr() for p in run.parameters()}
        kept.clear()
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
            y = run(x)
        assert y.requires_grad
        return sum(size for address, size in kept.items() if address not in own)

    plain = copy.deepcopy(model)
    wnfused.fold(plain)
    with model_weights(model):
        most = bytes_kept(model)
    weights = sum(layer.weight_v.numel() * 4 for layer in model if hasattr(layer, "weight_v"))
    assert most <= bytes_kept(plain) + weights
