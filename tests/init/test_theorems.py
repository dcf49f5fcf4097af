"""The paper's theorems as measurements: norms are kept forward and backward, in expectation over networks.

One network alone wanders with depth: only the mean over networks is 1. Fresh networks are expensive at width 1000 (an
orthogonal matrix takes a decomposition), so most here are made from few by flipping signs: if W is a uniformly random
orthogonal matrix, or one with independent normal entries, then D₁WD₂ with random signs D₁ and D₂ is another draw from
the same distribution. Networks of one parent share the absolute values of its entries; given those, the flips alone
make the expected squared norm behind a ReLU half of the one before it, so the mean over flips has no error of its own.
The weights come from real layers through ``robust_layer_``, and thus through ``gain``.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

import wnfused
from wnfused.init import gain, he_, robust_, robust_layer_
from wnfused.init.gains import gain_parameter
from wnfused.init.layers import layer_of
from wnfused.models import MLP

INPUTS, DEPTH, BLOCKS = 500, 20, 40
Step = Callable[[Tensor], Tensor]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """These are many small decompositions: a second thread only waits, and waits long where others use the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@dataclass
class Ratios:
    """Squared norms relative to those at the start, for each network (the mean over its inputs) and layer."""

    values: Tensor  # [networks, layers]

    @property
    def mean(self) -> Tensor:
        return self.values.mean(0)

    @property
    def error(self) -> Tensor:
        """The standard error of the mean."""
        return self.values.std(0) / math.sqrt(len(self.values))

    def assert_is(self, expected: Tensor | float) -> None:
        """Within 5% everywhere, with a sampling error below 3%."""
        relative = self.mean / expected
        assert (self.error / expected).max() < 0.03
        assert (relative - 1).abs().max() < 0.05, relative


def widths(low: int, high: int) -> list[int]:
    return torch.randint(low, high + 1, (DEPTH,)).tolist()


def squares(h: Tensor) -> Tensor:
    """Mean over a network's inputs of the squared norm: [networks, inputs, …] to [networks]."""
    return h.detach().double().square().flatten(2).sum(-1).mean(1)


def both_ways(layers: list[Step], x: Tensor) -> tuple[Ratios, Ratios]:
    """‖h_l‖² / ‖x‖², and ‖∂ℓ/∂h_l‖² / ‖error‖² for a random error at the last layer."""
    hidden = [x.requires_grad_()]
    for layer in layers:
        hidden.append(layer(hidden[-1]))
    error = torch.randn_like(hidden[-1])
    gradients = torch.autograd.grad(hidden[-1], hidden[1:], error)
    forward = torch.stack([squares(h) / squares(x) for h in hidden[1:]], dim=1)
    backward = torch.stack([squares(d) / squares(error) for d in gradients], dim=1)
    return Ratios(forward), Ratios(backward)


def flipped(layer: nn.Module, networks: int, relu: bool = True) -> Step:
    """As many networks' layers as asked for from one, and the ReLU: signs for its input channels and its outputs'."""
    layer.requires_grad_(False)
    shape = (networks, 1, -1, *[1] * (layer.weight_v.ndim - 2))
    outputs, inputs = layer.weight_v.shape[:2]
    before, after = (torch.randint(0, 2, (networks * n,)).mul(2).sub(1).float().view(shape) for n in (inputs, outputs))

    def step(h: Tensor) -> Tensor:
        y = layer((h * before).flatten(0, 1))
        y = y.unflatten(0, h.shape[:2]) * after
        return y.relu() if relu else y

    return step


def collect(runs: list[tuple[Ratios, Ratios]]) -> tuple[Ratios, Ratios]:
    forward, backward = zip(*runs, strict=True)
    return Ratios(torch.cat([r.values for r in forward])), Ratios(torch.cat([r.values for r in backward]))


Layers = list[nn.Module]


def drawn(sizes: list[int], draws: int, **how: str) -> list[Layers]:
    """The layers of ``draws`` networks of these widths."""
    networks = [[wnfused.WNLinear(n, m) for n, m in pairwise([INPUTS, *sizes])] for _ in range(draws)]
    for layer in (layer for layers in networks for layer in layers):
        robust_layer_(layer, 2, **how)
    return networks


def many_mlps(parents: list[Layers], networks: int) -> tuple[Ratios, Ratios]:
    """Each parent makes ``networks`` networks, each with an input of its own."""
    runs = []
    for layers in parents:
        runs.append(both_ways([flipped(layer, networks) for layer in layers], torch.randn(networks, 1, INPUTS)))
    return collect(runs)


