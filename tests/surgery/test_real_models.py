"""convert, fold, state dicts and roles on small weight-normalized models from transformers with random weights."""

import copy
import os

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"
import transformers

import wnfused
from wnfused.nn.base import WeightNormalized

TOLERANCE = 1e-5  # of the largest element, in float32


class EncodecAutoencoder(nn.Module):
    """EnCodec without its quantizer, which blocks gradients in transformers."""

    def __init__(self, codec):
        super().__init__()
        self.codec = codec

    def forward(self, audio):
        return self.codec.decoder(self.codec.encoder(audio))


def encodec():
    config = transformers.EncodecConfig(
        num_filters=4, hidden_size=16, codebook_dim=16, codebook_size=32, upsampling_ratios=[4, 2], num_lstm_layers=1
    )
    return EncodecAutoencoder(transformers.EncodecModel(config)), torch.randn(2, 1, 400)


def dac():
    config = transformers.DacConfig(
        encoder_hidden_size=8,
        downsampling_ratios=[2, 4],
        decoder_hidden_size=32,
        upsampling_ratios=[4, 2],
        n_codebooks=2,
        codebook_size=16,
        codebook_dim=4,
    )
    model = transformers.DacModel(config)
    model.apply_weight_norm()
    return model, torch.randn(2, 1, 320)


def hifi_gan():
    config = transformers.SpeechT5HifiGanConfig(
        model_in_dim=8,
        upsample_initial_channel=16,
        upsample_rates=[4, 2],
        upsample_kernel_sizes=[8, 4],
        resblock_kernel_sizes=[3, 5],
        resblock_dilation_sizes=[[1, 3], [1, 3]],
    )
    model = transformers.SpeechT5HifiGan(config)
    model.apply_weight_norm()
    return model, torch.randn(2, 20, 8)


def wav2vec2():
    config = transformers.Wav2Vec2Config(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        conv_dim=[8, 8],
        conv_stride=[5, 2],
        conv_kernel=[10, 3],
        num_conv_pos_embeddings=8,
        num_conv_pos_embedding_groups=2,
        attn_implementation="eager",
    )
    return transformers.Wav2Vec2Model(config), torch.randn(2, 400)


MODELS = [
    pytest.param(encodec, 20, id="encodec"),
    pytest.param(dac, 36, id="dac"),
    pytest.param(hifi_gan, 20, id="hifi-gan"),
    pytest.param(wav2vec2, 1, id="wav2vec2"),
]


def build(make):
    """The model in eval mode, with weights moved away from their initial values, and an input."""
    torch.manual_seed(0)
    model, x = make()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * p.square().mean().sqrt(), alpha=0.1)
    return model.eval(), x


def waveform(output):
    """The tensor in a model's output."""
    for name in ("audio_values", "last_hidden_state"):
        if hasattr(output, name):
            return getattr(output, name)
    return output


def run(model, x):
    model.zero_grad()
    y = waveform(model(x))
    y.square().mean().backward()
    return y.detach(), [p.grad for p in model.parameters() if p.grad is not None]


def difference(a, b, floor=0.0):
    """The largest difference relative to the largest element of b, or to ``floor`` where that is larger."""
    assert a.shape == b.shape
    assert b.abs().max() > 0
    return ((a - b).abs().max() / b.abs().max().clamp_min(floor)).item()


def normalized(model):
    return [name for name, module in model.named_modules() if parametrize.is_parametrized(module, "weight")]


@pytest.mark.parametrize(("make", "count"), MODELS)
def test_convert_keeps_outputs_gradients_and_checkpoints(make, count):
    model, x = build(make)
    original = copy.deepcopy(model)
    names, parameters = normalized(model), [id(p) for p in model.parameters()]
    report = wnfused.convert(model)
    assert report.converted == names
    assert len(names) == count
    assert report.skipped == {}
    assert [id(p) for p in model.parameters()] == parameters
    (y, gradients), (expected, expected_gradients) = run(model, x), run(original, x)
    assert difference(y, expected) < TOLERANCE
    assert len(gradients) == len(expected_gradients) > count
    floor = 1e-6 * max(g.abs().max().item() for g in expected_gradients)  # the bias of attention keys has gradient 0
    for mine, theirs in zip(gradients, expected_gradients, strict=True):
        assert difference(mine, theirs, floor) < TOLERANCE
    state = wnfused.state_dict(model)
    assert list(state) == list(original.state_dict())
    with torch.no_grad():
        for p in original.parameters():
            p.normal_()
    original.load_state_dict(state, strict=True)
    assert difference(waveform(original(x)).detach(), expected) < TOLERANCE
    model.load_state_dict(original.state_dict(), strict=True)


