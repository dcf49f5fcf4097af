"""frozen: the cost of the plain layer inside, correct results whatever happens there, and no effect outside."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn.utils import prune
from torch.utils._python_dispatch import TorchDispatchMode

import wnfused
from wnfused import (
    WNConv1d,
    WNConv2d,
    WNConv3d,
    WNConvTranspose1d,
    WNConvTranspose2d,
    WNConvTranspose3d,
    WNLinear,
    frozen,
)
from wnfused.nn.frozen import FrozenWeight

LAYERS = [
    pytest.param(lambda: WNLinear(4, 3, activation="relu"), (2, 4), id="linear"),
    pytest.param(lambda: WNConv1d(4, 3, 3, padding=1, padding_mode="reflect"), (2, 4, 5), id="conv1d"),
    pytest.param(lambda: WNConv2d(4, 4, 3, padding="same", groups=2, activation="relu"), (2, 4, 5, 5), id="conv2d"),
    pytest.param(lambda: WNConv3d(2, 3, 2, dim=None), (2, 2, 3, 4, 3), id="conv3d"),
    pytest.param(lambda: WNConvTranspose1d(4, 3, 3, stride=2, output_padding=1), (2, 4, 5), id="transpose1d"),
    pytest.param(lambda: WNConvTranspose2d(4, 3, 3, dilation=2, activation="relu"), (2, 4, 5, 5), id="transpose2d"),
    pytest.param(lambda: WNConvTranspose3d(2, 3, 2, eps=0.1), (2, 2, 3, 4, 3), id="transpose3d"),
]


class CountFolds:
    """Counts how often a weight is folded."""

    def __init__(self, monkeypatch):
        self.count = 0
        original = FrozenWeight._fold

        def fold(state, *args):
            self.count += 1
            return original(state, *args)

        monkeypatch.setattr(FrozenWeight, "_fold", fold)


class Record(TorchDispatchMode):
    """The operations that run, each with the shape of its first tensor."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        first = args[0] if isinstance(args[0], torch.Tensor) else None
        self.calls.append((func.overloadpacket.__name__, None if first is None else first.shape))
        return func(*args, **(kwargs or {}))


@pytest.fixture
def folds(monkeypatch):
    return CountFolds(monkeypatch)


def perturb(model):
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p), alpha=0.3)


@pytest.mark.parametrize(("make", "shape"), LAYERS)
def test_same_outputs_and_one_fold(make, shape, folds):
    torch.manual_seed(0)
    layer, x = make(), torch.randn(shape)
    perturb(layer)
    expected = layer(x).detach()
    with frozen(layer) as inside, torch.no_grad():
        assert inside is layer
        for _ in range(3):
            torch.testing.assert_close(layer(x), expected, rtol=1e-5, atol=1e-6)
    assert folds.count == 1
    assert "_frozen" not in vars(layer)
    torch.testing.assert_close(layer(x), expected)


def test_nothing_but_the_plain_operation_runs_inside():
    layer, x = WNLinear(8, 6), torch.randn(3, 8)
    with frozen(layer), torch.no_grad():
        layer(x)
        with Record() as record:
            layer(x)
    assert [name for name, _ in record.calls] == ["t", "addmm"]


def test_gradients_are_right_inside():
    torch.manual_seed(0)
    layer, x = WNConv1d(3, 4, 3), torch.randn(2, 3, 6)
    perturb(layer)
    layer(x).square().sum().backward()
    expected = [p.grad.clone() for p in layer.parameters()]
    layer.zero_grad()
    with frozen(layer):
        with torch.no_grad():
            layer(x)
        layer(x).square().sum().backward()
    for p, gradient in zip(layer.parameters(), expected, strict=True):
        torch.testing.assert_close(p.grad, gradient)


def test_gradients_of_the_input_with_parameters_that_need_none(folds):
    layer = WNLinear(4, 3)
    layer.weight_v.requires_grad_(False)
    layer.weight_g.requires_grad_(False)
    x = torch.randn(2, 4, requires_grad=True)
    layer(x).square().sum().backward()
    expected, x.grad, layer.bias.grad = (x.grad, layer.bias.grad), None, None
    with frozen(layer):
        with torch.inference_mode():
            layer(x)
        layer(x).square().sum().backward()
    torch.testing.assert_close(x.grad, expected[0])
    torch.testing.assert_close(layer.bias.grad, expected[1])
    assert folds.count == 1


def test_switching_requires_grad_inside():
    layer, x = WNLinear(4, 3), torch.randn(2, 4)
    with frozen(layer):
        with torch.no_grad():
            layer(x)
        layer.requires_grad_(False)
        assert not layer(x).requires_grad
        layer.requires_grad_(True)
        assert layer(x).requires_grad


def optimizer_step(layer):
    layer(torch.randn(2, 4)).square().sum().backward()
    torch.optim.SGD(layer.parameters(), lr=0.5).step()


def new_parameter(layer):
    layer.weight_g = nn.Parameter(torch.full_like(layer.weight_g, 3.0))


def new_data(layer):
    layer.weight_v.data = torch.randn(3, 4)


