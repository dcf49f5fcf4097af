"""The factor of zero padding against its closed form, a dense energy operator and random convolutions."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import wnfused
from tests.support.init_cases import kept_by_padding, seeded
from wnfused.init import padding, padding_factor, robust_


@pytest.mark.parametrize("size", [1, 2, 3, 8, 32, 100, 1000, 100_000])
def test_closed_form_of_three_taps(size):
    energy = kept_by_padding(size)
    assert padding_factor(nn.Conv1d(4, 4, 3, padding=1), size) == pytest.approx(energy**0.5, abs=1e-9)
    assert padding_factor(nn.Conv2d(4, 4, 3, padding=1), size) == pytest.approx(energy, abs=1e-9)
    assert padding_factor(nn.Conv3d(4, 4, 3, padding="same"), size) == pytest.approx(energy**1.5, abs=1e-9)
    assert padding_factor(nn.ConvTranspose2d(4, 4, 3, padding=1), size) == pytest.approx(energy, abs=1e-9)


def test_each_axis_has_its_own_factor():
    layer = wnfused.WNConv2d(4, 6, (3, 1), padding=(1, 0))
    assert padding_factor(layer, (5, 7)) == pytest.approx(kept_by_padding(5) ** 0.5)
    layer = nn.Conv2d(4, 4, 3, padding=(1, 2), dilation=(1, 2), groups=2)
    assert padding_factor(layer, (5, 8)) == pytest.approx((kept_by_padding(5) * kept_by_padding(4)) ** 0.5)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(2, 2, 1),
        nn.Conv2d(2, 2, 1, padding=1, stride=2),
        nn.Conv2d(2, 2, 3),
        nn.Conv2d(2, 2, 3, padding="valid", dilation=2),
        nn.Conv2d(2, 2, 4, stride=3),
        nn.ConvTranspose2d(2, 2, 4, stride=2),
        *(nn.Conv2d(2, 2, 3, padding=1, padding_mode=mode) for mode in ("circular", "reflect", "replicate")),
        nn.Conv2d(2, 2, 5, padding="same", stride=1, padding_mode="reflect"),
        nn.Conv1d(2, 2, 1, stride=3, padding=1),  # on a map of 1 it reads zeros alone
    ],
    ids=str,
)
def test_layers_that_lose_nothing_have_factor_one(layer):
    assert padding_factor(layer, 1 if isinstance(layer, nn.Conv1d) else 7) == 1.0


def energy_operator(layer: nn.Module, sizes: tuple[int, ...]) -> np.ndarray:
    """A [outputs, inputs], from the layer itself with every tap 1/taps; the rows' and columns' roles for transposed."""
    with torch.no_grad():
        layer.weight.fill_(1 / math.prod(layer.kernel_size))
        basis = torch.eye(math.prod(sizes), dtype=torch.float64).reshape(-1, 1, *sizes)
        a = layer(basis).flatten(1).T.numpy()
    return a.T if isinstance(layer, nn.modules.conv._ConvTransposeNd) else a


def dominant_mode(a: np.ndarray) -> np.ndarray:
    """Of A Aᵀ, where several: what power iteration gives from an even map."""
    values, vectors = np.linalg.eigh(a @ a.T)
    vectors = vectors[:, values >= values[-1] * (1 - 1e-9)]
    return vectors @ (vectors.T @ np.ones(len(a)))


def factor_by_definition(layer: nn.Module, sizes: tuple[int, ...]) -> float:
    a = energy_operator(layer, sizes)
    u = dominant_mode(a)
    return math.sqrt(a.sum(1) @ u / u.sum()) if a.any() else 1.0


KINDS = {
    (1, False): nn.Conv1d,
    (2, False): nn.Conv2d,
    (3, False): nn.Conv3d,
    (1, True): nn.ConvTranspose1d,
    (2, True): nn.ConvTranspose2d,
    (3, True): nn.ConvTranspose3d,
}


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[nn.Module, tuple[int, ...]]:
    axes = draw(st.sampled_from([1, 1, 2, 2, 3]))
    longest = {1: 24, 2: 7, 3: 4}[axes]

    def ints(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.lists(st.integers(low, high), min_size=axes, max_size=axes)))

    sizes, taps, stride, dilation = ints(1, longest), ints(1, 5), ints(1, 4), ints(1, 4)
    transposed = draw(st.booleans())
    options = {"stride": stride, "padding": ints(0, 5), "dilation": dilation, "bias": False, "dtype": torch.float64}
    if transposed:
        most = (max(s, d) - 1 for s, d in zip(stride, dilation, strict=True))
        options["output_padding"] = tuple(draw(st.integers(0, n)) for n in most)
    elif draw(st.booleans()):
        options |= {"padding": "same", "stride": 1}
    return KINDS[axes, transposed](1, 1, taps, **options), sizes


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@settings(max_examples=300, deadline=None)
@given(convolutions())
def test_factor_is_the_definition_on_the_dense_operator(case):
    layer, sizes = case
    outputs = padding._output_sizes(layer, sizes)
    if min(outputs) < 1:
        with pytest.raises(ValueError, match="padding_factor: size: .* leaves no output position"):
            padding_factor(layer, sizes)
        return
    assert layer(torch.zeros(1, 1, *sizes, dtype=torch.float64)).shape[2:] == tuple(outputs)
    factor = padding_factor(layer, sizes)
    assert factor == pytest.approx(factor_by_definition(layer, sizes), rel=1e-7)
    assert 0 < factor <= 1


@pytest.mark.parametrize(("taps", "stride"), [(3, 1), (8, 1), (15, 1), (7, 2), (40, 1), (41, 4)])
def test_long_maps_and_kernels(taps, stride):
    """Beyond what is decomposed: cut in the middle, or by iteration."""
    layer = nn.Conv1d(1, 1, taps, stride, taps // 2, bias=False, dtype=torch.float64)
    for size in (150 * stride, 400 * stride):
        exact = factor_by_definition(layer, (size,)) ** 2
        lost = 1 - padding_factor(layer, size) ** 2
        assert lost == pytest.approx(1 - exact, rel=0.02, abs=1e-9)


def test_dilation_takes_the_largest_part():
    """Every second position: 5 and 4 of 9, which do not see each other."""
    layer = nn.Conv1d(1, 1, 3, padding=2, dilation=2)
    assert padding_factor(layer, 9) ** 2 == pytest.approx(kept_by_padding(5))
    assert padding_factor(layer, 8) ** 2 == pytest.approx(kept_by_padding(4))
    assert padding_factor(nn.Conv1d(1, 1, 3, padding=512, dilation=512), 8192) ** 2 == pytest.approx(
        kept_by_padding(16)
    )
    assert padding_factor(nn.Conv1d(1, 1, 3, padding=99, dilation=99), 9) ** 2 == pytest.approx(1 / 3)


RANDOM = [
    (lambda: wnfused.WNConv1d(16, 16, 5, stride=2, padding=4, dilation=2), (11,)),
    (lambda: wnfused.WNConv1d(16, 16, 4, padding="same"), (6,)),
    (lambda: wnfused.WNConv2d(16, 16, 3, padding=1, groups=4), (4, 3)),
    (lambda: wnfused.WNConv2d(12, 12, (3, 5), stride=(2, 1), padding=(1, 2), dim=None), (7, 4)),
    (lambda: wnfused.WNConv3d(8, 8, 3, padding=1), (2, 3, 4)),
    (lambda: wnfused.WNConvTranspose1d(16, 16, 4, stride=2, padding=2), (4,)),
    (lambda: wnfused.WNConvTranspose2d(16, 16, 3, stride=2, padding=1, output_padding=1), (3, 4)),
    (lambda: wnfused.WNConvTranspose3d(8, 8, 3, padding=1, dim=1), (2, 2, 3)),
]


@pytest.mark.parametrize(("make", "sizes"), RANDOM, ids=[str(make()) for make, _ in RANDOM])
def test_random_convolutions_keep_the_energy_of_the_dominant_mode(make, sizes):
    """Gradients of a convolution, the signal of a transposed one: what A's rows are about."""
    layer = make()
    transposed = isinstance(layer, nn.modules.conv._ConvTransposeNd)
    axes = len(sizes)
    options = {"stride": layer.stride, "padding": layer.padding, "dilation": layer.dilation, "bias": False}
    if transposed:
        options["output_padding"] = layer.output_padding
    single = KINDS[axes, transposed](1, 1, layer.kernel_size, **options, dtype=torch.float64)
    u = torch.from_numpy(dominant_mode(energy_operator(single, sizes))).clamp(min=0).sqrt().float()
    x = torch.zeros(1, layer.in_channels, *sizes)
    ratios = []
    for seed in range(80):
        generator = seeded(seed)
        robust_(nn.Sequential(layer), x, roles={"0": 1}, padding="aware", generator=generator)
        shape = sizes if transposed else layer(x).shape[2:]
        channels = torch.randn(8, layer.in_channels, *[1] * axes, generator=generator)
        signs = torch.randint(0, 2, (8, layer.in_channels, *shape), generator=generator) * 2 - 1
        mode = channels * signs * u.reshape(shape)  # [8, channels, *shape]
        if transposed:
            result = layer(mode).detach()
        else:
            _, back = torch.func.vjp(layer, torch.zeros(8, layer.in_channels, *sizes))
            (result,) = back(mode)
        ratios.append(result.square().sum() / mode.square().sum())
    mean, error = torch.stack(ratios).mean(), torch.stack(ratios).std() / math.sqrt(len(ratios))
    assert error < 0.03
    assert abs(mean - 1) < 4 * error
    assert padding_factor(layer, sizes) ** 2 < 1 - 4 * error  # without the factor it is not kept


