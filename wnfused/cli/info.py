"""``wnfused info``: versions, backends, the native library and the capabilities of the CPU."""

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
from typing import Any

from wnfused.cli.commands import command, wnfused_version


def _info_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


@command("info", "show versions, backends, the native library and the capabilities of the CPU", _info_arguments)
def info(args: argparse.Namespace) -> int:
    facts = gather()
    print(json.dumps(facts, indent=2) if args.json else describe(facts))
    return 0


def gather() -> dict[str, Any]:
    """The content of ``wnfused info --json``."""
    import torch

    from wnfused.ops import backends
    from wnfused.ops.backends import native

    return {
        "wnfused": wnfused_version(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": _version_of("triton"),
        "platform": platform.platform(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "WNFUSED_BACKEND": os.environ.get("WNFUSED_BACKEND"),
        "backend": backends.chosen(),
        "backends": {name: _availability(name) for name in ("triton", "native", "torch")},
        "native_library": {"path": str(native.library_path()), "built": native.is_built()},
        "compiler": _compiler(),
        "bf16_matmul": probe_bf16(),
    }


def _version_of(distribution: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _compiler() -> str | None:
    from wnfused.kernels.cpu.build import BuildError, compiler

    try:
        return compiler()
    except BuildError:
        return None


def _availability(name: str) -> dict[str, Any]:
    """Whether a backend can run here, or the reason it cannot; never builds anything."""
    import torch

    import wnfused
    from wnfused.ops.backends import native

    if name == "native" and not native.is_built():
        if _compiler() is None:
            return {"available": False, "why": "it is not built and no C++ compiler is found"}
        return {"available": None, "why": "not built yet: the first use builds it, or `wnfused build`"}
    interpreted = os.environ.get("TRITON_INTERPRET", "0") not in ("", "0")
    if name == "triton" and not torch.cuda.is_available() and not interpreted:
        return {"available": False, "why": "no GPU"}
    try:
        with wnfused.backend(name):
            return {"available": True, "why": None}
    except wnfused.BackendUnavailable as error:
        return {"available": False, "why": str(error).removeprefix(f"backend {name!r} cannot run: ")}


ISA_CURE = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}
_BF16_MATMUL = """
import torch
a = torch.ones(128, 256, dtype=torch.bfloat16)
torch.nn.functional.linear(a, torch.ones(256, 256, dtype=torch.bfloat16), torch.ones(256, dtype=torch.bfloat16))
"""


def probe_bf16(python: str = sys.executable) -> dict[str, Any]:
    """Whether a bf16 matmul works on this CPU, tried in a separate process.

    Some virtual machines advertise AMX but cannot run it: oneDNN then crashes with SIGILL.
    """
    died = _run_bf16(python, {})
    if died is None:
        return {"works": True, "died": None, "cure": None}
    cure = " ".join(f"{name}={value}" for name, value in ISA_CURE.items())
    return {"works": False, "died": died, "cure": cure if _run_bf16(python, ISA_CURE) is None else None}


def _run_bf16(python: str, environment: dict[str, str]) -> str | None:
    """None if the matmul worked, otherwise how it failed."""
    try:
        code = subprocess.run(
            [python, "-c", _BF16_MATMUL], env=os.environ | environment, capture_output=True, timeout=120
        ).returncode
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"did not run: {error}"
    if code < 0:
        return f"dies with {signal.Signals(-code).name}"
    return None if code == 0 else f"fails with exit code {code}"


def describe(facts: dict[str, Any]) -> str:
    """The facts as aligned lines of text."""
    library, choice = facts["native_library"], facts["WNFUSED_BACKEND"]
    lines = [
        ("wnfused", facts["wnfused"]),
        ("python", f"{facts['python']} on {facts['platform']}"),
        ("torch", facts["torch"]),
        ("triton", facts["triton"] or "not installed"),
        ("CPU", f"{facts['cpu_capability']}, {facts['threads']} threads"),
        ("GPU", ", ".join(facts["gpus"]) or "no GPU"),
        ("backend", f"{facts['backend']} (WNFUSED_BACKEND {'is not set' if choice is None else f'= {choice}'})"),
        *((f"  {name}", _describe_backend(state)) for name, state in facts["backends"].items()),
        ("native library", f"{library['path']} ({'built' if library['built'] else 'not built'})"),
        ("compiler", facts["compiler"] or "none found: set CXX, or install a C++ compiler"),
        ("bf16 matmul", _describe_bf16(facts["bf16_matmul"])),
    ]
    width = max(len(name) for name, _ in lines)
    return "\n".join(f"{name:<{width}}  {text}" for name, text in lines)


def _describe_backend(state: dict[str, Any]) -> str:
    if state["available"]:
        return "available"
    return state["why"] if state["available"] is None else f"unavailable: {state['why']}"


def _describe_bf16(probe: dict[str, Any]) -> str:
    if probe["works"]:
        return "works"
    if probe["cure"]:
        return f"{probe['died']}: set {probe['cure']} (tried here: it works then)"
    return f"{probe['died']}, also under {' '.join(f'{n}={v}' for n, v in ISA_CURE.items())}"
