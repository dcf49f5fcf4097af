"""Hugging Face models: save_pretrained and from_pretrained. Needs transformers."""

from pathlib import Path

import pytest
import torch

import wnfused

transformers = pytest.importorskip("transformers")

SMALL = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "conv_dim": (8, 8),
    "conv_stride": (4, 4), "conv_kernel": (8, 4), "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2,
}  # fmt: skip
X = torch.randn(1, 400, generator=torch.Generator().manual_seed(0))


def outputs(model: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(X).last_hidden_state


@pytest.mark.parametrize("back", [False, True], ids=["converted", "to_torch"])
def test_a_saved_model_is_loaded_again_and_folded(back: bool, tmp_path: Path) -> None:
    """transformers reads both spellings of the parameters, so the file needs no wnfused to be loaded."""
    torch.manual_seed(0)
    model = transformers.Wav2Vec2Model(transformers.Wav2Vec2Config(**SMALL))
    assert wnfused.convert(model).count == 1
    with torch.no_grad():  # away from its initialization
        model.encoder.pos_conv_embed.conv.weight_g.mul_(1.5)
    expected = outputs(model)
    if back:
        wnfused.to_torch(model)
    model.save_pretrained(tmp_path)
    again = transformers.Wav2Vec2Model.from_pretrained(tmp_path)
    torch.testing.assert_close(outputs(again), expected, rtol=1e-4, atol=1e-5)
    assert wnfused.convert(again).count == 1
    wnfused.fold(again)
    torch.testing.assert_close(outputs(again), expected, rtol=1e-4, atol=1e-5)
