"""convert and fold of the user's own subclasses of torch.nn layers, written in the ways that public models use."""

import abc
import copy
import io
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import wnfused
from wnfused.nn.base import WeightNormalized

pytestmark = pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")

APIS = {"hook": nn.utils.weight_norm, "parametrizations": parametrizations.weight_norm}


@pytest.fixture(params=list(APIS))
def weight_norm(request):
    return APIS[request.param]


class CausalConv1d(nn.Conv1d):
    """Pads and calls ``super().forward``; it takes a cache of past samples as a second argument."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.causal_padding = self.dilation[0] * (self.kernel_size[0] - 1)

    def forward(self, x, cache=None):
        x = F.pad(x, (self.causal_padding, 0)) if cache is None else torch.cat([cache, x], 2)
        return super().forward(x)


class CausalByName(nn.Conv1d):
    def forward(self, x):
        return nn.Conv1d.forward(self, F.pad(x, (self.kernel_size[0] - 1, 0)))


class ConvForward(nn.Conv1d):
    def forward(self, x):
        return self._conv_forward(F.pad(x, (2, 0)), self.weight, self.bias)


class OwnConvForward(nn.Conv1d):
    """Defines no forward: torch's calls its ``_conv_forward``."""

    def _conv_forward(self, input, weight, bias):
        return 2 * super()._conv_forward(F.pad(input, (2, 0)), weight, bias)


class ReadsTheWeight(nn.Conv1d):
    def forward(self, x):
        return F.conv1d(F.pad(x, (2, 0)), self.weight, self.bias, self.stride, 0, self.dilation, self.groups)


class Mixed(CausalConv1d):
    """A subclass of a subclass, with a method and a repr of its own."""

    def forward(self, x, cache=None):
        return torch.tanh(super().forward(x, cache))

    def receptive_field(self):
        return self.causal_padding + 1

    def extra_repr(self):
        return super().extra_repr() + ", causal"


class Trimmed(nn.ConvTranspose1d):
    def forward(self, x):
        return super().forward(x)[..., : -(self.kernel_size[0] - self.stride[0])]


class Scaled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


class Orthogonal(nn.Linear):
    def __init__(self, *args):
        super().__init__(*args)
        nn.init.orthogonal_(self.weight)


CASES = [
    (CausalConv1d, (4, 6, 3), (2, 4, 9)),
    (CausalByName, (4, 6, 3), (2, 4, 9)),
    (ConvForward, (4, 6, 3), (2, 4, 9)),
    (OwnConvForward, (4, 6, 3), (2, 4, 9)),
    (ReadsTheWeight, (4, 6, 3), (2, 4, 9)),
    (Mixed, (4, 6, 3), (2, 4, 9)),
    (Trimmed, (4, 6, 4, 2), (2, 4, 9)),
    (Scaled, (4, 6), (2, 4)),
    (Orthogonal, (4, 6), (2, 4)),
]
every_subclass = pytest.mark.parametrize(
    ("kind", "arguments", "shape"), CASES, ids=[kind.__name__ for kind, *_ in CASES]
)


def make(weight_norm, kind, arguments):
    torch.manual_seed(0)
    layer = weight_norm(kind(*arguments).double())
    with torch.no_grad():
        for p in layer.parameters():
            p.mul_(1 + torch.rand_like(p))
    return layer


def run(layer, x):
    layer.zero_grad()
    x = x.clone().requires_grad_()
    y = layer(x)
    y.square().sum().backward()
    return y.detach(), x.grad, *[p.grad.clone() for p in layer.parameters()]


