"""The command ``wnfused``.

A subcommand is a function from its parsed arguments to an exit code, under ``@command``; its own arguments are added by
the function named there. Anything heavy is imported inside, so that help and typing errors answer at once.
"""

import argparse
import difflib
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn


class Parser(argparse.ArgumentParser):
    """argparse, with errors of one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


@dataclass(frozen=True)
class Command:
    run: Callable[[argparse.Namespace], int]
    summary: str
    arguments: Callable[[argparse.ArgumentParser], None]


COMMANDS: dict[str, Command] = {}


def command(
    name: str, summary: str, arguments: Callable[[argparse.ArgumentParser], None] = lambda parser: None
) -> Callable[[Callable[[argparse.Namespace], int]], Callable[[argparse.Namespace], int]]:
    def register(run: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
        COMMANDS[name] = Command(run, summary, arguments)
        return run

    return register


def main(argv: Sequence[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    if argv and not argv[0].startswith("-") and argv[0] not in COMMANDS:
        return fail(f"unknown command {argv[0]!r}, {_nearest(argv[0])}", code=2)
    parser = Parser(prog="wnfused", description="Weight normalization that costs what a plain layer costs.")
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command", parser_class=Parser)
    for name, entry in COMMANDS.items():
        entry.arguments(commands.add_parser(name, help=entry.summary, description=entry.summary))
    args = parser.parse_args(argv)
    if args.version:
        print(_wnfused_version())
        return 0
    if args.command is None:
        parser.print_help()
        return 0
    try:
        return COMMANDS[args.command].run(args)
    except KeyboardInterrupt:
        return fail("interrupted", code=130)


def fail(message: str, code: int = 1) -> int:
    print(f"wnfused: {message}", file=sys.stderr)
    return code


def _nearest(name: str) -> str:
    near = difflib.get_close_matches(name, COMMANDS, n=1)
    return f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(COMMANDS)}"


def _wnfused_version() -> str:
    import wnfused

    return wnfused.__version__


@command("build", "build the native CPU kernels ahead of first use")
def build(args: argparse.Namespace) -> int:
    from wnfused.kernels.cpu.build import BuildError
    from wnfused.ops import native

    ready = native.is_built()
    start = time.perf_counter()
    try:
        library = native.build()
    except BuildError as error:
        return fail(str(error))
    how = "already built" if ready else f"built in {time.perf_counter() - start:.0f} s"
    print(f"native CPU kernels: {library} ({how})")
    return 0


def _info_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


@command("info", "show versions, backends, the native library and what this CPU can do", _info_arguments)
def info(args: argparse.Namespace) -> int:
    facts = gather()
    print(json.dumps(facts, indent=2) if args.json else describe(facts))
    return 0


def gather() -> dict[str, Any]:
    """What ``wnfused info --json`` prints."""
    import torch

    from wnfused.ops import backends, native

    return {
        "wnfused": _wnfused_version(),
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
    """Whether a backend can run here, or the reason it cannot; asking never starts a build."""
    import wnfused
    from wnfused.ops import native

    if name == "native" and not native.is_built():
        if _compiler() is None:
            return {"available": False, "why": "it is not built and no C++ compiler is found"}
        return {"available": None, "why": "not built yet: the first use builds it, or `wnfused build`"}
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
    """Whether a bf16 matmul survives on this CPU, tried in a process of its own.

    Some virtual machines advertise AMX but do not let it run: oneDNN then dies with SIGILL.
    """
    died = _run_bf16(python, {})
    if died is None:
        return {"works": True, "died": None, "cure": None}
    cure = " ".join(f"{name}={value}" for name, value in ISA_CURE.items())
    return {"works": False, "died": died, "cure": cure if _run_bf16(python, ISA_CURE) is None else None}


def _run_bf16(python: str, environment: dict[str, str]) -> str | None:
    """None where the matmul survived, otherwise what became of it."""
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
    """The facts as aligned lines."""
    library, choice = facts["native_library"], facts["WNFUSED_BACKEND"]
    lines = [
        ("wnfused", facts["wnfused"]),
        ("python", f"{facts['python']} on {facts['platform']}"),
        ("torch", facts["torch"]),
        ("triton", facts["triton"] or "not installed"),
        ("CPU", f"{facts['cpu_capability']}, {facts['threads']} threads"),
        ("GPU", ", ".join(facts["gpus"]) or "none"),
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


def _tune_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="cuda", help="the GPU to measure on (default: cuda)")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16", "float32"))
    parser.add_argument(
        "--linear", action="append", default=[], metavar="M,IN,OUT", help="a linear layer to tune, instead of the usual"
    )
    parser.add_argument("--clear", action="store_true", help="forget what was measured on this device")


@command("tune", "measure the Triton kernels' plans on this GPU and keep the fastest", _tune_arguments)
def tune(args: argparse.Namespace) -> int:
    import torch

    from wnfused.kernels.triton import support

    if reason := support.missing():
        return fail(f"tune: {reason}")
    from wnfused.kernels.triton import measure
    from wnfused.kernels.triton import tune as plans

    try:
        device, layers = torch.device(args.device), [_linear_layer(text) for text in args.linear] or measure.LAYERS
    except (RuntimeError, ValueError) as error:
        return fail(f"tune: {str(error).splitlines()[0]}", code=2)
    if reason := measure.why_not(device):
        return fail(f"tune: {reason}")
    if args.clear:
        plans.cache_file(device).unlink(missing_ok=True)
        plans.forget()
    winners = measure.tune_layers(
        layers, getattr(torch, args.dtype), device, lambda layer: print(f"measuring {layer} …", flush=True)
    )
    for problem, plan in winners.items():
        sizes = f"m={problem.m} n={problem.n} k={problem.k}"
        print(f"{problem.kernel} {sizes}: {plan.mode}, {plan.tile}, splits {plan.splits}")
    print(f"kept in {plans.save(winners, device)}")
    return 0


def _linear_layer(text: str) -> Any:
    from wnfused.kernels.triton.measure import Layer

    try:
        batch, inputs, outputs = (int(part) for part in text.split(","))
        if min(batch, inputs, outputs) < 1:
            raise ValueError
    except ValueError:
        raise ValueError(f"--linear: expected three positive numbers M,IN,OUT, got {text!r}") from None
    return Layer("linear", batch, inputs, outputs)


def _audit_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", action="append", metavar="TARGET", help="sm_80, sm_90, sm_100 or gfx942 (all)")
    parser.add_argument("--kernel", action="append", metavar="NAME", help="one kernel of wnfused.kernels.triton (all)")
    parser.add_argument("--json", metavar="FILE", help="write every row as JSON")
    parser.add_argument("--markdown", metavar="FILE", help="write the report instead of printing the table")


@command("audit", "compile the Triton kernels for every target, without a GPU, and check their code", _audit_arguments)
def audit(args: argparse.Namespace) -> int:
    from importlib.util import find_spec
    from pathlib import Path

    if find_spec("triton") is None:
        return fail("audit: triton is not installed")
    if os.environ.get("TRITON_INTERPRET", "0") not in ("", "0"):
        return fail("audit: TRITON_INTERPRET is set, which interprets kernels instead of compiling them: unset it")
    from wnfused.kernels.triton.audit import audit as audited
    from wnfused.kernels.triton.audit import builds, report

    for option, asked, known in (("target", args.target, builds.TARGETS), ("kernel", args.kernel, builds.KERNELS)):
        if unknown := [name for name in asked or () if name not in known]:
            return fail(f"audit: unknown --{option} {unknown[0]!r}, expected one of {', '.join(known)}", code=2)
    for file in (args.json, args.markdown):
        if file and not Path(file).absolute().parent.is_dir():
            return fail(f"audit: cannot write {file}: its folder does not exist", code=2)
    try:
        rows = audited(tuple(args.target or builds.TARGETS), tuple(args.kernel or builds.KERNELS), _audit_progress)
    except RuntimeError as error:
        return fail(f"audit: {error}")
    if args.json:
        Path(args.json).write_text(report.as_json(rows) + "\n")
    if args.markdown:
        Path(args.markdown).write_text(report.markdown(rows))
    else:
        print(report.terminal(rows))
    broken = [check for check in report.everything(rows) if not check.ok]
    for check in broken:
        lines = "".join(f"\n  {line}" for line in check.broken)
        fail(f"audit: broken: {check.what} must be {check.limit}, is {check.found}{lines}")
    return 1 if broken else 0


def _audit_progress(done: int, count: int, name: str) -> None:
    """A bar on a terminal, a line now and then elsewhere."""
    if sys.stderr.isatty():
        bar = "█" * (30 * done // count)
        print(f"\r{bar:<30} {done}/{count} {name[:60]:<60}", end="\n" if done == count else "", file=sys.stderr)
    elif done == count or done % 50 == 0:
        print(f"audit: {done}/{count} builds", file=sys.stderr)


def _doctor_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="package.module:name or 'package.module:name(arguments)'")
    parser.add_argument(
        "--input", default="8,3,32,32", metavar="SIZES", help="shape of the example (default: 8,3,32,32)"
    )
    parser.add_argument("--plot", metavar="FILE", help="also plot the signal")


@command("doctor", "examine a model: roles, gains, signal, dead rows, what would fuse", _doctor_arguments)
def doctor(args: argparse.Namespace) -> int:
    import torch

    from wnfused.diagnostics import doctor as clinic
    from wnfused.diagnostics import signal_report

    try:
        shape = [int(part) for part in args.input.split(",")]
    except ValueError:
        return fail(f"doctor: --input: expected sizes like 8,3,32,32, got {args.input!r}", code=2)
    sys.path.insert(0, str(Path.cwd()))  # as python -m does: models are usually where one stands
    try:
        model = clinic.load(args.model)
        example = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        print(clinic.examine(model, example))
        if args.plot:
            print(f"\nplot: {signal_report(model, example).plot(args.plot)}")
    except clinic.BadModel as error:
        return fail(f"doctor: {error}", code=2)
    except (RuntimeError, ValueError, TypeError) as error:
        return fail(f"doctor: {args.model} on an input of shape {tuple(shape)}: {str(error).splitlines()[0]}")
    return 0
