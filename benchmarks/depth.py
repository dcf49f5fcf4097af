"""Signal propagation under each initialization: norm ratios of activations and gradients at depth 10, 100 and 1000.

python -m benchmarks.depth [--width 200] [--networks 3] [--markdown FILE]
python -m benchmarks.depth --plot docs/images/depth.png    # README's picture, of one network each
"""

import argparse
import math
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import wnfused
from wnfused import init
from wnfused.diagnostics import SignalReport, signal_report

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


PLOTTED = {
    "robust_": "wnfused.init.robust_",
    "torch_default_": "torch's default",
    "he_": "He, g = 1",
    "data_dependent_": "data-dependent",
}


def measure(make: Callable[[int, int], nn.Module], depth: int, width: int, scheme: Scheme, seed: int) -> SignalReport:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(SAMPLES, width, generator=generator)
    model = make(depth, width)
    scheme(model, x, generator)
    return signal_report(model, x, modules=[name for name, _ in model.named_children()], generator=generator)


def ratios(
    make: Callable[[int, int], nn.Module], depth: int, width: int, scheme: Scheme, seed: int
) -> tuple[float, float]:
    """(‖h‖/‖x‖ at the end, ‖dh‖/‖dy‖ at the start), averaged over the samples."""
    report = measure(make, depth, width, scheme, seed)
    return report.layers[-1].forward_mean, report.layers[0].backward_mean


def plot(file: Path, width: int, layers: int = 400) -> None:
    """The signal of a residual network and the gradient of a plain one, over depth, for four initializations."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for name, label in PLOTTED.items():
        style = {"label": label, "linewidth": 2.6 if name == "robust_" else 1.6}
        signal = [layer.forward_mean for layer in measure(residual, layers, width, SCHEMES[name], 0).layers]
        left.semilogy([2 * (i + 1) for i in range(len(signal))], signal, **style)
        gradient = [layer.backward_mean for layer in measure(plain, layers // 4, width, SCHEMES[name], 0).layers]
        right.semilogy(range(1, len(gradient) + 1), gradient, **style)
    left.set(title="Residual network: size of the signal", xlabel="layer", ylabel="‖h‖ / ‖x‖", ylim=(0.3, 1e9))
    right.set(
        title="Plain network: size of the gradient", xlabel="layer", ylabel="‖∂ℓ/∂h‖ / ‖∂ℓ/∂y‖", ylim=(1e-18, 1e12)
    )
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    left.legend(frameon=False, loc="upper right")
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=120)


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
    parser.add_argument("--plot", type=Path, help="draw norms over depth into this file instead of printing the tables")
    options = parser.parse_args()
    if options.plot:
        plot(options.plot, options.width)
        return
    size = (options.width, options.networks)
    pages = [
        f"Plain ReLU networks, width {size[0]}, {size[1]} networks each:\n\n{table(plain, *size)}",
        f"Residual networks with two layers per block, the same width:\n\n{table(residual, *size)}",
    ]
    if options.markdown:
        options.markdown.write_text("\n\n".join(pages) + "\n")


if __name__ == "__main__":
    main()
