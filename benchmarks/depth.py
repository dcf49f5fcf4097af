"""Signal propagation under each initialization: norm ratios of activations and gradients at depth 10, 100 and 1000.

python -m benchmarks.depth [--width 200] [--networks 3] [--markdown FILE]
"""

import argparse
import math
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import wnfused
from wnfused import init
from wnfused.diagnostics import signal_report

DEPTHS = (10, 100, 1000)
SAMPLES = 64


class Block(nn.Module):
    """x + second(relu(first(x))), the block of the residual networks in figure 1 of the paper."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = wnfused.WNLinear(width, width, activation="relu")
        self.second = wnfused.WNLinear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(self.first(x))


def plain(depth: int, width: int) -> nn.Module:
    return nn.Sequential(*(wnfused.WNLinear(width, width, activation="relu") for _ in range(depth)))


def residual(depth: int, width: int) -> nn.Module:
    return nn.Sequential(*(Block(width) for _ in range(depth // 2)))


Scheme = Callable[[nn.Module, Tensor, torch.Generator], None]
SCHEMES: dict[str, Scheme] = {
    "robust_": lambda m, x, g: init.robust_(m, x, generator=g),
    'robust_, variant "backward"': lambda m, x, g: init.robust_(m, x, variant="backward", generator=g),
    'robust_, distribution "he"': lambda m, x, g: init.robust_(m, x, distribution="he", generator=g),
    "hanin_": lambda m, x, g: init.hanin_(m, x, generator=g),
    "data_dependent_": lambda m, x, g: init.data_dependent_(m, x, generator=g),
    "torch_default_": lambda m, x, g: init.torch_default_(m, generator=g),
    "he_": lambda m, x, g: init.he_(m, generator=g),
}


def ratios(
    make: Callable[[int, int], nn.Module], depth: int, width: int, scheme: Scheme, seed: int
) -> tuple[float, float]:
    """(‖h‖/‖x‖ of the last layer, ‖dh‖/‖dy‖ of the first), averaged over the samples."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(SAMPLES, width, generator=generator)
    model = make(depth, width)
    scheme(model, x, generator)
    report = signal_report(model, x, modules=[name for name, _ in model.named_children()], generator=generator)
    return report.layers[-1].forward_mean, report.layers[0].backward_mean


def cell(values: list[tuple[float, float]]) -> str:
    means = (sum(side) / len(values) for side in zip(*values, strict=True))
    return " / ".join(f"{mean:.2g}" if math.isfinite(mean) else "overflow" for mean in means)


def table(make: Callable[[int, int], nn.Module], width: int, networks: int) -> str:
    lines = [f"| scheme | {' | '.join(f'{depth} layers' for depth in DEPTHS)} |", "|---|" + "---|" * len(DEPTHS)]
    for name, scheme in SCHEMES.items():
        cells = [cell([ratios(make, depth, width, scheme, seed) for seed in range(networks)]) for depth in DEPTHS]
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--width", type=int, default=200)
    parser.add_argument("--networks", type=int, default=3, help="number of networks to average over")
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    size = (options.width, options.networks)
    pages = [
        f"Plain ReLU networks, width {size[0]}, {size[1]} networks each:\n\n{table(plain, *size)}",
        f"Residual networks with two layers per block, the same width:\n\n{table(residual, *size)}",
    ]
    if options.markdown:
        options.markdown.write_text("\n\n".join(pages) + "\n")


if __name__ == "__main__":
    main()
