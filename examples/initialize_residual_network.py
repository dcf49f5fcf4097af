"""Initialize your own residual network: read each layer's role, print it, and compare the signal before and after.

python examples/initialize_residual_network.py [--blocks 50]
"""

import argparse

import torch
from torch import Tensor, nn

import wnfused


class Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = wnfused.WNConv2d(channels, channels, 3, padding=1)
        self.second = wnfused.WNConv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(torch.relu(self.first(x)))


def main() -> None:
    parser = argparse.ArgumentParser(description="Initialize a residual network.")
    parser.add_argument("--blocks", type=int, default=50)
    options = parser.parse_args()
    torch.manual_seed(0)
    x = torch.randn(4, 16, 8, 8)

    small = nn.Sequential(*(Block(16) for _ in range(2)))
    wnfused.init.explain(small, x)  # prints each layer's role, the evidence for it, γ and g

    model = nn.Sequential(*(Block(16) for _ in range(options.blocks)))
    blocks = [name for name, _ in model.named_children()]
    for name, initialize in {
        "He, g = 1": lambda: wnfused.init.he_(model),
        "robust_": lambda: wnfused.init.robust_(model, x),
    }.items():
        initialize()
        report = wnfused.diagnostics.signal_report(model, x, modules=blocks)
        print(f"{name}: the signal grows {report.layers[-1].forward_mean:.3g} times over {options.blocks} blocks")


if __name__ == "__main__":
    main()
