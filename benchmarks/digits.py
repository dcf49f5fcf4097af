"""An end-to-end example: one small network on scikit-learn's digits, plain, under torch's weight_norm, and fused.

The three start as the same function and see the same batches; their steps take turns, so what disturbs the machine
disturbs all of them alike.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

import wnfused
from wnfused import WNConv2d, WNLinear
from wnfused.ops import backends

WARM_UP = 5  # steps left out of the timing
TOLERANCE = 0.03  # how far below torch's weight_norm the fused network's accuracy may end


def plain() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.ReLU(),
        nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, 256), nn.ReLU(),
        nn.Linear(256, 10),
    )  # fmt: skip


def torch_weight_norm() -> nn.Sequential:
    network = plain()
    for layer in network:
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            weight_norm(layer)
    return network


def fused() -> nn.Sequential:
    return nn.Sequential(
        WNConv2d(1, 32, 3, padding=1, activation="relu"),
        WNConv2d(32, 64, 3, stride=2, padding=1, activation="relu"),
        WNConv2d(64, 64, 3, padding=1, activation="relu"),
        nn.Flatten(),
        WNLinear(64 * 4 * 4, 256, activation="relu"),
        WNLinear(256, 10),
    )


@dataclass
class Run:
    """One network in training, with the time of each of its steps."""

    name: str
    network: nn.Sequential
    optimizer: torch.optim.Optimizer
    seconds: list[float] = field(default_factory=list)
    loss: float = float("nan")

    @classmethod
    def start(cls, name: str, make: Callable[[], nn.Sequential], seed: int) -> "Run":
        torch.manual_seed(seed)
        network = make()
        return cls(name, network, torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9))

    def step(self, images: Tensor, labels: Tensor) -> None:
        start = time.perf_counter()
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.network(images), labels)
        loss.backward()
        self.optimizer.step()
        self.seconds.append(time.perf_counter() - start)
        self.loss = loss.item()

    def milliseconds(self) -> float:
        return 1e3 * median(self.seconds[WARM_UP:] or self.seconds)

    @torch.no_grad()
    def accuracy(self, images: Tensor, labels: Tensor) -> float:
        with wnfused.frozen(self.network):
            return (self.network(images).argmax(1) == labels).float().mean().item()


def digits(seed: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """1437 training and 360 test images, [N, 1, 8, 8] in [-1, 1], with their labels."""
    images, labels = load_digits(return_X_y=True)
    x = torch.from_numpy(images).float().reshape(-1, 1, 8, 8) / 8 - 1
    y = torch.from_numpy(labels)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    train, test = order[:1437], order[1437:]
    return (x[train], y[train]), (x[test], y[test])


def train(runs: list[Run], images: Tensor, labels: Tensor, epochs: int, batch: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for epoch in range(1, epochs + 1):
        for number, chosen in enumerate(torch.randperm(len(images), generator=generator).split(batch)):
            first = number % len(runs)
            for run in runs[first:] + runs[:first]:
                run.step(images[chosen], labels[chosen])
        losses = "  ".join(f"{run.name} {run.loss:.4f}" for run in runs)
        print(f"epoch {epoch:>2} of {epochs}, loss of the last batch:  {losses}", flush=True)


@torch.no_grad()
def fold(network: nn.Sequential, images: Tensor) -> tuple[int, float]:
    """Fold the network's layers into plain ones; how many there were, and what that changed in its outputs."""
    before = network(images)
    return wnfused.fold(network), (network(images) - before).abs().max().item()


def show(rows: list[tuple[str, ...]], header: tuple[str, ...]) -> None:
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        for row in (header, *rows):
            print("".join(f"{cell:<20}" for cell in row).rstrip())
        return
    table = Table(*header)
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def positive(text: str) -> int:
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"expected an integer >= 1, got {text}")
    return value


def main() -> int:
    parser = argparse.ArgumentParser(description="Train on scikit-learn's digits: plain, torch's weight_norm, wnfused.")
    parser.add_argument("--epochs", type=positive, default=12)
    parser.add_argument("--batch", type=positive, default=64)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, seed {args.seed}")
    print(f"wnfused backend: {backends.resolve(torch.device('cpu')).name}")  # builds the native kernels if needed
    train_set, test_set = digits(args.seed)
    print(f"training on {len(train_set[0])} digits in batches of {args.batch}, testing on {len(test_set[0])}")
    makers = {"plain": plain, "torch weight_norm": torch_weight_norm, "wnfused": fused}
    runs = [Run.start(name, make, args.seed) for name, make in makers.items()]
    train(runs, *train_set, args.epochs, args.batch, args.seed)

    accuracies = [run.accuracy(*test_set) for run in runs]
    rows = [
        (
            run.name,
            f"{accuracy:.1%}",
            f"{run.milliseconds():.2f} ms",
            f"{run.milliseconds() / runs[0].milliseconds():.2f}",
        )
        for run, accuracy in zip(runs, accuracies, strict=True)
    ]
    show(rows, ("network", "test accuracy", "median step", "against plain"))

    count, change = fold(runs[-1].network, test_set[0])
    print(f"folded {count} layers for deployment; largest change of an output: {change:.1e}")
    if accuracies[-1] < accuracies[1] - TOLERANCE:
        print(f"the fused network is more than {TOLERANCE:.0%} less accurate than under torch's weight_norm: a fault")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
