"""Compiles builds for their targets, without a GPU, in worker processes, and caches the results on disk."""

import contextlib
import functools
import hashlib
import importlib
import json
import multiprocessing
import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from wnfused.files import write_atomically
from wnfused.kernels.triton.audit.builds import Build
from wnfused.kernels.triton.audit.facts import Facts

Progress = Callable[[int, int, str], None]
_STATISTICS_POINTERS = {"norms", "partial", "squares_out", "squares", "dots", "scales", "db", "factor", "sums"}
_WEIGHT_POINTERS = {"v", "w", "g", "bias", "dw", "dv", "dg"}


def compile_all(builds: Sequence[Build], progress: Progress = lambda done, count, name: None) -> dict[Build, Facts]:
    """Facts of every build, from the cache if possible."""
    found = {build: facts for build in builds if (facts := _cached(build)) is not None}
    missing = [build for build in builds if build not in found]
    progress(len(found), len(builds), "from the cache")
    alike: dict[Path, list[Build]] = {}  # two modes may be the same kernel on different operands
    for build in missing:
        alike.setdefault(_file(build), []).append(build)
    if missing:
        for build, facts in _compiled_in_workers([group[0] for group in alike.values()]):
            _keep(build, facts)
            found |= dict.fromkeys(alike[_file(build)], facts)
            progress(len(found), len(builds), str(build))
    return found


def _compiled_in_workers(builds: list[Build]) -> Iterator[tuple[Build, Facts]]:
    workers = min(len(builds), os.cpu_count() or 1)
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        with _no_interpreter():
            waiting = {pool.submit(compile_build, replace(build, plain=None)): build for build in builds}
        try:
            for future in as_completed(waiting):
                yield waiting[future], future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


@contextlib.contextmanager
def _no_interpreter() -> Iterator[None]:
    """A context in which new workers compile, even if this process interprets its kernels."""
    before = os.environ.pop("TRITON_INTERPRET", None)
    try:
        yield
    finally:
        if before is not None:
            os.environ["TRITON_INTERPRET"] = before


def compile_build(build: Build) -> Facts:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from wnfused.kernels.triton.audit import amdgcn, sass

    kernel = getattr(importlib.import_module(f"wnfused.kernels.triton.{build.module}"), build.kernel)
    amd = build.target.startswith("gfx")
    target = GPUTarget("hip", build.target, 64) if amd else GPUTarget("cuda", int(build.target[3:]), 32)
    source = ASTSource(kernel, *_specialised(kernel, build))
    try:
        options = {"num_warps": build.warps, "num_stages": build.stages}
        if build.registers is not None:
            options["maxnreg"] = build.registers
        binary = triton.compile(source, target, options)
    except Exception as error:  # triton raises many types, and some cannot be pickled
        raise RuntimeError(f"{build} does not compile: {type(error).__name__}: {error}") from None
    return (amdgcn if amd else sass).facts(binary)


def _specialised(kernel: Any, build: Build) -> tuple[dict[str, str], dict[str, Any], dict[tuple[int], list]]:
    """Signature, constants and divisibility of the arguments, as triton's launcher derives them from values."""
    constants, sizes = dict(build.constants), dict(build.sizes)
    signature: dict[str, str] = {}
    values: dict[str, Any] = {}
    known: dict[tuple[int], list] = {}
    for i, parameter in enumerate(kernel.params):
        name = parameter.name
        if parameter.is_constexpr or constants.get(name, 0) is None or (name in sizes and sizes[name] == 1):
            signature[name] = "constexpr"
            values[name] = _constant(name, constants[name] if name in constants else sizes[name])
            continue
        signature[name] = "i32" if name in sizes else parameter.annotation_type or _type(name, build)
        if not signature[name].startswith("fp") and int(sizes.get(name) or 0) % 16 == 0:  # pointers are aligned too
            known[(i,)] = [["tt.divisibility", 16]]
        if signature[name].startswith("*") and build.target.startswith("gfx"):  # as for tensors of up to 2 GB
            known[(i,)].append(["tt.pointer_range", 32])
    return signature, values, known


def _constant(name: str, value: Any) -> Any:
    import triton.language as tl

    types = {"fp64": tl.float64, "fp32": tl.float32, "bf16": tl.bfloat16, "fp16": tl.float16}
    return types[value] if name in ("STATISTICS", "V", "G", "W") else value


def _type(name: str, build: Build) -> str:
    if name in (known := dict(build.pointers)):
        return f"*{known[name]}"
    if name == "eps":
        return "fp32"
    if name == "g" and dict(build.constants).get("norms", 0) is None:  # g/n, which is kept in float32
        return "*fp32"
    if name in _STATISTICS_POINTERS or (name == "dw" and build.kernel.startswith("depthwise")):
        return "*" + build.dtypes.statistics
    return "*" + (build.dtypes.weights if name in _WEIGHT_POINTERS else build.dtypes.activations)


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "wnfused" / "audit"


@functools.cache
def _version(module: str) -> str:
    """A version that changes with triton, with the kernel's file and its imports, and with the audit's parsers."""
    folder = Path(__file__).parent
    readers = [folder / f"{name}.py" for name in ("compiled", "facts", "loops", "sass", "amdgcn")]
    digest = hashlib.sha256(metadata.version("triton").encode())
    for source in [*(folder.parent / f"{name}.py" for name in sorted(_imported(module))), *readers]:
        digest.update(source.read_bytes())
    return digest.hexdigest()


def _imported(module: str) -> set[str]:
    """The kernel modules that this one imports, directly or indirectly, and itself."""
    source = (Path(__file__).parent.parent / f"{module}.py").read_text()
    return {module}.union(
        *(_imported(name) for name in re.findall(r"from wnfused\.kernels\.triton\.(\w+) import", source))
    )


def _file(build: Build) -> Path:
    same = replace(build, plain=None, mode="")  # the name of a mode does not affect the code
    name = hashlib.sha256(f"{_version(build.module)} {same!r} {build.registers}".encode()).hexdigest()
    return cache_folder() / f"{name}.json"


def _cached(build: Build) -> Facts | None:
    try:
        return Facts(**json.loads(_file(build).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _keep(build: Build, facts: Facts) -> None:
    with contextlib.suppress(OSError):  # without a cache it only takes longer
        cache_folder().mkdir(parents=True, exist_ok=True)
        write_atomically(_file(build), json.dumps(asdict(facts)).encode())
