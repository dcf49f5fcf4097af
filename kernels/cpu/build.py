"""Builds a native library from C++ sources with the machine's own compiler, once, into torch's extension cache.

Each fingerprint of sources, torch and CPU has its own directory, so a change of any of them triggers a new build and no
stale library is loaded. A file lock makes processes that start together wait for one build; the lock ends with its
process, so a killed build does not block others. The finished library is put in place by an atomic rename.

A wheel may contain libraries that were built before (``prebuilt.py``). One with the same fingerprint is used as it is.
"""

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from wnfused.files import locked

SOURCES = tuple(sorted(Path(__file__).parent.glob("*.cpp")))
PREBUILT = Path(__file__).parent / "prebuilt"  # only in a wheel
_VECTOR_FLAGS = {
    "AVX512": ("-mavx512f", "-mavx512dq", "-mavx512bw", "-mavx512vl", "-mavx2", "-mfma", "-mf16c"),
    "AVX2": ("-mavx2", "-mfma", "-mf16c"),
}


class BuildError(RuntimeError):
    """The native library cannot be built here; the message is one line that says why."""


def cache_root() -> Path:
    """Torch's extension cache: ``TORCH_EXTENSIONS_DIR``, or its default location."""
    chosen = os.environ.get("TORCH_EXTENSIONS_DIR")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torch_extensions"


def _compile_flags(capability: str | None = None) -> list[str]:
    capability = capability or torch.backends.cpu.get_cpu_capability()
    flags = ["-O3", "-std=c++20", "-fPIC", "-DAT_PER_OPERATOR_HEADERS", f"-DCPU_CAPABILITY={capability}"]
    flags += [f"-DCPU_CAPABILITY_{capability}", *_VECTOR_FLAGS.get(capability, ())]
    if sys.platform != "darwin":
        flags.append("-fopenmp")  # at::parallel_for runs on torch's own OpenMP pool
    if not torch._C._GLIBCXX_USE_CXX11_ABI:
        flags.append("-D_GLIBCXX_USE_CXX11_ABI=0")
    return flags


def _folders(sources: Sequence[Path]) -> list[Path]:
    """Where the sources and their headers are."""
    return [Path(__file__).parent, *sorted({source.parent for source in sources} - {Path(__file__).parent})]


def library_path(name: str, sources: Sequence[Path], capability: str | None = None) -> Path:
    """The path of the library for these sources, this torch and this CPU, which need not exist yet.

    ``capability`` names the vector extension of another CPU, in torch's words: "AVX512", "AVX2" or "DEFAULT".
    """
    digest = _fingerprint(sources, capability, os.environ.get("CXX", ""))
    return cache_root() / f"{name}_{digest}" / f"{name}.so"


def prebuilt_path(name: str, sources: Sequence[Path], capability: str | None = None) -> Path:
    """The path that the same library has in a wheel; the compiler that built it does not matter."""
    return PREBUILT / f"{name}_{_fingerprint(sources, capability, '')}.so"


def _fingerprint(sources: Sequence[Path], capability: str | None, cxx: str) -> str:
    digest = hashlib.sha256()
    headers = [h for folder in _folders(sources) for h in sorted(folder.glob("*.h"))]
    for file in (*sources, *headers):
        digest.update(file.name.encode() + file.read_bytes())
    for fact in (torch.__version__, torch.version.git_version, *_compile_flags(capability), cxx):
        digest.update(str(fact).encode() + b"\0")
    return digest.hexdigest()[:16]


def compiler() -> str:
    """The C++ compiler: ``CXX``, which may include arguments, or the first of c++, g++ and clang++ on the path."""
    given = os.environ.get("CXX", "")
    wanted = [given] if shutil.which(given) else shlex.split(given)
    for candidate in wanted[:1] or ("c++", "g++", "clang++"):
        if found := shutil.which(candidate):
            return shlex.join([found, *wanted[1:]])
    raise BuildError(f"no C++ compiler found (looked for {wanted[0] if wanted else 'c++, g++, clang++'})")


def build(name: str, sources: Sequence[Path] = SOURCES, capability: str | None = None) -> Path:
    """Build the library unless it exists, and return its path."""
    target = library_path(name, sources, capability)
    if target.exists():
        return target
    if sys.platform == "win32":
        raise BuildError("native kernels are built on Linux and macOS only")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with locked(target.parent / "lock", on_wait=_say_waiting):
            if not target.exists():
                _compile(compiler(), sources, target, _compile_flags(capability))
    except OSError as error:
        raise BuildError(f"cache directory {target.parent} is not usable: {error.strerror or error}") from error
    return target


def _say(text: str) -> None:
    sys.stderr.write(f"wnfused: {text}")
    sys.stderr.flush()


def _say_waiting() -> None:
    _say("waiting for another process to build the native CPU kernels …\n")


def _compile(cxx: str, sources: Sequence[Path], target: Path, flags: list[str]) -> None:
    _say("building the native CPU kernels (once, about a minute) … ")
    start = time.monotonic()
    for leftover in target.parent.glob("tmp*"):  # from a killed build; no other build can be running under the lock
        shutil.rmtree(leftover, ignore_errors=True)
    command = shlex.split(cxx)
    root = Path(torch.__file__).parent
    includes = [*_folders(sources), root / "include", root / "include/torch/csrc/api/include"]
    flags = [*flags, *(f"-I{folder}" for folder in includes)]
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        objects = [Path(folder) / f"{source.stem}.o" for source in sources]
        commands = [[*command, *flags, "-c", str(s), "-o", str(o)] for s, o in zip(sources, objects, strict=True)]
        try:
            _run_all(commands)
            # No -fopenmp here: the library must use the OpenMP runtime that torch has loaded, not load a second one.
            undefined = ["-undefined", "dynamic_lookup"] if sys.platform == "darwin" else []
            library = Path(folder) / target.name
            link = [*command, "-shared", *map(str, objects), "-o", str(library), *undefined]
            _run_all([[*link, f"-L{root / 'lib'}", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{root / 'lib'}"]])
        except BuildError:
            sys.stderr.write("failed\n")
            raise
        library.replace(target)
    sys.stderr.write(f"done in {time.monotonic() - start:.0f} s\n")


def _run_all(commands: list[list[str]]) -> None:
    """Run the commands in parallel, one per core; after a failure or an interrupt all are stopped."""
    waiting, running = list(commands), list[subprocess.Popen[str]]()
    try:
        while waiting or running:
            while waiting and len(running) < (os.cpu_count() or 1):
                running.append(_start(waiting.pop(0)))
            process = running[0]
            output, _ = process.communicate()
            if process.returncode:
                raise BuildError(
                    f"the C++ compiler {_name(process)} failed: {_first_error(output, process.returncode)}"
                )
            running.pop(0)
    finally:
        for process in running:
            process.kill()
            process.wait()


def _start(command: list[str]) -> "subprocess.Popen[str]":
    try:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    except OSError as error:
        raise BuildError(f"the C++ compiler {command[0]} cannot be started: {error.strerror or error}") from error


def _name(process: "subprocess.Popen[str]") -> str:
    return str(process.args[0])  # type: ignore[index]


def _first_error(output: str, code: int) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\berror:", line)] or [line for line in lines if "error" in line]
    return (errors[:1] or lines[-1:] or [f"exit code {code}"])[0]
