"""Where a run ran."""

import datetime
import platform
from pathlib import Path
from typing import Any

import torch

import wnfused
from wnfused.ops import backends
from wnfused.train.config import Config
from wnfused.train.distributed import World


def describe(config: Config, world: World) -> dict[str, Any]:
    """What ``environment.json`` holds."""
    return {
        "wnfused": wnfused.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": cpu_name(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "device": _device_name(world.device),
        "backend": backends.resolve(world.device).name if config.impl == "wnfused" else "torch's weight_norm",
        "world_size": world.size,
        "seed": config.seed,
        "started": now(),
    }


def now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
