"""The speed table on a GPU: forward + backward relative to the plain layer, per dtype. Run by ``make bench-gpu``.

python -m benchmarks.gpu [--device cuda] [--dtype bfloat16 …] [--seconds 2] [--only TEXT] [--json FILE]

Weights are float32 and activations have the given dtype (autocast), as in mixed-precision training.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn

import wnfused
from wnfused.benchmarks.peers import PEERS, training_step, with_weight_norm
from wnfused.diagnostics.timing import Timing, interleave
from wnfused.models import resnet110


@dataclass(frozen=True)
class Case:
    name: str
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]


CASES = (
    Case("Linear 16,4096,4096", lambda: nn.Linear(4096, 4096), (16, 4096)),
    Case("Linear 128,1024,1024", lambda: nn.Linear(1024, 1024), (128, 1024)),
    Case("Linear 4096,4096,4096", lambda: nn.Linear(4096, 4096), (4096, 4096)),
    Case("Conv2d 640→640 3×3 @8², batch 128", lambda: nn.Conv2d(640, 640, 3, padding=1), (128, 640, 8, 8)),
    Case("Conv2d 64→64 3×3 @8², batch 128", lambda: nn.Conv2d(64, 64, 3, padding=1), (128, 64, 8, 8)),
    Case("Conv1d 512→512 k7, length 8192", lambda: nn.Conv1d(512, 512, 7, padding=3), (4, 512, 8192)),
    Case("ResNet-110, batch 128", lambda: resnet110(norm="none"), (128, 3, 32, 32)),
)


def measure(case: Case, device: torch.device, dtype: torch.dtype, seconds: float) -> dict[str, Timing]:
    torch.manual_seed(0)
    plain, x = case.make().to(device), torch.randn(case.shape, device=device)
    if x.ndim == 4:
        plain, x = plain.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)
    with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
        steps = {
            peer: _under_autocast(training_step(with_weight_norm(plain, peer), x), device, dtype) for peer in PEERS
        }
    return interleave(steps, seconds=seconds, slice_seconds=0.02)


def _under_autocast(step: Callable[[], None], device: torch.device, dtype: torch.dtype) -> Callable[[], None]:
    """Run the step under autocast and wait for the GPU, so that more than the launches is measured.

    Every step enters autocast again, as training does: an outer autocast would cache the plain layer's cast weight.
    """

    def synchronized() -> None:
        with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return synchronized


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", nargs="+", default=["bfloat16", "float32"])
    parser.add_argument("--seconds", type=float, default=2.0, help="measuring time per row")
    parser.add_argument("--only", default="", help="measure only rows whose name contains TEXT", metavar="TEXT")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    device = torch.device(options.device)
    if device.type == "cuda":
        wnfused.backend("triton")  # raises if it cannot run; a silent fallback would be reported as Triton
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    environment = f"wnfused {wnfused.__version__}, torch {torch.__version__}, {name}"
    print(f"Ratios to the plain layer, forward + backward, interleaved; {environment}.\n")
    print("| layer | dtype | plain | torch hook | torch parametrized | wnfused |\n|---|---|---|---|---|---|")
    results = {}
    for case in (c for c in CASES if options.only in c.name):
        for dtype in options.dtype:
            timings = measure(case, device, getattr(torch, dtype), options.seconds)
            results[f"{case.name}, {dtype}"] = {peer: asdict(timing) for peer, timing in timings.items()}
            ratios = " | ".join(f"{timings[peer].ratio:.2f}" for peer in PEERS[1:])
            print(f"| {case.name} | {dtype} | {timings['plain'].seconds * 1e3:.3g} ms | {ratios} |", flush=True)
    if options.json:
        options.json.write_text(json.dumps({"environment": environment, "results": results}, indent=1))


if __name__ == "__main__":
    main()
