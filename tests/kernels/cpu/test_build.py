"""Building the native library: its path, a single build for concurrent processes, atomicity, and error messages.

A shell script stands in for the compiler, so that a test can hold a build at any point.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from wnfused.kernels.cpu import build as cpu_build
from wnfused.kernels.cpu.build import BuildError, build, cache_root, library_path
from wnfused.ops.backends import native

PATIENCE = 60.0

# Logs each call, writes half of its output, waits while a file "hold" exists, then finishes.
COMPILER = """#!/bin/sh
here=$(dirname "$0")
echo "$$ $*" >> "$here/calls"
while [ $# -gt 1 ]; do [ "$1" = -o ] && out=$2; shift; done
printf half > "$out"
while [ -e "$here/hold" ]; do sleep 0.05; done
printf ' whole' >> "$out"
"""


class Workshop:
    """A source to build, with its own cache and compiler."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.source = folder / "tiny.cpp"
        self.source.write_text('extern "C" int answer() { return 42; }\n')
        self.compiler = self.script(COMPILER)
        self.hold = folder / "hold"
        self.started: list[subprocess.Popen[str]] = []

    def script(self, text: str) -> Path:
        path = self.folder / "fake-c++"
        path.write_text(text)
        path.chmod(0o755)
        return path

    def calls(self) -> list[str]:
        log = self.folder / "calls"
        return log.read_text().splitlines() if log.exists() else []

    def target(self) -> Path:
        return library_path("tiny", [self.source])

    def build(self) -> Path:
        return build("tiny", [self.source])

    def start(self) -> subprocess.Popen[str]:
        """Start the same build in a separate process."""
        # background jobs of a shell, and their children, ignore interrupts by default
        code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        code += "import sys, pathlib; from wnfused.kernels.cpu.build import build\n"
        code += "print(build('tiny', [pathlib.Path(sys.argv[1])]))"
        command = [sys.executable, "-c", code, str(self.source)]
        with (self.folder / f"stderr-{len(self.started)}").open("w") as stderr:
            self.started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True))
        return self.started[-1]

    def messages(self, process: subprocess.Popen[str]) -> str:
        return (self.folder / f"stderr-{self.started.index(process)}").read_text()

    def rest(self) -> list[str]:
        """The other files in the library's directory of the cache."""
        return sorted(p.name for p in self.target().parent.iterdir() if p != self.target())


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.02)


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workshop]:
    shop = Workshop(tmp_path)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", str(shop.compiler))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    yield shop
    shop.hold.unlink(missing_ok=True)  # releases compilers that outlived their process
    for process in shop.started:
        if process.poll() is None:
            process.kill()
        process.communicate()


# --- The path of the library -----------------------------------------------------------------------------------------


def test_cache_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is the same as torch's."""
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "a"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "b"))
    assert cache_root() == tmp_path / "a"
    monkeypatch.delenv("TORCH_EXTENSIONS_DIR")
    assert cache_root() == tmp_path / "b" / "torch_extensions"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_root() == Path.home() / ".cache" / "torch_extensions"


def test_path_does_not_change_without_a_reason(workshop: Workshop) -> None:
    before = workshop.target()
    assert before.name == "tiny.so"
    assert before.is_relative_to(workshop.folder / "cache")
    os.utime(workshop.source, (0, 0))
    assert workshop.target() == before
    assert not (workshop.folder / "cache").exists()


CHANGES: dict[str, Callable[[Workshop, pytest.MonkeyPatch], object]] = {
    "source": lambda shop, patch: shop.source.write_text("int answer() { return 43; }\n"),
    "source's name": lambda shop, patch: setattr(shop, "source", shop.source.rename(shop.folder / "small.cpp")),
    "header": lambda shop, patch: (shop.folder / "include" / "row.h").write_text("int b;\n"),
    "new header": lambda shop, patch: (shop.folder / "include" / "new.h").write_text(""),
    "flag": lambda shop, patch: patch.setattr(cpu_build, "_compile_flags", lambda capability: ["-O2"]),
    "CPU": lambda shop, patch: patch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT"),
    "torch's version": lambda shop, patch: patch.setattr(torch, "__version__", "2.99.0"),
    "torch's build": lambda shop, patch: patch.setattr(torch.version, "git_version", "0123abc"),
    "compiler": lambda shop, patch: patch.setenv("CXX", "another-c++"),
    "cache": lambda shop, patch: patch.setenv("TORCH_EXTENSIONS_DIR", str(shop.folder / "another cache")),
}