SIZES = {"U(150, 250)": (150, 250, 4, 500), "U(950, 1050)": (950, 1050, 1, 400)}


@pytest.mark.parametrize(("low", "high", "draws", "networks"), SIZES.values(), ids=SIZES.keys())
def test_mlp_keeps_the_norm(low, high, draws, networks):
    n = widths(low, high)
    parents = drawn(n, draws)
    forward, backward = many_mlps(parents, networks)
    forward.assert_is(1.0)
    backward.assert_is(torch.tensor(n) / n[-1])
    # What one network does: about 0.5 at width 200, 0.25 at 1000.
    spread = forward.values[:, -1].std().item()
    assert abs(spread * math.sqrt((low + high) / 2) - 7) < 2.5, spread
    for layer in (layer for layers in parents for layer in layers):  # the variant differs in its gain alone
        layer.weight_g.fill_(gain_parameter(layer_of("test", layer), 2, "backward"))
    forward, backward = many_mlps(parents, networks)
    backward.assert_is(1.0)
    forward.assert_is(torch.tensor(n) / INPUTS)  # the price


def test_he_directions_with_the_same_gains_do_too():
    n = widths(150, 250)
    forward, backward = many_mlps(drawn(n, 4, distribution="he"), 500)
    forward.assert_is(1.0)
    backward.assert_is(torch.tensor(n) / n[-1])


def real_mlps(networks: int, initialize: Callable[[nn.Module], None]) -> tuple[Ratios, Ratios, list[int]]:
    """No tricks: every network is a model of its own, drawn anew and run through its layers."""
    n = widths(150, 250)
    runs = []
    for _ in range(networks):
        model = MLP(DEPTH, n, inputs=INPUTS)
        initialize(model)
        runs.append(both_ways(list(model.hidden), torch.randn(1, 16, INPUTS)))
    return *collect(runs), n


def test_real_mlps_agree_within_their_sampling_error():
    roles = {f"hidden.{i}": 2 for i in range(DEPTH)}
    forward, backward, n = real_mlps(24, lambda model: robust_(model, roles=roles))
    assert ((forward.mean - 1).abs() < 4 * forward.error + 0.01).all()
    assert ((backward.mean - torch.tensor(n) / n[-1]).abs() < 4 * backward.error + 0.01).all()


def test_he_with_unit_gain_vanishes():
    forward, backward, _ = real_mlps(4, he_)
    assert forward.mean[9] < 0.01
    assert backward.mean[-11] < 0.01
    assert forward.mean[-1] < 1e-5
    assert backward.mean[0] < 1e-4


def assert_between_the_bounds(forward: Ratios, backward: Ratios) -> None:
    # From the output's side the last block's input is one block away, the first one's output BLOCKS - 1.
    ends = [(forward, -1, (1 + 1 / BLOCKS) ** BLOCKS), (backward, 0, (1 + 1 / BLOCKS) ** (BLOCKS - 1))]
    for ratios, layer, expected in ends:
        mean, error = ratios.mean[layer].item(), ratios.error[layer].item()
        assert error < 0.03 * expected
        assert abs(mean - expected) < 4 * error + 0.01 * expected
        assert math.sqrt(2) < math.sqrt(mean + 3 * error)
        assert math.sqrt(mean - 3 * error) < math.sqrt(math.e)


@pytest.mark.parametrize("width", [200, 1000])
def test_residual_networks_end_between_the_bounds(width):
    """40 blocks at the widths of the paper's figure 1."""
    networks = 32 if width < 500 else 16
    first, second = wnfused.WNLinear(width, width), wnfused.WNLinear(width, width)
    robust_layer_(first, 2)
    robust_layer_(second, 1 / BLOCKS)

    def block() -> Step:
        inner, last = flipped(first, networks), flipped(second, networks, relu=False)
        return lambda h: h + last(inner(h))

    assert_between_the_bounds(*both_ways([block() for _ in range(BLOCKS)], torch.randn(networks, 4, width)))