def load(layer):
    layer.load_state_dict(WNLinear(4, 3).state_dict())


def there_and_back(layer):
    layer.half().float()


@pytest.mark.parametrize("change", [optimizer_step, perturb, new_parameter, new_data, load, there_and_back])
def test_a_changed_parameter_folds_again(change, folds):
    torch.manual_seed(0)
    layer, x = WNLinear(4, 3), torch.randn(2, 4)
    with frozen(layer), torch.no_grad():
        before = layer(x)
        with torch.enable_grad():
            change(layer)
        after = layer(x)
    assert folds.count == 2
    assert not torch.equal(after, before)
    torch.testing.assert_close(after, layer(x))


def test_nested_contexts_shared_layers_and_exceptions(folds):
    shared = WNLinear(4, 4)
    inner = nn.Sequential(shared)
    model = nn.ModuleList([shared, inner, WNLinear(4, 4)])
    x = torch.randn(2, 4)
    context = frozen(model)
    with torch.no_grad(), context:
        shared(x)
        with frozen(inner), context:
            inner(x)
        inner(x)
        with pytest.raises(RuntimeError, match="stop"), frozen(inner):
            raise RuntimeError("stop")
        inner(x)
    assert folds.count == 1
    assert not any("_frozen" in vars(m) for m in model.modules())

    @frozen(model)
    def rollout():
        return shared._frozen is not None

    assert rollout()
    assert shared._frozen is None


def test_copies_and_pickles_do_not_carry_the_cache():
    layer, x = WNLinear(4, 3), torch.randn(2, 4)
    with frozen(layer), torch.no_grad():
        layer(x)
        assert list(layer.state_dict()) == ["bias", "weight_g", "weight_v"]
        for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), copy.copy(layer)):
            assert "_frozen" not in vars(other)
            assert torch.equal(other.weight_v, layer.weight_v)


def test_fold_and_convert_inside():
    model, x = nn.Sequential(WNLinear(4, 3), nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))), torch.randn(2, 4)
    expected = model(x)
    with frozen(model), torch.no_grad():
        model(x)
        wnfused.convert(model)
        torch.testing.assert_close(model(x), expected)
        wnfused.fold(model)
        torch.testing.assert_close(model(x), expected)
    assert type(model[0]) is nn.Linear
    assert "_frozen" not in vars(model[0])


def test_inference_parameters_and_functional_call(folds):
    x = torch.randn(2, 4)
    with torch.inference_mode():
        layer = WNLinear(4, 3)
        with frozen(layer):
            first = layer(x)
            layer.weight_g.mul_(2)  # increments no version
            assert not torch.equal(layer(x), first)
    layer = WNLinear(4, 3)
    doubled = {"weight_g": 2 * layer.weight_g.detach()}
    with frozen(layer), torch.no_grad():
        y = layer(x)
        torch.testing.assert_close(
            torch.func.functional_call(layer, doubled, x) - layer.bias, 2 * (y - layer.bias), rtol=1e-5, atol=1e-5
        )
        torch.testing.assert_close(layer(x), y)
        stacked = {"weight_g": torch.stack([layer.weight_g, 2 * layer.weight_g])}
        both = torch.func.vmap(lambda g: torch.func.functional_call(layer, g, x))(stacked)
        torch.testing.assert_close(both[0], y)


def test_pruned_layers_compute_as_usual():
    layer, x = WNLinear(4, 3), torch.randn(2, 4)
    with frozen(layer), torch.no_grad():
        layer(x)
        prune.l1_unstructured(layer, "bias", amount=1)
        assert (layer.bias == 0).sum() == 1
        torch.testing.assert_close(layer(x), x @ layer.weight.T + layer.bias)
        prune.l1_unstructured(layer, "weight_v", amount=5)
        assert (layer.weight == 0).sum() == 5
        torch.testing.assert_close(layer(x), x @ layer.weight.T + layer.bias)
        with torch.inference_mode():
            torch.testing.assert_close(layer(x), x @ layer.weight.T + layer.bias)


def test_autocast_casts_the_folded_weight_once():
    layer, x = WNLinear(4, 3), torch.randn(2, 4)
    with frozen(layer), torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
        layer(x)
        with Record() as record:
            assert layer(x).dtype == torch.float16
    casts = [shape for name, shape in record.calls if name == "_to_copy"]
    assert casts == [x.shape]  # weight and bias come from autocast's cache, as with nn.Linear


def test_compiles_inside_and_outside():
    model, x = nn.Sequential(WNConv1d(3, 4, 3, activation="relu"), WNLinear(4, 2)), torch.randn(2, 3, 6)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        expected = model(x)
        with frozen(model):
            torch.testing.assert_close(compiled(x), expected)
            perturb(model)
            torch.testing.assert_close(compiled(x), model(x))
        torch.testing.assert_close(compiled(x), model(x))
    assert not torch.equal(model(x), expected)


def test_accepts_only_modules():
    with pytest.raises(TypeError, match="model"):
        frozen([WNLinear(2, 2)])
    with frozen(nn.ReLU()) as nothing_to_freeze:
        assert torch.equal(nothing_to_freeze(torch.ones(1)), torch.ones(1))
