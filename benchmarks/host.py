"""Host time of layers and networks: what a call costs before a GPU does anything. Run by ``make bench-host``.

python -m wnfused.benchmarks.host [--seconds 2] [--only TEXT] [--json FILE] [--markdown FILE] [--docs docs/gpu.md]

The launches go to a driver library that returns at once, on CPU tensors so small that only the host counts; one thread.
torch's layers run their own CPU kernels on the same tensors. The networks have all their layers, with few channels. No
GPU is involved. ``--docs`` replaces the tables between the markers of a page.
"""

import os

os.environ["TRITON_INTERPRET"] = "0"

import argparse
import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import wnfused
from wnfused import ops
from wnfused.benchmarks.peers import inference, training_step, with_weight_norm
from wnfused.benchmarks.streaming import Generator
from wnfused.benchmarks.suite import environment
from wnfused.diagnostics.timing import interleave
from wnfused.kernels.triton import table
from wnfused.kernels.triton.costs import ACHIEVED, MACHINES
from wnfused.models import WRN, resnet110

PEERS = ("plain", "torch hook", "torch parametrized", "wnfused c++", "wnfused python")
AT_ONCE = "wnfused model weights"  # of networks
LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(8, 8), (8, 8)),
    "conv2d": (lambda: nn.Conv2d(4, 4, 3, padding=1), (1, 4, 4, 4)),
    "conv1d": (lambda: nn.Conv1d(4, 4, 3, padding=1), (1, 4, 8)),
    "transposed": (lambda: nn.ConvTranspose1d(4, 4, 4, stride=2), (1, 4, 4)),
}
MODES = {"step": training_step, "inference": inference}
_CALLS = 20  # between two switches of the path, which are not part of a call


def narrow(model: nn.Module, by: int = 4) -> nn.Module:
    """Divide all channels by ``by``, so that the products take little time."""

    def less(channels: int) -> int:
        return channels // by if channels >= by else channels

    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, nn.Conv2d):
                sizes = (layer.kernel_size, layer.stride, layer.padding)
                setattr(parent, name, nn.Conv2d(less(layer.in_channels), less(layer.out_channels), *sizes))
            elif isinstance(layer, nn.Linear):
                setattr(parent, name, nn.Linear(less(layer.in_features), layer.out_features))
    return model


@dataclass(frozen=True)
class Network:
    make: Callable[[], nn.Module]
    small: Callable[[], nn.Module]  # the same layers with few channels
    shape: tuple[int, ...]  # of its input
    usual: tuple[int, ...]  # the input of a usual training step


NETWORKS = {
    "ResNet-110": Network(
        lambda: resnet110(norm="none"), lambda: narrow(resnet110(norm="none")), (1, 3, 8, 8), (128, 3, 32, 32)
    ),
    "HiFi-GAN V1": Network(Generator, lambda: Generator(64), (1, 80, 1), (16, 80, 32)),
    "WRN-40-10": Network(
        lambda: WRN(40, 10, norm="none"), lambda: narrow(WRN(40, 1, norm="none")), (1, 3, 8, 8), (128, 3, 32, 32)
    ),
}


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


def repeated(peer: str, step: Callable[[], None], calls: int) -> Callable[[], None]:
    def run() -> None:
        choose_path(peer)
        for _ in range(calls):
            step()

    return run


def measure(name: str, mode: str, seconds: float) -> list[Row]:
    """A layer, or a network, which also has the peer ``wnfused model weights``."""
    torch.manual_seed(0)
    network = NETWORKS.get(name)
    make, shape = (network.small, network.shape) if network else LAYERS[name]
    calls = 1 if network else _CALLS
    plain, x = make(), torch.randn(shape)
    functions = {}
    with ExitStack() as contexts:
        for peer in (*PEERS, AT_ONCE) if network else PEERS:
            choose_path(peer)
            model = with_weight_norm(plain, "wnfused" if peer.startswith("wnfused") else peer)
            if peer == AT_ONCE:
                contexts.enter_context(wnfused.model_weights(model))
            functions[peer] = repeated(peer, MODES[mode](model, x), calls)
        timings = interleave(functions, seconds=seconds)
    choose_path("wnfused c++")
    return [Row(name, mode, peer, t.seconds / calls * 1e6, t.ratio) for peer, t in timings.items()]


