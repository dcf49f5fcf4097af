"""``robust_(…, padding="aware")``: deep networks keep their signal, everything else stays as it is."""

import io
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import wnfused
from tests.support.init_cases import APIS, kept_by_padding, normalize, seeded, state
from wnfused.init import explain, padding_factor, robust_, robust_layer_
from wnfused.models import CNN, resnet20

pytestmark = pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")


def both_ways(layers: nn.Sequential, h: Tensor) -> tuple[float, float]:
    """‖y‖ / ‖h‖ and ‖∂ℓ/∂h‖ / ‖∂ℓ/∂y‖, means over the batch."""
    h = h.detach().requires_grad_()
    y = layers(h)
    error = torch.randn(y.shape, generator=seeded(9))
    (gradient,) = torch.autograd.grad(y, h, error)

    def mean_ratio(a: Tensor, b: Tensor) -> float:
        return (a.detach().flatten(1).norm(dim=1) / b.detach().flatten(1).norm(dim=1)).mean().item()

    return mean_ratio(y, h), mean_ratio(gradient, error)


def test_deep_plain_cnns_keep_their_signal():
    """100 layers, 98 of them on 8×8 maps. A network of 64 channels wanders, but no longer shrinks in every draw."""
    x = torch.randn(4, 3, 32, 32, generator=seeded(5))
    ratios: dict[str, list[tuple[float, float]]] = {"ignored": [], "aware": []}
    for seed in range(4):
        outputs = {}
        for how in ratios:
            model = CNN(100, channels=64)
            robust_(model, x[:1], padding=how, generator=seeded(seed))
            ratios[how].append(both_ways(model.features[2:], model.features[:2](x)))
            outputs[how] = model.features(x)
        # ReLU commutes with the factors, so the two networks differ by all of them.
        strided = [padding_factor(model.features[0], 32), padding_factor(model.features[1], 16)]
        scaled = outputs["ignored"] / (math.prod(strided) * kept_by_padding(8) ** 98)
        assert (scaled - outputs["aware"]).norm() < 1e-4 * scaled.norm()
    for forward, backward in ratios["ignored"]:
        assert forward < 0.03
        assert backward < 0.03
    typical = torch.tensor(ratios["aware"]).log().mean(0).exp()  # geometric means: forward, backward
    assert (typical > 0.1).all()
    assert (typical < 1.5).all()
    assert all(0.05 < ratio < 2 for pair in ratios["aware"] for ratio in pair)


def test_dominant_mode_is_kept_in_expectation():
    """10 layers on 4×4 maps, forward and backward, from signals of the mode's shape: energy 1 at the end of each."""
    size, depth, channels = 4, 10, 64
    mode = torch.sin(torch.arange(1, size + 1) * math.pi / (size + 1)).sqrt()
    forward, backward = [], []
    for seed in range(40):
        layers = nn.Sequential(
            *(wnfused.WNConv2d(channels, channels, 3, padding=1, activation="relu") for _ in range(depth))
        )
        generator = seeded(seed)
        robust_(layers, torch.zeros(1, channels, size, size), padding="aware", generator=generator)
        h = torch.randn(4, channels, size, size, generator=generator) * mode * mode[:, None]
        error = torch.randn(h.shape, generator=generator) * mode * mode[:, None]
        y, back = torch.func.vjp(layers, h)
        forward.append(y.square().sum() / h.square().sum())
        backward.append(back(error)[0].square().sum() / error.square().sum())
    for energies in (torch.stack(forward), torch.stack(backward)):
        error = energies.std() / math.sqrt(len(energies))
        assert error < 0.2
        assert abs(energies.mean() - 1) < 4 * error
    assert kept_by_padding(size) ** (2 * depth) < 0.1  # of the energy, without the factor


def test_residual_networks_barely_change():
    x = torch.randn(4, 3, 32, 32, generator=seeded(5))
    norms = {}
    for how in ("ignored", "aware"):
        model = resnet20()
        robust_(model, x[:1], padding=how, generator=seeded(1))
        hidden: list[Tensor] = []
        model.head.register_forward_pre_hook(lambda _, args, hidden=hidden: hidden.append(args[0].detach()))
        model(x)
        norms[how] = hidden[0].norm().item()
    assert 1 < norms["aware"] / norms["ignored"] < 1.15


def padded() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 6, 4, 2, 1), nn.Flatten(), nn.Linear(6 * 16, 5)
    )


def padded_wn() -> nn.Module:
    return normalize(padded(), "wnfused")