def conv(taps: int = 3, stride: int = 1, dilation: int = 1, padding: int | str | None = None) -> nn.Conv1d:
    padding = dilation * (taps - 1) // 2 if padding is None else padding
    return nn.Conv1d(1, 1, taps, stride, padding, dilation, bias=False, dtype=torch.float64)


CHAINS = [  # the table of docs/initialization.md
    (32, [conv(stride=2)] * 2 + [conv()] * 98, 0.016, 0.88),
    (32, ([conv()] * 18 + [conv(stride=2)]) * 2 + [conv()] * 18, 0.31, 0.86),
    (8, [conv(5)] * 30, 0.034, 0.93),
    (32, [conv(stride=2)] * 5, 0.50, 0.91),
    (32, [conv(dilation=2 ** (i % 4)) for i in range(24)], 0.26, 0.82),
    (16, [conv(4, padding="same")] * 40, 0.043, 0.10),
]


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize(("size", "layers", "ignored", "aware"), CHAINS)
def test_energy_of_chains_from_an_even_map(size, layers, ignored, aware):
    energy, divided = np.ones(size), 1.0
    for layer in layers:
        divided *= padding_factor(layer, len(energy)) ** 2
        energy = energy_operator(layer, (len(energy),)) @ energy
    assert energy.mean() == pytest.approx(ignored, rel=0.05)
    assert energy.mean() / divided == pytest.approx(aware, rel=0.05)


BAD: list[tuple[Callable[[], object], type[Exception], str]] = [
    (
        lambda: padding_factor(nn.Linear(3, 3), 8),
        TypeError,
        "padding_factor: layer: expected a convolution, got Linear",
    ),
    (lambda: padding_factor(nn.Conv2d(3, 3, 3), (8, 8, 8)), ValueError, "padding_factor: size: expected an int or 2"),
    (lambda: padding_factor(nn.Conv2d(3, 3, 3), 0), ValueError, "padding_factor: size: expected integers >= 1"),
    (lambda: padding_factor(nn.Conv2d(3, 3, 5, padding=1), 2), ValueError, "padding_factor: size: 2 leaves no output"),
]


@pytest.mark.parametrize(("call", "error", "message"), BAD, ids=[message for *_, message in BAD])
def test_bad_input_names_the_argument(call, error, message):
    with pytest.raises(error, match=message):
        call()