@every_subclass
def test_a_round_trip_keeps_outputs_and_gradients(weight_norm, kind, arguments, shape):
    layer = make(weight_norm, kind, arguments)
    x = torch.randn(shape, dtype=torch.float64)
    expected, parameters = run(layer, x), list(layer.parameters())
    report = wnfused.convert(layer)
    assert report.converted == [""], str(report)
    assert isinstance(layer, kind)
    assert isinstance(layer, WeightNormalized)
    assert [id(p) for p in layer.parameters()] == [id(p) for p in parameters]
    for mine, theirs in zip(run(layer, x), expected, strict=True):
        torch.testing.assert_close(mine, theirs)
    with torch.no_grad(), wnfused.frozen(layer):
        torch.testing.assert_close(layer(x), expected[0])
    again = copy.deepcopy(layer)
    assert wnfused.to_torch(again, api="hook" if weight_norm is nn.utils.weight_norm else "parametrizations").count == 1
    assert parametrize.type_before_parametrizations(again) is kind
    for mine, theirs in zip(run(again, x), expected, strict=True):
        torch.testing.assert_close(mine, theirs)
    wnfused.fold(layer)
    assert type(layer) is kind
    assert list(layer.state_dict()) == ["weight", "bias"]
    for mine, theirs in zip(run(layer, x)[:2], expected[:2], strict=True):
        torch.testing.assert_close(mine, theirs)


@every_subclass
def test_copies_and_pickles(weight_norm, kind, arguments, shape):
    layer = make(weight_norm, kind, arguments)
    wnfused.convert(layer)
    x = torch.randn(shape, dtype=torch.float64)
    expected = layer(x)
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    copies = copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), torch.load(file, weights_only=False)
    for other in copies:
        assert type(other) is type(layer)
        assert other.weight_v is not layer.weight_v
        assert repr(other) == repr(layer)
        assert torch.equal(other(x), expected)
        wnfused.fold(other)
        assert type(other) is kind


def test_names_methods_and_shared_class(weight_norm):
    first, second = (make(weight_norm, Mixed, (4, 6, 3)) for _ in range(2))
    wnfused.convert(nn.ModuleList([first, second]))
    assert type(first) is type(second)
    assert repr(first) == "Mixed(4, 6, kernel_size=(3,), stride=(1,), causal)"
    assert first.receptive_field() == 3
    cache = torch.randn(2, 4, 2, dtype=torch.float64)
    assert first(torch.randn(2, 4, 5, dtype=torch.float64), cache).shape == (2, 6, 5)


def test_super_forward_is_the_fused_operator(weight_norm):
    layer = make(weight_norm, CausalConv1d, (4, 6, 3))
    wnfused.convert(layer)
    x = torch.randn(2, 4, 9, dtype=torch.float64)
    with torch.profiler.profile() as profile:
        layer(x)
    names = {event.key for event in profile.key_averages()}
    assert "wnfused::convolution" in names
    assert "wnfused::weight_norm" not in names


def test_compiled(weight_norm):
    layer = make(weight_norm, CausalConv1d, (4, 6, 3))
    wnfused.convert(layer)
    x = torch.randn(2, 4, 9, dtype=torch.float64)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), layer(x))
    torch.testing.assert_close(torch.export.export(layer, (x,)).module()(x), layer(x))


class OwnWeight(nn.Linear):
    def __getattr__(self, name):
        return super().__getattr__(name)


class Pickled(nn.Linear):
    def __reduce_ex__(self, protocol):
        return super().__reduce_ex__(protocol)


class Abstract(nn.Linear, abc.ABC):
    pass


class Activated(nn.Linear):
    """Has an attribute whose name the fused layers use."""

    def __init__(self, *args):
        super().__init__(*args)
        self.activation = nn.ReLU()


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (OwnWeight, "OwnWeight is a subclass of Linear with its own __getattr__"),
        (Pickled, "Pickled is a subclass of Linear with its own __reduce_ex__"),
        (Abstract, "Abstract cannot be combined with WNLinear: metaclass conflict"),
        (Activated, "it has an attribute 'activation' of its own"),
    ],
)
def test_skipped_with_a_reason(kind, reason):
    layer = nn.utils.weight_norm(kind(4, 4))
    x = torch.randn(2, 4)
    expected = layer(x)
    report = wnfused.convert(layer)
    assert report.count == 0
    assert reason in report.skipped[""]
    assert type(layer) is kind
    assert torch.equal(layer(x), expected)