@pytest.mark.parametrize("change", CHANGES)
def test_path_changes_with(workshop: Workshop, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    include = workshop.folder / "include"
    include.mkdir()
    (include / "row.h").write_text("int a;\n")
    monkeypatch.setattr(cpu_build, "_folders", lambda sources: [include])
    before = workshop.target()
    assert workshop.target() == before
    CHANGES[change](workshop, monkeypatch)
    assert workshop.target() != before


def test_the_path_depends_on_all_real_sources() -> None:
    """They are the sources of the kernels and the registration of the operators."""
    names = {source.name for source in native._SOURCES}
    assert {"linear.cpp", "convolution.cpp", "weight_norm.cpp", "autograd.cpp"} <= names
    assert all(source.is_file() for source in native._SOURCES)


# --- Building --------------------------------------------------------------------------------------------------------


def test_real_compiler(workshop: Workshop, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """A library that loads and works, one progress line, and no second build."""
    monkeypatch.delenv("CXX")
    library = workshop.build()
    assert ctypes.CDLL(str(library)).answer() == 42
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("wnfused: building the native CPU kernels (once, about a minute) … done in ")
    assert err.endswith(" s\n") and err.count("\n") == 1
    assert workshop.rest() == ["lock"]
    monkeypatch.setenv("PATH", "")  # no compiler is needed any more
    assert workshop.build() == library
    assert capfd.readouterr() == ("", "")


def test_the_native_library_is_not_built_again(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    def no_more(*args: object) -> None:
        raise AssertionError("built again")

    monkeypatch.setattr(cpu_build, "_compile", no_more)
    assert native.is_built()
    assert native.build() == native.library_path()


def test_every_source_is_compiled_and_linked(workshop: Workshop) -> None:
    second = workshop.folder / "second.cpp"
    second.write_text("")
    library = build("tiny", [workshop.source, second])
    assert library.read_text() == "half whole"
    *compiled, linked = workshop.calls()
    assert len(compiled) == 2
    assert all(any(f" -c {s} " in call for call in compiled) for s in (workshop.source, second))
    assert "-shared" in linked and "-ltorch_cpu" in linked


def test_two_processes_build_once_and_no_partial_library_appears(workshop: Workshop) -> None:
    workshop.hold.touch()
    first = workshop.start()
    wait_until(lambda: len(workshop.calls()) == 1)
    second = workshop.start()
    wait_until(lambda: "waiting for another process" in workshop.messages(second))
    assert not workshop.target().exists()
    workshop.hold.unlink()
    for process in (first, second):
        out, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, workshop.messages(process)
        assert out.strip() == str(workshop.target())
    assert len(workshop.calls()) == 2  # one source compiled, one library linked
    assert workshop.target().read_text() == "half whole"
    assert workshop.rest() == ["lock"]
    assert workshop.messages(first).startswith("wnfused: building ")
    assert workshop.messages(second) == "wnfused: waiting for another process to build the native CPU kernels …\n"


def test_the_library_appears_atomically(workshop: Workshop) -> None:
    """The linker writes to another file."""
    link = 'case "$*" in *-shared*) touch "$here/hold";; esac\nwhile [ $# -gt 1 ]'
    workshop.script(COMPILER.replace("while [ $# -gt 1 ]", link))
    process = workshop.start()
    wait_until(workshop.hold.exists)
    wait_until(lambda: list(workshop.target().parent.glob("*/tiny.so")))
    assert not workshop.target().exists()
    workshop.hold.unlink()
    process.communicate(timeout=PATIENCE)
    assert workshop.target().read_text() == "half whole"


def test_a_killed_build_does_not_block_others(workshop: Workshop) -> None:
    """Its lock is released although its compiler is still running, and its temporary files are removed."""
    workshop.hold.touch()
    killed = workshop.start()
    wait_until(lambda: len(workshop.calls()) == 1)
    killed.kill()
    killed.wait(PATIENCE)
    assert not workshop.target().exists()
    compiler = int(workshop.calls()[0].split()[0])
    os.kill(compiler, 0)  # still running, and would still hold an inherited lock
    workshop.script(COMPILER.replace('while [ -e "$here/hold" ]', "while false"))
    assert workshop.build().read_text() == "half whole"
    assert workshop.rest() == ["lock"]


def test_an_interrupted_build_leaves_nothing_behind(workshop: Workshop) -> None:
    """No partial library, no directory of objects, no running compiler."""
    workshop.hold.touch()
    process = workshop.start()
    wait_until(lambda: len(workshop.calls()) == 1)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE)
    assert process.returncode != 0
    assert workshop.rest() == ["lock"]
    assert not workshop.target().exists()
    compiler = int(workshop.calls()[0].split()[0])
    with pytest.raises(ProcessLookupError):
        os.kill(compiler, 0)


def test_no_more_compilers_at_once_than_cores(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    processes: list[subprocess.Popen[str]] = []
    alive: list[int] = []

    class Counted(subprocess.Popen):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            alive.append(sum(p.poll() is None for p in processes) + 1)
            super().__init__(*args, **kwargs)
            processes.append(self)

    monkeypatch.setattr(cpu_build.subprocess, "Popen", Counted)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    sources = [workshop.folder / f"{i}.cpp" for i in range(5)]
    for source in sources:
        source.write_text("")
    build("tiny", sources)
    assert len(alive) == 6
    assert max(alive) <= 2


# --- Failing ---------------------------------------------------------------------------------------------------------


def failure(workshop: Workshop) -> str:
    with pytest.raises(BuildError) as caught:
        workshop.build()
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_no_compiler(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/no/such/compiler")
    assert failure(workshop) == "no C++ compiler found (looked for /no/such/compiler)"
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(workshop.folder))
    assert failure(workshop) == "no C++ compiler found (looked for c++, g++, clang++)"


@pytest.mark.parametrize(
    ("says", "detail"),
    [
        ("echo 'from errors.h:1'; echo 'a.cpp:1: error: no; such'; exit 1", "a.cpp:1: error: no; such"),
        ("echo 'one line'; echo 'the last line'; exit 1", "the last line"),
        ("exit 3", "exit code 3"),
        ("kill -9 $$", "exit code -9"),
    ],
    ids=["error", "no error line", "silent", "killed"],
)
def test_failing_compiler(workshop: Workshop, capfd: pytest.CaptureFixture[str], says: str, detail: str) -> None:
    """One line names the compiler and its first error; only the lock is left behind, and the next attempt builds."""
    workshop.script(f"#!/bin/sh\n{says}\n")
    assert failure(workshop) == f"the C++ compiler {workshop.compiler} failed: {detail}"
    assert capfd.readouterr().err == "wnfused: building the native CPU kernels (once, about a minute) … failed\n"
    assert workshop.rest() == ["lock"]
    workshop.script(COMPILER)
    assert workshop.build().exists()


def test_failing_linker(workshop: Workshop) -> None:
    workshop.script(COMPILER.replace("printf half", 'grep -q -e -shared "$here/calls" && exit 1\nprintf half'))
    assert failure(workshop) == f"the C++ compiler {workshop.compiler} failed: exit code 1"
    assert len(workshop.calls()) == 2
    assert not workshop.target().exists()
    assert workshop.rest() == ["lock"]


def test_message_of_the_real_compiler(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX")
    workshop.source.write_text("int answer() { return nothing; }\n")
    message = failure(workshop)
    assert cpu_build.compiler() in message
    assert "tiny.cpp:1" in message and "nothing" in message


def test_unusable_cache(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    (workshop.folder / "file").write_text("")
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(workshop.folder / "file" / "cache"))
    assert failure(workshop) == f"cache directory {workshop.target().parent} is not usable: Not a directory"
    assert workshop.calls() == []


def test_compiler_that_cannot_be_started(workshop: Workshop) -> None:
    """The compiler is not executable on this machine; the message does not blame the cache."""
    workshop.script("not a program\n")
    message = failure(workshop)
    assert str(workshop.compiler) in message
    assert "cache" not in message


def test_compiler_with_arguments(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """``CXX="ccache g++"`` is common; make and torch's own extensions accept it."""
    monkeypatch.setenv("CXX", f"{workshop.compiler} --fast")
    assert workshop.build().exists()
    assert all(" --fast " in call for call in workshop.calls())
