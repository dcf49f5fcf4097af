"""The command ``wnfused``: what it prints, and its exit codes."""

import ast
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import wnfused
from wnfused import cli
from wnfused.kernels.cpu.build import BuildError
from wnfused.ops.backends import native

WORKS = {"works": True, "died": None, "cure": None}


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/no/such/compiler")


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    try:
        code = cli.main(argv)
    except SystemExit as leaving:
        code = int(leaving.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_without_arguments_it_lists_the_commands(capsys):
    code, out, err = run(capsys)
    assert (code, err) == (0, "")
    assert all(name in out for name in cli.COMMANDS)


def test_help_of_each_command(capsys):
    for name in cli.COMMANDS:
        code, out, _ = run(capsys, name, "--help")
        assert code == 0
        assert out.startswith(f"usage: wnfused {name}")


def test_version(capsys):
    assert run(capsys, "--version") == (0, f"{wnfused.__version__}\n", "")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["biuld"], "wnfused: unknown command 'biuld', did you mean 'build'?\n"),
        (["xyzzy", "--help"], f"wnfused: unknown command 'xyzzy', expected one of {', '.join(cli.COMMANDS)}\n"),
        (
            ["info", "--jsn"],
            "wnfused info: unrecognized arguments: --jsn, did you mean --json? (see wnfused info --help)\n",
        ),
        (["--backend"], "wnfused: unrecognized arguments: --backend (see wnfused --help)\n"),
    ],
)
def test_a_typing_error_is_one_line_and_exit_code_2(capsys, argv, message):
    assert run(capsys, *argv) == (2, "", message)


