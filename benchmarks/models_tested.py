"""Conversion tried on models: what is converted, how much outputs and gradients change, and the time beside torch's.

python -m benchmarks.models_tested [--only TEXT] [--rounds 7] [--threads 1] [--markdown docs/models-tested.md]

The models have the shapes of public ones, at a small size with random weights. Those of transformers are found by
reading its source; one that cannot be tried is listed with the reason.
"""

import argparse
import functools
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

import wnfused
from wnfused.benchmarks import models_of_transformers
from wnfused.benchmarks.shapes_of_models import MODELS
from wnfused.benchmarks.suite import environment
from wnfused.diagnostics.timing import interleave
from wnfused.model_io import tensors_in


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

    wide = {argument: x.double() if x.is_floating_point() else x for argument, x in inputs.items()}
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
    step = interleave(steps, rounds=rounds, clock=time.process_time)["own"].ratio
    wnfused.fold(converted)
    with torch.no_grad():
        folded = difference(outputs_of(converted, inputs), expected)
    serving = {"torch": inference(original), "own": inference(converted)}
    served = interleave(serving, rounds=rounds, clock=time.process_time)["own"].ratio
    left = "; ".join(dict.fromkeys(report.skipped.values()))
    layers = report.count + len(report.skipped)
    return Tried(name, layers, report.count, left, outputs, gradients, wide_gradients, folded, step, served)


def cases() -> Iterator[tuple[str, Callable[[], nn.Module], dict[str, Tensor]]]:
    numbers = torch.Generator().manual_seed(0)
    for name, (make, shape) in MODELS.items():
        yield name, make, {"": torch.randn(shape, generator=numbers)}
    for folder in models_of_transformers.users_of_weight_norm():
        if models_of_transformers.why_not(folder) is None:
            make = functools.partial(models_of_transformers.make, folder)
            yield f"transformers: {folder}", make, models_of_transformers.inputs(folder, numbers)


def not_tried() -> dict[str, str]:
    """The models of transformers that use weight norm and have no row, and why."""
    reasons = {
        folder: models_of_transformers.why_not(folder) for folder in models_of_transformers.users_of_weight_norm()
    }
    return {folder: reason for folder, reason in reasons.items() if reason is not None}


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
        "*Step* (forward + backward) and *inference* are CPU times relative to it, interleaved; they vary by a tenth.",
        f"{environment(options.threads)}.\n",
        HEADER,
    ]
    print("\n".join(lines), flush=True)
    for name, make, inputs in cases():
        if options.only in name:
            lines.append(try_model(name, make, inputs, options.rounds).row())
            print(lines[-1], flush=True)
    for folder, reason in not_tried().items():
        lines.append(f"\nNot tried: {folder} of transformers, which uses weight norm too ({reason}).")
        print(lines[-1])
    if options.markdown:
        options.markdown.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
