"""Wheels with native libraries that were built before: used where torch, ABI, CPU and sources match."""

import base64
import hashlib
import platform
import sysconfig
import zipfile
from collections.abc import Sequence
from pathlib import Path

import torch

from wnfused.kernels.cpu import build

FOLDER = "wnfused/kernels/cpu/prebuilt"  # of build.PREBUILT in a wheel


def capabilities() -> tuple[str, ...]:
    """The vector extensions, in torch's words, that this machine's compiler can build for."""
    if platform.machine().lower() in ("x86_64", "amd64"):
        return ("AVX512", "AVX2", "DEFAULT")
    return (torch.backends.cpu.get_cpu_capability(),)


def add_to_wheel(pure: Path, name: str, sources: Sequence[Path], chosen: Sequence[str] | None = None) -> Path:
    """Write a wheel for this platform beside the pure one: the same files, and a library for each vector extension.

    The libraries are built for the installed torch, and taken from torch's extension cache if they are there.
    """
    tag = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
    wheel = pure.with_name(pure.name.replace("py3-none-any", tag))
    if wheel == pure:
        raise build.BuildError(f"{pure.name} is not a pure wheel, whose name ends with py3-none-any.whl")
    libraries = {
        f"{FOLDER}/{build.prebuilt_path(name, sources, capability).name}": build.build(name, sources, capability)
        for capability in chosen or capabilities()
    }
    with zipfile.ZipFile(pure) as old, zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as new:
        records = []
        for member in old.namelist():
            content = old.read(member)
            if member.endswith(".dist-info/RECORD"):
                record = member
                continue
            if member.endswith(".dist-info/WHEEL"):
                text = content.decode().replace("py3-none-any", tag)
                content = text.replace("Root-Is-Purelib: true", "Root-Is-Purelib: false").encode()
            new.writestr(old.getinfo(member), content)
            records.append(_record(member, content))
        for member, library in libraries.items():
            content = library.read_bytes()
            new.writestr(member, content)
            records.append(_record(member, content))
        new.writestr(record, "".join([*records, f"{record},,\n"]))
    return wheel


def _record(member: str, content: bytes) -> str:
    """A line of RECORD, as the wheel format defines it."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{member},sha256={digest},{len(content)}\n"
