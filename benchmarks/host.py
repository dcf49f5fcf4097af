"""Host time per layer: what a call costs before a GPU does anything. Run by ``make bench-host``.

python -m wnfused.benchmarks.host [--seconds 2] [--only TEXT] [--json FILE] [--markdown FILE]

The launches go to a driver library that returns at once, on CPU tensors so small that only the host counts; one thread.
torch's layers run their own CPU kernels on the same tensors. No GPU is involved.
"""

import os

os.environ["TRITON_INTERPRET"] = "0"

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path

import torch
from torch import nn

from wnfused import ops
from wnfused.benchmarks.peers import inference, training_step, with_weight_norm
from wnfused.benchmarks.suite import environment
from wnfused.diagnostics.timing import interleave
from wnfused.kernels.triton import table

PEERS = ("plain", "torch hook", "torch parametrized", "wnfused c++", "wnfused python")
LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(8, 8), (8, 8)),
    "conv2d": (lambda: nn.Conv2d(4, 4, 3, padding=1), (1, 4, 4, 4)),
    "conv1d": (lambda: nn.Conv1d(4, 4, 3, padding=1), (1, 4, 8)),
    "transposed": (lambda: nn.ConvTranspose1d(4, 4, 4, stride=2), (1, 4, 4)),
}
MODES = {"step": training_step, "inference": inference}
_CALLS = 20  # between two switches of the path, which are not part of a call


@dataclass(frozen=True)
class Row:
    layer: str
    mode: str
    peer: str
    microseconds: float
    relative: float  # to the plain layer in the same run


def choose_path(peer: str) -> None:
    """The C++ launch path, or what is left without the native library: autograd and launches in Python."""
    in_python = peer == "wnfused python"
    table.activate(None if in_python else "cpu")
    for name in ("linear", "convolution"):
        packet = getattr(torch.ops.wnfused, name)
        setattr(ops, name, packet.python if in_python else packet.default)


def repeated(peer: str, step: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        choose_path(peer)
        for _ in range(_CALLS):
            step()

    return run


def measure(layer: str, mode: str, seconds: float) -> list[Row]:
    torch.manual_seed(0)
    make, shape = LAYERS[layer]
    plain, x = make(), torch.randn(shape)
    functions = {}
    for peer in PEERS:
        choose_path(peer)
        model = with_weight_norm(plain, "wnfused" if peer.startswith("wnfused") else peer)
        functions[peer] = repeated(peer, MODES[mode](model, x))
    timings = interleave(functions, seconds=seconds)
    choose_path("wnfused c++")
    return [Row(layer, mode, peer, t.seconds / _CALLS * 1e6, t.ratio) for peer, t in timings.items()]


def table_of(rows: list[Row]) -> list[str]:
    lines = [f"| layer | mode | plain, µs | {' | '.join(PEERS[1:])} |", "|---" * (len(PEERS) + 2) + "|"]
    for layer, mode in dict.fromkeys((row.layer, row.mode) for row in rows):
        own = {row.peer: row for row in rows if (row.layer, row.mode) == (layer, mode)}
        ratios = " | ".join(f"{own[peer].relative:.2f}" for peer in PEERS[1:])
        lines.append(f"| {layer} | {mode} | {own['plain'].microseconds:.1f} | {ratios} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=2.0, help="measuring time per row")
    parser.add_argument("--only", default="", help="measure only layers whose name contains TEXT", metavar="TEXT")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    driver = import_module("tests.support.driver.fake")  # only in a checkout
    with driver.launching_nothing():
        names = [name for name in LAYERS if options.only in name]
        rows = [row for name in names for mode in MODES for row in measure(name, mode, options.seconds)]
    lines = [f"Host time per call, relative to the plain layer; launches go nowhere; {environment(1)}.", ""]
    lines += table_of(rows)
    print("\n".join(lines))
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    if options.markdown:
        options.markdown.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
