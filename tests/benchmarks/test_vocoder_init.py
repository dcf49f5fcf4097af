"""The vocoder benchmark: its generator, its signals, and one step from each initialization."""

import math

import pytest
import torch

from benchmarks.vocoder_init import HOP, INITS, Generator, harmonics, initialize, log_mel, mel_bank, train


def test_shapes_and_size():
    audio = harmonics(1, 8, torch.Generator().manual_seed(0))
    mel = log_mel(audio, mel_bank())
    model = Generator()
    assert audio.shape == (1, 8 * HOP)
    assert mel.shape == (1, 80, 8)
    assert model(mel).shape == (1, 1, 8 * HOP)
    assert 1.4e6 < sum(p.numel() for p in model.parameters()) < 1.5e6
    initialize(model, "intended", mel)
    assert model.ups[0].weight.std().item() == pytest.approx(0.01, rel=0.05)


@pytest.mark.parametrize("init", INITS)
def test_a_step(init):
    (loss,) = train(init, seed=0, steps=1, batch=1, frames=4)
    assert math.isfinite(loss)