def cases_of(rows: list[Row]) -> list[dict[str, Row]]:
    """The rows of each layer and mode by peer."""
    cases = dict.fromkeys((row.layer, row.mode) for row in rows)
    return [{row.peer: row for row in rows if (row.layer, row.mode) == case} for case in cases]


def table_of(rows: list[Row]) -> list[str]:
    """The time of the plain layer and the other ratios to it."""
    peers = [peer for peer in (*PEERS, AT_ONCE) if any(row.peer == peer for row in rows)]
    lines = [f"| | mode | plain | {' | '.join(peers[1:])} |", "|---" * (len(peers) + 2) + "|"]
    for own in cases_of(rows):
        plain = own["plain"]
        mode = "forward + backward" if plain.mode == "step" else plain.mode
        ratios = " | ".join(f"{own[peer].relative:.2f}" for peer in peers[1:])
        lines.append(f"| {plain.layer} | {mode} | {time_of(plain.microseconds)} | {ratios} |")
    return lines


def time_of(microseconds: float) -> str:
    return f"{microseconds:.3g} µs" if microseconds < 1000 else f"{microseconds / 1e3:.3g} ms"


def least_gpu_time(network: Network, machine: str = "sm_80") -> float:
    """Seconds that the products of a usual step take at the fraction of the 16-bit peak that costs.py assumes."""
    with torch.device("meta"):
        model, x = network.make(), torch.empty(network.usual)
    with FlopCounterMode(display=False) as counter:
        model(x).sum().backward()
    return float(counter.get_total_flops() / (MACHINES[machine].flops * ACHIEVED["vendor"]))


def model_of(rows: list[Row]) -> list[str]:
    """A model of the step's time: the host's, measured above, or the products' on an A100, whichever is longer."""
    peers = [peer for peer in (*PEERS, AT_ONCE) if peer != "wnfused python"]
    lines = [f"| model, ms | products | {' | '.join(peers)} |", "|---" * (len(peers) + 2) + "|"]
    for own in cases_of(rows):
        name = own["plain"].layer
        products = least_gpu_time(NETWORKS[name]) * 1e3
        steps = [max(products, own["plain"].microseconds * own[peer].relative / 1e3) for peer in peers]
        cells = " | ".join(f"{step:.3g}" for step in steps)
        lines.append(f"| {name}, batch {NETWORKS[name].usual[0]} | {products:.2g} | {cells} |")
    return lines


def tables(rows: list[Row]) -> dict[str, list[str]]:
    """By the marker of the page where each is shown."""
    found = {
        "host-layers": [row for row in rows if row.layer in LAYERS],
        "host-networks": [row for row in rows if row.layer in NETWORKS],
    }
    made = {marker: table_of(own) for marker, own in found.items() if own}
    if steps := [row for row in found["host-networks"] if row.mode == "step"]:
        made["step-model"] = model_of(steps)
    return made


def refresh(page: Path, made: dict[str, list[str]]) -> None:
    """Replace what is between ``<!-- MARKER -->`` and ``<!-- end -->`` in the page by each table."""
    text = page.read_text(encoding="utf-8")
    for marker, lines in made.items():
        before, start, rest = text.partition(f"<!-- {marker} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        if not start or not end:
            raise SystemExit(f"--docs: {page} has no markers <!-- {marker} --> and <!-- end -->")
        text = before + start + "\n" + "\n".join(lines) + "\n\n" + end + after
    page.write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=2.0, help="measuring time per row")
    parser.add_argument("--only", default="", help="measure only what has TEXT in its name", metavar="TEXT")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--docs", type=Path, help="a page whose tables are replaced: docs/gpu.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    driver = import_module("tests.support.driver.fake")  # only in a checkout
    with driver.launching_nothing():
        names = [name for name in (*LAYERS, *NETWORKS) if options.only in name]
        rows = [row for name in names for mode in MODES for row in measure(name, mode, options.seconds)]
    made = tables(rows)
    lines = [f"Host time per call, relative to the plain layer; launches go nowhere; {environment(1)}."]
    lines += [line for shown in made.values() for line in ("", *shown)]
    print("\n".join(lines))
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    if options.markdown:
        options.markdown.write_text("\n".join(lines) + "\n")
    if options.docs:
        refresh(options.docs, made)


if __name__ == "__main__":
    main()