@pytest.mark.parametrize(("make", "count"), MODELS)
def test_fold_freeze_and_the_way_back_equal_the_original(make, count):
    model, x = build(make)
    with torch.no_grad():
        expected = waveform(model(x))
        wnfused.convert(model)
        with wnfused.frozen(model):
            assert difference(waveform(model(x)), expected) < TOLERANCE
            assert difference(waveform(model(x)), expected) < TOLERANCE
        back = copy.deepcopy(model)
        assert wnfused.fold(model) == count
        assert wnfused.fold(model) == 0
        assert difference(waveform(model(x)), expected) < TOLERANCE
        assert not any(isinstance(module, WeightNormalized) for module in model.modules())
        for api in ("parametrizations", "hook"):
            assert wnfused.to_torch(back, api=api) == count
            assert difference(waveform(back(x)), expected) < TOLERANCE
            assert wnfused.convert(back).count == count


def test_whole_encodec_gives_the_same_codes():
    model, x = build(encodec)
    codec = model.codec
    with torch.no_grad():
        frames = codec.encoder(x).transpose(1, 2).flatten(0, 1)  # [B T, 16]
        codec.quantizer.layers[0].codebook.embed.copy_(frames[:: len(frames) // 32][:32])  # all zeros at first
        expected = codec.encode(x).audio_codes
        audio = codec(x).audio_values
        wnfused.convert(codec)
        assert torch.equal(codec.encode(x).audio_codes, expected)
        assert len(expected.unique()) > 1
        assert difference(codec(x).audio_values, audio) < TOLERANCE


@pytest.mark.parametrize("folded", [False, True])
def test_the_models_own_remove_weight_norm_works_after_convert_and_after_fold(folded):
    model, x = build(dac)
    with torch.no_grad():
        expected = model(x).audio_values
    report = wnfused.convert(model)
    if folded:
        assert wnfused.fold(model) == report.count
    model.remove_weight_norm()
    assert not any(hasattr(m, "weight_g") or m._forward_pre_hooks for m in model.modules())
    assert {type(m) for m in model.modules() if hasattr(m, "kernel_size")} == {nn.Conv1d, nn.ConvTranspose1d}
    with torch.no_grad():
        assert difference(model(x).audio_values, expected) < TOLERANCE


def roles(make):
    model, x = build(make)
    before = wnfused.state_dict(model)
    found = wnfused.init.infer_roles(model, x)
    assert list(found) == [name for name in found if name in normalized(model)] and len(found) == len(normalized(model))
    assert all(torch.equal(v, before[k]) for k, v in wnfused.state_dict(model).items())
    return found


def test_roles_in_hifi_gan():
    """Parallel towers of two residual blocks with leaky ReLUs; the sum of the towers is not a residual sum."""
    for name, role in roles(hifi_gan).items():
        expected = ("leaky_relu", 2 / (1 + 0.1**2))
        if "convs2" in name:
            expected = ("residual_end", 1 / 2)
        elif name.startswith("upsampler"):  # its output goes into a leaky ReLU and is where the towers fork
            expected = ("other", 1.0)
        elif name == "conv_post":
            expected = ("tanh", pytest.approx(2.54, abs=0.01))
        assert (role.kind, role.gamma) == expected, name


def test_roles_in_encodec():
    """Residual units with ELU and a convolution on the shortcut, strided and transposed convolutions between."""
    found = {name.removeprefix("codec.").removesuffix(".conv"): role for name, role in roles(encodec).items()}
    for name, role in found.items():
        last = name.split(".", 3)[-1]
        expected = {"block.1": "elu", "block.3": "residual_end", "shortcut": "shortcut"}.get(last, "other")
        assert role.kind == expected, name
    assert {role.gamma for role in found.values() if role.kind == "residual_end"} == {1.0}  # stages of one


def test_roles_in_dac_and_wav2vec2():
    """DAC's Snake is a module of its own with one α per channel. In wav2vec2, a GELU ends the branch that adds the
    positions."""
    found = roles(dac)
    ends = [name for name, role in found.items() if ".res_unit" in name and role.kind == "residual_end"]
    assert len(ends) == 12 and all(name.endswith("conv2") and found[name].gamma == 1 / 3 for name in ends)
    snakes = [role for name, role in found.items() if ".res_unit" in name and name.endswith("conv1")]
    assert len(snakes) == 12 and all(role.kind == "snake1d" and 0.7 < role.gamma < 0.8 for role in snakes)
    (role,) = roles(wav2vec2).values()
    assert role.kind == "residual_end" and "after gelu" in role.why


@pytest.mark.parametrize("make", [encodec, dac, hifi_gan])
def test_schemes_and_signal(make):
    model, x = build(make)
    for scheme in ("robust_", "hanin_", "data_dependent_"):
        getattr(wnfused.init, scheme)(model, x)
        assert all(torch.isfinite(p).all() for p in model.parameters())
    report = wnfused.diagnostics.signal_report(model, x, modules=normalized(model))
    assert len(report.layers) >= len(normalized(model)) and all(s.forward_mean > 0 for s in report.layers)