class ResidualMLP(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.first = nn.ModuleList(wnfused.WNLinear(width, inner, activation="relu") for _ in range(BLOCKS))
        self.second = nn.ModuleList(wnfused.WNLinear(inner, width) for _ in range(BLOCKS))

    def blocks(self) -> list[Step]:
        return [
            lambda h, first=first, second=second: h + second(first(h))
            for first, second in zip(self.first, self.second, strict=True)
        ]

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks():
            x = block(x)
        return x


def test_real_residual_networks_end_between_the_bounds():
    """No tricks, roles inferred, another width inside the blocks; narrow, for the time it takes."""
    model, runs = ResidualMLP(120, 160), []
    for _ in range(10):
        robust_(model, torch.randn(1, 120))
        runs.append(both_ways(model.blocks(), torch.randn(1, 32, 120)))
    assert_between_the_bounds(*collect(runs))


def area(n: int) -> float:
    """Logarithm of the surface area of the unit n-sphere, which lies in n + 1 dimensions."""
    return math.log(2) + (n + 1) / 2 * math.log(math.pi) - math.lgamma((n + 1) / 2)


def test_constant_of_theorem_1_is_one_by_its_formula():
    """It has to be: half of the directions pass the ReLU, and the squared cosine averages 1/n."""
    for n in range(2, 1001):
        factors = range(3, n, 2) if n % 2 == 0 else range(2, n, 2)
        log = math.log(2) + area(n - 1) - area(n) + sum(math.log((k - 1) / k) for k in factors)
        assert abs(log + (math.log(math.pi / 2) if n % 2 else 0)) < 1e-9


def test_constant_of_theorem_1_is_one_by_simulation():
    """For every n from 2 to 1000, each within 5 standard errors of its 4,000 rows."""
    rows = 4_000
    off = []
    for n in range(2, 1001):
        along = torch.randn(rows, dtype=torch.float64)  # a row's component along u; of the others only the norm matters
        across = torch.distributions.Chi2(torch.tensor(n - 1.0, dtype=torch.float64)).sample((rows,))
        v = (gain(n, rows, 2) * along / (along.square() + across).sqrt()).relu().square() * rows
        variance = 6 * n / (n + 2) - 1  # the mean of a fourth power of a cosine is 3 / (n (n + 2))
        assert abs(v.mean() - 1) < 5 * math.sqrt(variance / rows), n
        off.append(v.mean() - 1)
    assert abs(torch.stack(off).mean()) < 0.005  # over all n the errors average out


@pytest.mark.parametrize("n", [2, 3, 7, 40])
def test_constant_of_theorem_1_through_a_layer(n):
    layer = wnfused.WNLinear(n, 50_000, activation="relu")
    robust_layer_(layer, 2, distribution="he")
    u = torch.randn(8, n)
    ratio = layer(u).square().sum(1) / u.square().sum(1)
    assert (ratio - 1).abs().max() < 0.05


def kept_by_zero_padding(size: int, layers: int) -> Tensor:
    """Share of the energy after 1, 2, … 3×3 convolutions with zero padding, from an input of even energy.

    Each output position has the mean energy of the 9 it reads, those beyond the border counting as 0: along each side
    that is a matrix with 1/3 on three diagonals. The first layer keeps (1 - 2/(3·size))² of the energy.
    """
    i = torch.arange(size)
    step = ((i[:, None] - i).abs() <= 1).double() / 3
    along = [torch.linalg.matrix_power(step, n).sum() / size for n in range(1, layers + 1)]
    return torch.stack(along).square()


@pytest.mark.parametrize("padding_mode", ["circular", "zeros"])
def test_convolutions_keep_the_norm_up_to_the_border(padding_mode):
    channels, size = [24, 64, 96, 64, 80, 64], 8
    runs = []
    for _ in range(4):
        layers = []
        for n, m in pairwise(channels):
            layer = wnfused.WNConv2d(n, m, 3, padding=1, padding_mode=padding_mode)
            robust_layer_(layer, 2)
            layers.append(flipped(layer, 60))
        runs.append(both_ways(layers, torch.randn(60, 1, channels[0], size, size)))
    forward, backward = collect(runs)
    if padding_mode == "circular":
        kept = torch.ones(len(channels) - 1)
    else:
        kept = kept_by_zero_padding(size, len(channels) - 1)
        assert abs(kept[0] - (1 - 2 / (3 * size)) ** 2) < 1e-9
    forward.assert_is(kept)
    back = torch.cat([torch.ones(1, dtype=kept.dtype), kept[:-1]]).flip(0)
    backward.assert_is(back * torch.tensor(channels[1:]) / channels[-1])
