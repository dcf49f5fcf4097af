"""Conversion tried on models: what is converted, how much outputs and gradients change, and the time beside torch's.

python -m benchmarks.models_tested [--only TEXT] [--rounds 7] [--threads 1] [--markdown docs/models-tested.md]

The models have the shapes of public ones, at a small size with random weights. Those of transformers are found by
reading its source; one without a small configuration below is listed as not tried.
"""

import argparse
import importlib
import importlib.util
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import wnfused
from wnfused.benchmarks.shapes_of_models import MODELS
from wnfused.benchmarks.suite import environment
from wnfused.diagnostics.timing import interleave
from wnfused.model_io import tensors_in

AUDIO = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
FEATURES = {"conv_dim": (16, 16), "conv_stride": (4, 4), "conv_kernel": (8, 4), "num_feat_extract_layers": 2}
SPEECH = AUDIO | FEATURES | {"num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2}
DAC = {"encoder_hidden_size": 8, "decoder_hidden_size": 32, "n_codebooks": 2, "codebook_size": 16}
# The folder of a transformers model: its class, a small configuration, the shape of its input and the input's name.
TRANSFORMERS: dict[str, tuple[str, dict[str, Any], tuple[int, ...], str]] = {
    "wav2vec2": ("Wav2Vec2Model", SPEECH, (1, 800), "input_values"),
    "hubert": ("HubertModel", SPEECH, (1, 800), "input_values"),
    "wavlm": ("WavLMModel", SPEECH, (1, 800), "input_values"),
    "unispeech": ("UniSpeechModel", SPEECH, (1, 800), "input_values"),
    "unispeech_sat": ("UniSpeechSatModel", SPEECH, (1, 800), "input_values"),
    "sew": ("SEWModel", SPEECH | {"squeeze_factor": 2}, (1, 800), "input_values"),
    "sew_d": ("SEWDModel", SPEECH | {"squeeze_factor": 2}, (1, 800), "input_values"),
    "dac": (
        "DacModel",
        DAC | {"downsampling_ratios": (2, 4), "upsampling_ratios": (4, 2)},
        (1, 1, 512),
        "input_values",
    ),
    "speecht5": ("SpeechT5HifiGan", {"upsample_initial_channel": 32}, (1, 10, 80), "spectrogram"),
    "encodec": (
        "EncodecModel",
        {"num_filters": 4, "hidden_size": 16, "codebook_size": 16},
        (1, 1, 2400),
        "input_values",
    ),
}


@dataclass(frozen=True)
class Tried:
    model: str
    layers: int
    converted: int
    left: str
    outputs: float  # largest difference, relative to the largest value
    gradients: float
    wide_gradients: float  # the same in float64: what is left is not rounding
    folded: float
    step: float  # time relative to torch's norm
    inference: float

    def row(self) -> str:
        errors = " | ".join(
            f"{error:.0e}" for error in (self.outputs, self.gradients, self.wide_gradients, self.folded)
        )
        counts = f"{self.layers} | {self.converted} | {self.left or '–'}"
        return f"| {self.model} | {counts} | {errors} | {self.step:.2f} | {self.inference:.2f} |"


def outputs_of(model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    """All floating-point outputs as one vector."""
    result = model(**inputs) if "" not in inputs else model(inputs[""])
    return torch.cat([t.flatten() for t in tensors_in(result) if t.is_floating_point()])


def gradients_of(model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    model.zero_grad()
    y = outputs_of(model, inputs)
    (y * torch.linspace(-1, 1, len(y), dtype=y.dtype)).sum().backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def difference(own: Tensor, right: Tensor) -> float:
    return ((own - right).abs().max() / right.abs().max()).item()


def try_model(name: str, make: Callable[[], nn.Module], inputs: dict[str, Tensor], rounds: int) -> Tried:
    def made() -> nn.Module:
        torch.manual_seed(0)
        return make().eval()

    wide = {argument: value.double() for argument, value in inputs.items()}
    original, converted = made().double(), made().double()
    wnfused.convert(converted)
    wide_gradients = difference(gradients_of(converted, wide), gradients_of(original, wide))
    original, converted = made(), made()
    report = wnfused.convert(converted)
    with torch.no_grad():
        expected = outputs_of(original, inputs)
        outputs = difference(outputs_of(converted, inputs), expected)
    gradients = difference(gradients_of(converted, inputs), gradients_of(original, inputs))

    def inference(model: nn.Module) -> Callable[[], None]:
        def run() -> None:
            with torch.no_grad():
                outputs_of(model, inputs)

        return run

    steps = {"torch": lambda: gradients_of(original, inputs), "own": lambda: gradients_of(converted, inputs)}
    step = interleave(steps, rounds=rounds)["own"].ratio
    wnfused.fold(converted)
    with torch.no_grad():
        folded = difference(outputs_of(converted, inputs), expected)
    served = interleave({"torch": inference(original), "own": inference(converted)}, rounds=rounds)["own"].ratio
    left = "; ".join(dict.fromkeys(report.skipped.values()))
    layers = report.count + len(report.skipped)
    return Tried(name, layers, report.count, left, outputs, gradients, wide_gradients, folded, step, served)


def users_of_weight_norm() -> list[str]:
    """The models of the installed transformers whose source mentions weight_norm."""
    spec = importlib.util.find_spec("transformers")
    if spec is None or spec.origin is None:
        return []
    files = sorted((Path(spec.origin).parent / "models").glob("*/modeling_*.py"))
    return list(dict.fromkeys(file.parent.name for file in files if "weight_norm" in file.read_text(encoding="utf-8")))


def cases() -> Iterator[tuple[str, Callable[[], nn.Module], dict[str, Tensor]]]:
    numbers = torch.Generator().manual_seed(0)
    for name, (make, shape) in MODELS.items():
        yield name, make, {"": torch.randn(shape, generator=numbers)}
    for folder in users_of_weight_norm():
        if folder in TRANSFORMERS:
            name, settings, shape, argument = TRANSFORMERS[folder]
            package = importlib.import_module("transformers")
            kind = getattr(package, name)
            config = kind.config_class(**settings)
            inputs = {argument: torch.randn(shape, generator=numbers)}
            yield f"transformers: {folder}", lambda k=kind, c=config: _normalized(k(c)), inputs


def _normalized(model: nn.Module) -> nn.Module:
    """Some models of transformers, DAC and HiFi-GAN, get their norms by a method."""
    if not any("parametrizations" in name or "weight_g" in name for name, _ in model.named_parameters()):
        model.apply_weight_norm()  # type: ignore[operator]
    return model


COLUMNS = ("model", "layers", "converted", "left, and why", "outputs", "gradients", "in float64", "folded", "step")
HEADER = f"| {' | '.join(COLUMNS)} | inference, folded |\n|{'---|' * (len(COLUMNS) + 1)}"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default="", help="try only models whose name contains TEXT", metavar="TEXT")
    parser.add_argument("--rounds", type=int, default=7, help="of the timing")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")
    lines = [
        "# Models tested\n",
        "`python -m benchmarks.models_tested --markdown docs/models-tested.md` writes this page: small models with",
        "random weights in the shapes of public ones. *Outputs*, *gradients* and *folded* are the largest differences",
        "from the model under torch's norm, relative to the largest value: in float32, the gradients also in float64.",
        "*Step* (forward + backward) and *inference* are times relative to it, interleaved; they vary by a tenth.",
        f"{environment(options.threads)}.\n",
        HEADER,
    ]
    print("\n".join(lines), flush=True)
    for name, make, inputs in cases():
        if options.only in name:
            lines.append(try_model(name, make, inputs, options.rounds).row())
            print(lines[-1], flush=True)
    if rest := [folder for folder in users_of_weight_norm() if folder not in TRANSFORMERS]:
        lines.append(f"\nUse weight norm in transformers and were not tried: {', '.join(rest)}.")
        print(lines[-1])
    if options.markdown:
        options.markdown.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
