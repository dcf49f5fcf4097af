"""Fixup, SkipInit and scaled weight standardization: what their papers promise at initialization."""

import math
from typing import cast

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from wnfused.experiments import depth_transfer, peers
from wnfused.experiments.trial import trial
from wnfused.models import WRN
from wnfused.train import Config

SHAPE = (3, 16, 16)


def built(peer: str, layers: int = 22) -> WRN:
    return cast("WRN", peers.network(peer, Config(model=f"wrn-{layers}-1", norm="none", init="he"), SHAPE, 10))


def blocks(model: WRN) -> list[nn.Module]:
    return [block for stage in model.stages for block in cast("nn.Sequential", stage)]


def images(count: int = 8) -> torch.Tensor:
    return torch.randn(count, *SHAPE, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("peer", ["fixup", "skip_init"])
def test_branches_are_zero_and_can_learn(peer: str) -> None:
    model = built(peer)
    h = model.stem(images())
    for block in blocks(model):
        after = block(h)
        assert torch.equal(after, block.shortcut(h))
        h = after
    assert h.std() > 0.1  # the shortcuts alone carry the signal
    if peer == "fixup":
        assert not model(images()).any()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):  # zeros let the gradient in one layer after the other
        optimizer.zero_grad()
        F.cross_entropy(model(images()), torch.arange(8)).backward()
        optimizer.step()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())


def test_fixup_scales_branches_by_their_number_and_has_scalar_biases() -> None:
    """L^(−1/(2m − 2)) = L^(−1/2) for branches of m = 2 layers; L = 3 stages of 3 blocks."""
    model = built("fixup")
    for block in blocks(model):
        weight = block.first.weight
        wanted = math.sqrt(2 / weight[0].numel()) / math.sqrt(9)
        assert weight.std().item() == pytest.approx(wanted, rel=0.1)
        assert not block.last.weight.any()
    stem = cast("nn.Conv2d", model.stem.layer)
    assert stem.weight.std().item() == pytest.approx(math.sqrt(2 / 27), rel=0.15)
    assert not [part for part in model.modules() if isinstance(part, nn.Conv2d) and part.bias is not None]
    scalars = [parameter for parameter in model.parameters() if parameter.ndim == 0]
    assert len(scalars) == 5 * 9 + 2  # of each block; before the stem and the head


def test_standardized_weights_have_mean_zero_and_norm_one() -> None:
    layer = peers.StandardizedConv(nn.Conv2d(5, 7, 3), torch.Generator().manual_seed(0))
    with torch.no_grad():
        layer.layer.weight.mul_(3).add_(0.7)  # neither scale nor shift of the stored weights matters
        layer.gain[2] = 4.0
    rows = layer.weight().flatten(1)
    torch.testing.assert_close(rows.sum(1), torch.zeros(7), atol=1e-5, rtol=0)
    torch.testing.assert_close(rows.norm(dim=1), torch.tensor([1.0, 1.0, 4.0, 1.0, 1.0, 1.0, 1.0]))


def test_a_scaled_relu_has_variance_one() -> None:
    z = torch.randn(400_000, generator=torch.Generator().manual_seed(0))
    assert (F.relu(z) * peers.RELU_GAIN).var().item() == pytest.approx(1.0, rel=0.01)


def test_scaled_weight_standardization_keeps_the_expected_variance() -> None:
    """1 + α²·b after b blocks, and again from 1 after a shortcut that changes the shape."""
    model = built("scaled_ws", 4 + 6 * 12)
    expected = 1.0
    h = torch.randn(16, 16, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for block in blocks(model):
            assert block.beta == pytest.approx(math.sqrt(expected))
            h = block(h)
            expected = (1.0 if block.shortcut is not None else expected) + 0.2**2
            # Of each channel, over images and inner positions: zero padding changes the border.
            inner = h[:, :, 2:-2, 2:-2]
            assert inner.var((0, 2, 3)).mean().item() == pytest.approx(expected, rel=0.15)
    assert expected == pytest.approx(1 + 12 * 0.04)


@pytest.mark.parametrize("peer", peers.PEERS)
def test_peers_train(peer: str) -> None:
    images = {"data": "digits", "image_size": 8, "batch_size": 32, "validation": 0.0}
    outcome = trial(peer=peer, **images, model="wrn-16-1", norm="none", init="he", lr=0.03, max_steps=40).run()
    assert outcome["losses"][-1] < 0.5 * outcome["losses"][0]


def test_accuracy_on_the_first_test_images() -> None:
    tiny = {"data": "digits", "model": "mlp-2-16", "image_size": 8, "batch_size": 32, "validation": 0.0, "max_steps": 9}
    some, whole = (trial(test=test, **tiny).run()["test_accuracy"] for test in (7, True))
    assert some * 7 == pytest.approx(round(some * 7)) and whole * 7 != pytest.approx(round(whole * 7))


def test_the_key_of_a_trial_without_a_peer_is_what_it_was() -> None:
    """Committed results are found by it."""
    assert trial(data="digits", lr=0.1).settings == {"config": {"data": "digits", "lr": 0.1}, "test": False}
    assert trial(data="digits", lr=0.1, peer="fixup").key != trial(data="digits", lr=0.1).key


@pytest.mark.parametrize(
    ("losses", "diverged", "expected"),
    [([2.3, 2.0], None, True), ([2.3, 2.4], None, True), ([2.3, 2.6], None, False), ([2.3, 2.0], 7, False)],
)
def test_a_rate_is_stable_if_the_loss_does_not_rise(losses: list[float], diverged: int | None, expected: bool) -> None:
    assert depth_transfer.stable({"losses": losses, "diverged_step": diverged}) is expected