ROLES = {"0": 2, "2": 1, "4": 1}
X = torch.zeros(1, 3, 8, 8)


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("variant", ["forward", "backward"])
def test_only_gains_of_padded_convolutions_differ(api, variant):
    ignored, aware, by_layer = (normalize(padded(), api) for _ in range(3))
    random = torch.get_rng_state()
    robust_(ignored, roles=ROLES, variant=variant, generator=seeded())
    robust_(aware, X, roles=ROLES, variant=variant, padding="aware", generator=seeded())
    assert torch.equal(random, torch.get_rng_state())
    generator = seeded()
    for name, gamma in ROLES.items():
        robust_layer_(by_layer.get_submodule(name), gamma, variant=variant, generator=generator)
    before, after, reference = state(ignored), state(aware), state(by_layer)
    assert all(torch.equal(before[name], reference[name]) for name in reference)  # bit by bit
    factors = {"0": kept_by_padding(8), "2": padding_factor(padded()[2], 8)}
    for name in before:
        gain = name.endswith(("weight_g", "original0"))
        factor = factors.get(name.split(".")[0], 1.0) if gain else 1.0
        if factor == 1.0:
            assert torch.equal(after[name], before[name]), name
        else:
            torch.testing.assert_close(after[name], before[name] / factor)
            assert not torch.equal(after[name], before[name])


class Shared(nn.Module):
    """One layer on maps of two sizes, in a model that counts its calls and has running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.calls = wnfused.WNConv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), 0
        self.up = wnfused.WNConvTranspose2d(4, 4, 3, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        half = self.conv(nn.functional.avg_pool2d(self.norm(self.conv(x)), 2))
        return self.up(input=half, output_size=x.shape[-2:])


def test_shared_layers_and_side_effects():
    model = Shared().train()
    robust_(model, torch.randn(2, 4, 8, 8), roles={"conv": 1, "up": 1}, padding="aware")
    expected = 1 / math.sqrt(kept_by_padding(8) * kept_by_padding(4))
    torch.testing.assert_close(model.conv.weight_g.flatten(), torch.full((4,), expected))
    up = padding_factor(nn.ConvTranspose2d(1, 1, 3, 2, 1, output_padding=1), 4)
    torch.testing.assert_close(model.up.weight_g.flatten(), torch.full((4,), 1 / up))
    assert model.calls == 0
    assert model.training and model.norm.training
    assert model.norm.num_batches_tracked == 0
    assert not model.conv._forward_hooks


def test_unbatched_inputs():
    model = nn.Sequential(wnfused.WNConv1d(3, 3, 3, padding=1))
    robust_(model, torch.randn(3, 5), roles={"0": 1}, padding="aware")
    torch.testing.assert_close(model[0].weight_g.flatten(), torch.full((3,), kept_by_padding(5) ** -0.5))


def test_explain_shows_the_factor():
    model = padded_wn()
    table = explain(model, X, padding="aware", file=io.StringIO()).splitlines()
    assert table[0].split() == ["layer", "role", "fan_in", "fan_out", "γ", "padding", "g"]
    rows = [line.split() for line in table[2::2]]  # the evidence stands below each
    assert rows[0][-2:] == [f"{kept_by_padding(8):.4g}", f"{math.sqrt(2 * 3 / 6) / kept_by_padding(8):.4g}"]
    assert rows[2][-2] == "1"
    assert "padding" not in explain(model, X, file=io.StringIO())


class Unreached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = wnfused.WNConv2d(3, 3, 3, padding=1), wnfused.WNConv2d(3, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)


BAD: list[tuple[Callable[[], object], type[Exception], str]] = [
    (
        lambda: robust_(padded_wn(), X, padding="zeros"),
        ValueError,
        "robust_: padding: .*'ignored', 'aware', got 'zeros'",
    ),
    (lambda: robust_(padded_wn(), X, padding=True), ValueError, "robust_: padding: expected one of .* got True"),
    (lambda: robust_(padded_wn(), X, padding=[]), ValueError, r"robust_: padding: expected one of .* got \[\]"),
    (lambda: explain(padded_wn(), X, padding="x"), ValueError, "explain: padding: expected one of .* got 'x'"),
    (
        lambda: robust_(padded_wn(), roles=ROLES, padding="aware"),
        ValueError,
        "robust_: example_input: expected an input of the model, .* padding='aware' needs, got None",
    ),
    (
        lambda: robust_(padded_wn(), torch.zeros(1, 5, 8, 8), roles=ROLES, padding="aware"),
        ValueError,
        r"robust_: example_input: the model does not run on it \(shape \[1, 5, 8, 8\]\)",
    ),
    (
        lambda: robust_(Unreached(), X, roles={"used": 1, "unused": 1}, padding="aware"),
        ValueError,
        "robust_: padding: 'unused': not called .* example_input that reaches the layer, or padding='ignored'",
    ),
    (
        lambda: robust_(
            nn.Sequential(wnfused.WNConv2d(3, 3, 3, padding=1), nn.LazyConv2d(3, 3)), X, roles={"0": 1}, padding="aware"
        ),
        ValueError,
        "robust_: model: 1.weight is not initialized yet; run the model once first",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), BAD, ids=[message for *_, message in BAD])
def test_bad_input_names_the_argument(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_an_error_leaves_the_model_as_it_was():
    model = Unreached()
    before = state(model)
    with pytest.raises(ValueError, match="padding"):
        robust_(model, X, roles={"used": 1, "unused": 1}, padding="aware")
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