def test_interrupt_leaves_without_a_traceback(capsys, monkeypatch):
    def interrupted(args: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setitem(cli.COMMANDS, "build", cli.Command(interrupted, "", lambda parser: None))
    assert run(capsys, "build") == (130, "", "wnfused: interrupted\n")


def test_sigterm_cleans_up_and_leaves_without_a_traceback(capsys, monkeypatch):
    cleaned: list[str] = []

    def terminated(args: object) -> int:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(10)
        finally:
            cleaned.append("yes")
        return 0

    monkeypatch.setitem(cli.COMMANDS, "build", cli.Command(terminated, "", lambda parser: None))
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        assert run(capsys, "build") == (143, "", "wnfused: terminated\n")
        assert cleaned == ["yes"] and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_closed_pipe_ends_without_a_traceback(tmp_path):
    """As in `wnfused doctor … | head -1`."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe:
        done = subprocess.run(
            [sys.executable, "-m", "wnfused", "--version"], cwd=tmp_path, stdout=pipe, stderr=subprocess.PIPE, text=True
        )
    assert (done.returncode, done.stderr) == (141, "")


def test_a_handler_of_the_callers_is_left_alone(capsys, monkeypatch):
    seen: list[int] = []
    monkeypatch.setitem(
        cli.COMMANDS,
        "build",
        cli.Command(lambda args: os.kill(os.getpid(), signal.SIGTERM) or 0, "", lambda parser: None),
    )
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    try:
        assert run(capsys, "build") == (0, "", "") and seen == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("file", sorted(Path(cli.__file__).parent.glob("*.py")), ids=lambda file: file.name)
def test_the_package_itself_imports_only_the_standard_library(file):
    tree = ast.parse(file.read_text(encoding="utf-8"))
    modules = [alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names]
    modules += [str(node.module) for node in tree.body if isinstance(node, ast.ImportFrom)]
    assert modules
    foreign = [name for name in modules if name.split(".")[0] not in sys.stdlib_module_names]
    assert all(name.startswith("wnfused.cli") for name in foreign), foreign


def test_python_m_wnfused(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "wnfused", "no-such-command"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1


def test_build_says_where_the_library_is(capsys, monkeypatch, tmp_path):
    library = tmp_path / "library.so"
    monkeypatch.setattr(native, "build", lambda: library)
    monkeypatch.setattr(native, "is_built", lambda: False)
    assert run(capsys, "build") == (0, f"native CPU kernels: {library} (built in 0 s)\n", "")
    monkeypatch.setattr(native, "is_built", lambda: True)
    assert run(capsys, "build") == (0, f"native CPU kernels: {library} (already built)\n", "")


def test_build_without_a_compiler_is_one_line_and_exit_code_1(capsys, empty_cache, no_compiler):
    code, out, err = run(capsys, "build")
    assert (code, out) == (1, "")
    assert err.startswith("wnfused: no C++ compiler found")
    assert err.count("\n") == 1


def test_build_reports_a_failing_compiler(capsys, monkeypatch):
    def failing() -> Path:
        raise BuildError("the C++ compiler c++ failed: no space")

    monkeypatch.setattr(native, "build", failing)
    assert run(capsys, "build") == (1, "", "wnfused: the C++ compiler c++ failed: no space\n")


def test_info_as_json(capsys):
    code, out, _ = run(capsys, "info", "--json")
    assert code == 0
    facts = json.loads(out)
    assert facts["wnfused"] == wnfused.__version__
    assert facts["torch"] == torch.__version__
    assert facts["threads"] == torch.get_num_threads()
    assert facts["backends"]["torch"] == {"available": True, "why": None}
    assert facts["native_library"]["path"] == str(native.library_path())
    assert set(facts["bf16_matmul"]) == {"works", "died", "cure"}  # tried for real, on this CPU


def test_info_as_text(capsys, monkeypatch):
    monkeypatch.setattr(cli.info, "probe_bf16", lambda: WORKS)
    monkeypatch.delenv("WNFUSED_BACKEND", raising=False)
    code, out, _ = run(capsys, "info")
    assert code == 0
    lines = dict(line.strip().split("  ", 1) for line in out.splitlines())
    assert lines["wnfused"].strip() == wnfused.__version__
    assert lines["backend"].strip().endswith("(WNFUSED_BACKEND is not set)")
    assert lines["bf16 matmul"].strip() == "works"


def test_info_without_a_gpu(capsys, monkeypatch):
    monkeypatch.setattr(cli.info, "probe_bf16", lambda: WORKS)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    _, out, _ = run(capsys, "info")
    lines = dict(line.strip().split("  ", 1) for line in out.splitlines())
    assert lines["GPU"].strip() == "no GPU" and lines["triton"].strip() == "unavailable: no GPU"
    assert "interpret" not in out.lower()


def test_info_builds_nothing(capsys, monkeypatch, empty_cache):
    monkeypatch.setattr(cli.info, "probe_bf16", lambda: WORKS)
    monkeypatch.setattr(cli.info, "_compiler", lambda: "/usr/bin/c++")
    code, out, err = run(capsys, "info", "--json")
    assert (code, err) == (0, "")
    facts = json.loads(out)
    assert facts["native_library"]["built"] is False
    assert facts["backends"]["native"]["available"] is None
    assert "wnfused build" in facts["backends"]["native"]["why"]
    assert not empty_cache.exists()


def test_info_without_a_compiler(capsys, monkeypatch, empty_cache, no_compiler):
    monkeypatch.setattr(cli.info, "probe_bf16", lambda: WORKS)
    code, out, _ = run(capsys, "info")
    assert code == 0
    assert "unavailable: it is not built and no C++ compiler is found" in out
    assert "none found: set CXX" in out


def test_info_leaves_the_choice_of_backend_alone(monkeypatch):
    monkeypatch.setattr(cli.info, "probe_bf16", lambda: WORKS)
    with wnfused.backend("torch"):
        assert cli.info.gather()["backend"] == "torch"
        assert cli.info.gather()["backend"] == "torch"


@pytest.mark.parametrize(
    ("script", "probe", "text"),
    [
        ("exit 0", WORKS, "works"),
        (
            '[ "$ONEDNN_MAX_CPU_ISA" = AVX512_CORE ] || kill -ILL $$',
            {"works": False, "died": "dies with SIGILL", "cure": "ONEDNN_MAX_CPU_ISA=AVX512_CORE"},
            "dies with SIGILL: set ONEDNN_MAX_CPU_ISA=AVX512_CORE (tried here: it works then)",
        ),
        (
            "kill -ILL $$",
            {"works": False, "died": "dies with SIGILL", "cure": None},
            "dies with SIGILL, also under ONEDNN_MAX_CPU_ISA=AVX512_CORE",
        ),
        (
            "exit 3",
            {"works": False, "died": "fails with exit code 3", "cure": None},
            "fails with exit code 3, also under ONEDNN_MAX_CPU_ISA=AVX512_CORE",
        ),
    ],
)
def test_bf16_probe(tmp_path, monkeypatch, script, probe, text):
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    assert cli.info.probe_bf16(str(python)) == probe
    assert cli.info._describe_bf16(probe) == text


def test_bf16_probe_survives_a_missing_interpreter(tmp_path):
    assert cli.info.probe_bf16(str(tmp_path / "none"))["died"].startswith("did not run:")
