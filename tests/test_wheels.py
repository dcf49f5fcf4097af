"""The wheel with prebuilt native kernels, used from outside the checkout; what works without modules of Linux."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from tests.test_packaging import checkout, fresh_environment, install, place, run, sdist, wheel  # noqa: F401
from wnfused.kernels.cpu import build as cpu_build
from wnfused.kernels.cpu import prebuilt
from wnfused.ops.backends import native

WHICH = """
import torch, wnfused
from wnfused.ops.backends import native
wnfused.backend("native")
y = wnfused.functional.wn_linear(torch.ones(2, 3), torch.ones(4, 3), torch.ones(4, 1))
torch.testing.assert_close(y, torch.full((2, 4), 3 ** 0.5))
print(native.library_path())
"""


@pytest.fixture(scope="module")
def prebuilt_wheel(wheel: Path) -> Path:  # noqa: F811
    """With the library for this CPU only, which `make test` has built before."""
    capability = torch.backends.cpu.get_cpu_capability()
    return prebuilt.add_to_wheel(wheel, native._NAME, native._SOURCES, [capability])


@pytest.fixture(scope="module")
def python(place: Path, prebuilt_wheel: Path) -> Path:  # noqa: F811
    made = fresh_environment(place / "prebuilt")
    install(made, prebuilt_wheel)
    return made


def use(python: Path, cache: Path, **environment: str) -> Path:
    """Compute with the native kernels and return the library that was used."""
    set_ = os.environ | {"TORCH_EXTENSIONS_DIR": str(cache), "WNFUSED_BACKEND": "auto"} | environment
    done = subprocess.run([python, "-c", WHICH], cwd=cache.parent, env=set_, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return Path(done.stdout.splitlines()[-1])


def test_the_prebuilt_library_is_used_without_a_compiler(python: Path, tmp_path: Path) -> None:
    library = use(python, tmp_path / "cache", CXX="/no/such/compiler")
    assert library.parent.name == "prebuilt" and library.is_relative_to(python.parent.parent)
    assert not (tmp_path / "cache").exists()


def test_another_cpu_compiles_at_first_use(python: Path, tmp_path: Path) -> None:
    """torch restricted to another vector extension stands for another CPU."""
    other = "avx2" if torch.backends.cpu.get_cpu_capability() == "AVX512" else "default"
    ask = "from wnfused.ops.backends import native; print(native.library_path())"
    environment = os.environ | {"TORCH_EXTENSIONS_DIR": str(tmp_path), "ATEN_CPU_CAPABILITY": other}
    done = subprocess.run([python, "-c", ask], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert Path(done.stdout.strip()).is_relative_to(tmp_path), done.stderr


def test_another_torch_does_not_find_it(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = {cpu_build.prebuilt_path("x", [])}
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    paths.add(cpu_build.prebuilt_path("x", []))
    monkeypatch.setattr(torch._C, "_GLIBCXX_USE_CXX11_ABI", not torch._C._GLIBCXX_USE_CXX11_ABI)
    paths.add(cpu_build.prebuilt_path("x", []))
    paths.add(cpu_build.prebuilt_path("x", [], "AVX-other"))
    assert len(paths) == 4
    before = cpu_build.prebuilt_path("x", [])
    monkeypatch.setenv("CXX", "another-compiler")
    assert cpu_build.prebuilt_path("x", []) == before


def test_a_prebuilt_library_that_cannot_be_loaded_is_built_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken, built = tmp_path / "prebuilt" / "library.so", tmp_path / "built.so"
    broken.parent.mkdir()
    broken.write_bytes(b"not a library")
    loaded: list[Path] = []

    def load(path: Path) -> None:
        if path == broken:
            raise OSError("version `GLIBC_2.99' not found")
        loaded.append(path)

    monkeypatch.setattr(cpu_build, "PREBUILT", broken.parent)
    monkeypatch.setattr(cpu_build, "prebuilt_path", lambda *arguments: broken)
    monkeypatch.setattr(cpu_build, "build", lambda *arguments: built)
    monkeypatch.setattr(torch.ops, "load_library", load)
    monkeypatch.setattr(native.ctypes, "CDLL", lambda path: type("Library", (), {"wnfused_choose_native": _Chooser()}))
    monkeypatch.setattr(native.registry, "on_select", lambda choose: None)
    monkeypatch.setattr(native.table, "load", lambda path: None)
    assert native._load() is None and loaded == [built]


class _Chooser:
    argtypes: object = None


def test_the_files_of_both_wheels(wheel: Path, prebuilt_wheel: Path) -> None:  # noqa: F811
    assert wheel.name.endswith("-py3-none-any.whl") and "-py3-none-any" not in prebuilt_wheel.name
    with zipfile.ZipFile(wheel) as pure, zipfile.ZipFile(prebuilt_wheel) as full:
        assert full.testzip() is None
        added = set(full.namelist()) - set(pure.namelist())
        record = next(name for name in full.namelist() if name.endswith("/RECORD"))
        listed = {line.rsplit(",", 2)[0] for line in full.read(record).decode().splitlines()}
        tags = full.read(record.replace("RECORD", "WHEEL")).decode()
    assert [Path(name).parent.as_posix() for name in added] == [prebuilt.FOLDER]
    assert listed == set(full.namelist())
    assert "Root-Is-Purelib: false" in tags and "Tag: py3-none-any" not in tags


def test_a_wheel_that_is_not_pure_is_refused(prebuilt_wheel: Path) -> None:
    with pytest.raises(cpu_build.BuildError, match="is not a pure wheel"):
        prebuilt.add_to_wheel(prebuilt_wheel, native._NAME, native._SOURCES)


WITHOUT = """
import sys
for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[name] = None  # Windows has none of them
import pkgutil, pathlib, tempfile, wnfused, wnfused.kernels.cpu
from wnfused.files import locked
for room in ("wnfused.train", "wnfused.data", "wnfused.surgery", "wnfused.init", "wnfused.cli", "wnfused.report"):
    package = __import__(room, fromlist=["x"])
    for module in pkgutil.walk_packages(package.__path__, room + "."):
        __import__(module.name)
with tempfile.TemporaryDirectory() as folder:
    with locked(pathlib.Path(folder) / "lock"):
        pass
print("imported")
"""


def test_nothing_needs_the_modules_that_windows_lacks(tmp_path: Path) -> None:
    assert run(sys.executable, "-c", WITHOUT, cwd=tmp_path).splitlines() == ["imported"]
