"""Small configurations of the transformers models that use weight norm, and inputs for them.

The models are found by reading the source of the installed transformers; one that no configuration here fits is named.
"""

import importlib
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

AUDIO = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
FEATURES = {"conv_dim": (16, 16), "conv_stride": (4, 4), "conv_kernel": (8, 4), "num_feat_extract_layers": 2}
SPEECH = AUDIO | FEATURES | {"num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2}
STAGES = {"encoder_hidden_size": 8, "decoder_hidden_size": 32, "downsampling_ratios": (2, 4)}
DAC = STAGES | {"upsampling_ratios": (4, 2)}
SEANET = {"hidden_size": 16, "num_filters": 4, "upsampling_ratios": [4, 2], "upsample_groups": 16} | {
    "num_hidden_layers": 1,
    "intermediate_size": 16,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
}
# One frame of HuBERT's features for each frame of DAC's: strides of 8 in both.
SEMANTIC = SPEECH | {"model_type": "hubert", "conv_stride": (4, 2), "conv_kernel": (4, 2)}
BOTH = {"semantic_model_config": SEMANTIC, "acoustic_model_config": DAC | {"model_type": "dac", "hidden_size": 16}} | {
    "codebook_size": 16,
    "target_bandwidths": (8, 16),
}
UNITS = (
    {"unit_hifi_gan_vocab_size": 40, "unit_embed_dim": 16, "lang_embed_dim": 8, "spkr_embed_dim": 8}
    | {"vocoder_num_langs": 4, "vocoder_num_spkrs": 4, "upsample_initial_channel": 32}
    | {"hidden_size": 16, "vocab_size": 40, "char_vocab_size": 40, "t2u_vocab_size": 40}
)
UNIVNET = {"model_in_channels": 8, "model_hidden_channels": 8, "num_mel_bins": 16} | {
    "kernel_predictor_hidden_channels": 8
}
VITS = (
    {"vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "ffn_dim": 16}
    | {"flow_size": 16, "spectrogram_bins": 9, "upsample_initial_channel": 16, "duration_predictor_flow_bins": 4}
    | {"prior_encoder_num_wavenet_layers": 2, "posterior_encoder_num_wavenet_layers": 2}
    | {"noise_scale": 0.0, "noise_scale_duration": 0.0}  # otherwise the output is random
)

PART = "PositionalConvEmbedding"
# The folder of a model: its class, a small configuration, and the shapes of its inputs (a list: indices).
MODELS: dict[str, tuple[str, dict[str, Any], dict[str, tuple[int, ...] | list[int]]]] = {
    "wav2vec2": ("Wav2Vec2Model", SPEECH, {"input_values": (1, 800)}),
    # The whole model builds this part, and its forward never calls it.
    "wav2vec2_conformer": ("Wav2Vec2Conformer" + PART, SPEECH, {"hidden_states": (1, 50, 32)}),
    "hubert": ("HubertModel", SPEECH, {"input_values": (1, 800)}),
    "wavlm": ("WavLMModel", SPEECH, {"input_values": (1, 800)}),
    "unispeech": ("UniSpeechModel", SPEECH, {"input_values": (1, 800)}),
    "unispeech_sat": ("UniSpeechSatModel", SPEECH, {"input_values": (1, 800)}),
    "sew": ("SEWModel", SPEECH | {"squeeze_factor": 2}, {"input_values": (1, 800)}),
    "sew_d": ("SEWDModel", SPEECH | {"squeeze_factor": 2}, {"input_values": (1, 800)}),
    "dac": ("DacModel", DAC | {"n_codebooks": 2, "codebook_size": 16}, {"input_values": (1, 1, 512)}),
    "encodec": (
        "EncodecModel",
        {"num_filters": 4, "hidden_size": 16, "codebook_size": 16},
        {"input_values": (1, 1, 2400)},
    ),
    "mimi": (
        "MimiModel",
        SEANET
        | {"num_quantizers": 2, "codebook_size": 16, "codebook_dim": 8, "vector_quantization_hidden_dimension": 8}
        | {"sampling_rate": 400, "frame_rate": 25.0},
        {"input_values": (1, 1, 256)},
    ),
    "pocket_tts_audio_tokenizer": (
        "PocketTTSAudioTokenizerModel",
        SEANET | {"latent_stride": 2, "latent_dim": 8},
        {"input_values": (1, 1, 256)},
    ),
    "xcodec": ("XcodecModel", BOTH, {"input_values": (1, 1, 800)}),
    "higgs_audio_v2_tokenizer": (
        "HiggsAudioV2TokenizerModel",
        BOTH | {"codebook_dim": 8, "sample_rate": 16000, "downsample_factor": 8},
        {"input_values": (1, 1, 800)},
    ),
    "speecht5": ("SpeechT5HifiGan", {"upsample_initial_channel": 32}, {"spectrogram": (1, 10, 80)}),
    "fastspeech2_conformer": (
        "FastSpeech2ConformerHifiGan",
        {"upsample_initial_channel": 32},
        {"spectrogram": (1, 10, 80)},
    ),
    "univnet": ("UnivNetModel", UNIVNET, {"input_features": (1, 6, 16), "noise_sequence": (1, 6, 8)}),
    "vits": ("VitsModel", VITS, {"input_ids": [*range(1, 9)]}),
    "seamless_m4t": ("SeamlessM4TCodeHifiGan", UNITS, {"input_ids": [*range(4, 20)], "spkr_id": [1], "lang_id": [2]}),
    "seamless_m4t_v2": (
        "SeamlessM4Tv2CodeHifiGan",
        UNITS,
        {"input_ids": [*range(4, 20)], "speaker_id": [1], "lang_id": [2]},
    ),
}


def users_of_weight_norm() -> list[str]:
    """The folders of the installed transformers whose source mentions weight_norm."""
    spec = importlib.util.find_spec("transformers")
    if spec is None or spec.origin is None:
        return []
    files = sorted((Path(spec.origin).parent / "models").glob("*/modeling_*.py"))
    return list(dict.fromkeys(file.parent.name for file in files if "weight_norm" in file.read_text(encoding="utf-8")))


def why_not(folder: str) -> str | None:
    """Why a model cannot be tried here."""
    if folder not in MODELS:
        return "no configuration in benchmarks/models_of_transformers.py"
    try:
        _source(folder)
    except ImportError as error:
        return str(error)
    return None


def _source(folder: str) -> ModuleType:
    return importlib.import_module(f"transformers.models.{folder}.modeling_{folder}")


def make(folder: str) -> nn.Module:
    """A new model under torch's norm, with random weights."""
    name, settings, _ = MODELS[folder]
    source = _source(folder)
    kind = getattr(source, name)
    config = getattr(kind, "config_class", None) or getattr(source, name.removesuffix(PART) + "Config")
    model: nn.Module = kind(config(**settings))
    _normalize(model)
    return model


def _normalize(module: nn.Module) -> None:
    """Call ``apply_weight_norm`` where a model or a part of it has that method; others are normalized when built."""
    method = getattr(module, "apply_weight_norm", None)
    if method is not None:
        method()
        return
    for child in module.children():
        _normalize(child)


def inputs(folder: str, numbers: torch.Generator) -> dict[str, Tensor]:
    return {
        name: torch.tensor([shape]) if isinstance(shape, list) else torch.randn(shape, generator=numbers)
        for name, shape in MODELS[folder][2].items()
    }
