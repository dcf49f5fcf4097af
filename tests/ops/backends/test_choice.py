"""The choice of backend by call, block and environment, backends that cannot run, and agreement between backends."""

import json
import logging
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import wnfused
from tests.support.reference import assert_close
from tests.support.samples import SAMPLES, Sample
from wnfused import BackendUnavailable, WNConv1d, WNConv2d, WNConvTranspose1d, WNLinear
from wnfused.kernels.cpu.build import cache_root
from wnfused.kernels.triton import support
from wnfused.ops import backends
from wnfused.ops.backends import native, registry
from wnfused.ops.backends import torch as torch_backend

OPS = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def _choice_restored() -> Iterator[None]:
    before = backends.chosen()
    yield
    wnfused.backend(before)


# --- Calls and blocks ------------------------------------------------------------------------------------------------


def test_block_restores_the_choice() -> None:
    wnfused.backend("auto")
    with wnfused.backend("torch"):
        assert backends.chosen() == "torch"
        with wnfused.backend("native"):
            assert backends.chosen() == "native"
            with wnfused.backend("native"):
                assert backends.chosen() == "native"
            assert backends.chosen() == "native"
        assert backends.chosen() == "torch"
    assert backends.chosen() == "auto"


def test_block_restores_the_choice_after_an_error() -> None:
    wnfused.backend("native")
    with pytest.raises(ZeroDivisionError), wnfused.backend("torch"):
        raise ZeroDivisionError
    assert backends.chosen() == "native"


def test_call_sets_the_choice() -> None:
    wnfused.backend("torch")
    assert backends.chosen() == "torch"
    wnfused.backend("native")
    assert backends.chosen() == "native"


def test_call_inside_a_block_ends_with_it() -> None:
    wnfused.backend("auto")
    with wnfused.backend("torch"):
        wnfused.backend("native")
    assert backends.chosen() == "auto"


def which_ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Run a layer; returns the backends that computed its forward and backward."""
    seen: list[str] = []
    for name in ("linear", "linear_backward"):
        function = getattr(torch_backend, name)

        def recorded(*args: Any, name: str = name, function: Any = function) -> Any:
            seen.append(name)
            return function(*args)

        monkeypatch.setattr(torch_backend, name, recorded)
    WNLinear(3, 2)(torch.randn(4, 3)).sum().backward()
    monkeypatch.undo()
    return seen


def test_the_chosen_backend_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, expected in (("native", []), ("torch", ["linear", "linear_backward"]), ("auto", [])):
        with wnfused.backend(name):
            assert which_ran(monkeypatch) == expected


def test_unknown_name() -> None:
    before = backends.chosen()
    with pytest.raises(ValueError, match="backend: unknown name 'cuda', expected one of auto, triton, native, torch"):
        wnfused.backend("cuda")
    assert backends.chosen() == before


def test_the_error_says_why_triton_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """An explicit choice that fails does not change the current one."""
    monkeypatch.setattr(support, "interpreted", lambda: False)
    with wnfused.backend("torch"):
        with pytest.raises(
            BackendUnavailable, match="backend 'triton' cannot run: CPU tensors need triton's interpreter"
        ):
            wnfused.backend("triton")
        assert backends.chosen() == "torch"
        assert WNLinear(3, 2)(torch.ones(1, 3)).shape == (1, 2)


def test_a_registered_backend_is_preferred_by_auto(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A backend that volunteers for a device is selected if it can run and skipped if it cannot."""
    monkeypatch.setattr(registry, "_registry", dict(registry._registry))
    backends.register(backends.Backend("triton", lambda device: "it has no GPU", lambda: None))
    try:
        wnfused.backend("auto")
        with caplog.at_level(logging.INFO, "wnfused"):
            assert backends.resolve(torch.device("cpu")).name == "native"
        assert backends.names() == ["auto", "triton", "native", "torch"]
        assert "no triton: it has no GPU" in caplog.text
        with pytest.raises(BackendUnavailable, match="it has no GPU"):
            wnfused.backend("triton")
    finally:
        monkeypatch.undo()
        registry._resolved.clear()


# --- Agreement -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: s.name)
def test_backends_agree(sample: Sample) -> None:
    results = []
    for name in ("native", "torch"):
        with wnfused.backend(name):
            tensors = sample.tensors()
            y = sample.own(*tensors)
            results.append([y, *torch.autograd.grad(y.sin().sum(), tensors)])
    for ours, plain in zip(*results, strict=True):
        assert_close(ours, plain, terms=1.0)
        assert ours.stride() == plain.stride()


LAYERS = {
    "linear, few rows": (lambda: WNLinear(200, 300, activation="relu"), (4, 200)),
    "linear": (lambda: WNLinear(256, 300), (64, 256)),
    "linear, all": (lambda: WNLinear(256, 300, dim=None), (64, 256)),
    "conv1d": (lambda: WNConv1d(64, 96, 5), (4, 64, 50)),
    "conv2d": (lambda: WNConv2d(16, 32, 3, groups=2, activation="relu"), (4, 16, 20, 20)),
    "conv2d, taps": (lambda: WNConv2d(16, 32, 3, dim=2), (4, 16, 20, 20)),
    "transposed": (lambda: WNConvTranspose1d(64, 48, 4, stride=2), (4, 64, 50)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_results_are_reproducible(backend: str, name: str, dtype: torch.dtype) -> None:
    """With several threads, and with torch's deterministic algorithms (set by conftest.py)."""
    assert torch.are_deterministic_algorithms_enabled()
    make, shape = LAYERS[name]
    layer, x = make().to(dtype), torch.randn(shape, dtype=dtype, requires_grad=True)

    def run() -> list[Tensor]:
        y = layer(x)
        return [y, *torch.autograd.grad(y.sin().sum(), [x, *layer.parameters()])]

    first = run()
    assert all(t.any() for t in first)
    for _ in range(3):
        assert all(torch.equal(a, b) for a, b in zip(run(), first, strict=True))


# --- Other processes: environment, log, missing compiler, import -----------------------------------------------------

RESULTS = """
import json, logging, sys, torch, wnfused
class Lines(logging.Handler):
    def emit(self, record):
        lines.append([record.levelname, record.getMessage()])
lines = []
logging.getLogger("wnfused").addHandler(Lines())
logging.getLogger("wnfused").setLevel(logging.INFO)
def results():
    torch.manual_seed(0)
    first, last = wnfused.WNConv1d(3, 4, 3, activation="relu"), wnfused.WNLinear(24, 5)
    model = torch.nn.Sequential(first, torch.nn.Flatten(), last)
    x = torch.randn(2, 3, 8)
    y = model(x)
    return [y.tolist(), *(d.tolist() for d in torch.autograd.grad(y.sin().sum(), list(model.parameters())))]
def say(**facts):
    print(json.dumps({"lines": lines, **facts}))
"""


def python(code: str, tmp_path: Path, **environment: str) -> dict[str, Any]:
    """The output of a new process, by default with an empty cache."""
    inherited = {k: v for k, v in os.environ.items() if k not in ("WNFUSED_BACKEND", "CXX", "TORCH_EXTENSIONS_DIR")}
    done = subprocess.run(
        [sys.executable, "-c", RESULTS + textwrap.dedent(code)],
        env={**inherited, "TORCH_EXTENSIONS_DIR": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1", **environment},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return {**json.loads(done.stdout.splitlines()[-1]), "stderr": done.stderr}


def own_results(name: str) -> list[Tensor]:
    space: dict[str, Any] = {}
    exec(RESULTS.replace('logging.getLogger("wnfused").addHandler(Lines())', ""), space)
    with wnfused.backend(name):
        return [torch.tensor(t) for t in space["results"]()]


def assert_own_results(given: list[Any]) -> None:
    for name in ("torch", "native"):
        for there, here in zip(given, own_results(name), strict=True):
            assert_close(torch.tensor(there), here)


def failing_compiler(tmp_path: Path) -> str:
    script = tmp_path / "broken-c++"
    script.write_text("#!/bin/sh\necho 'source.cpp:1:1: error: this compiler is broken' >&2\nexit 1\n")
    script.chmod(0o755)
    return str(script)


WITHOUT_NATIVE = {
    "no compiler": "no C++ compiler found (looked for /no/such/compiler)",
    "failing compiler": "broken-c++ failed: source.cpp:1:1: error: this compiler is broken",
    "unusable cache": "cache directory /proc/wnfused/",
    "damaged library": "; delete this file and run `wnfused build`",
}


def without_native(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    if case == "damaged library":
        with monkeypatch.context() as patch:
            patch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "cache"))
            patch.delenv("CXX", raising=False)
            library = native.library_path()
        library.parent.mkdir(parents=True)
        library.write_bytes(b"\x7fELF")
        return {}
    return {
        "no compiler": {"CXX": "/no/such/compiler"},
        "failing compiler": {"CXX": failing_compiler(tmp_path)},
        "unusable cache": {"TORCH_EXTENSIONS_DIR": "/proc/wnfused"},  # not even root may write there
    }[case]


@pytest.mark.parametrize("case", WITHOUT_NATIVE)
def test_auto_falls_back_to_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    """It warns once, whatever is chosen in between, and gives the same results. An explicit choice raises."""
    said = python(
        """
        given = results()
        with wnfused.backend("torch"):
            results()
        wnfused.backend("auto")
        results()
        try:
            wnfused.backend("native")
        except wnfused.BackendUnavailable as error:
            say(results=given, error=str(error), chosen=wnfused.ops.backends.chosen())
        """,
        tmp_path,
        **without_native(case, tmp_path, monkeypatch),
    )
    reason = WITHOUT_NATIVE[case]
    assert_own_results(said["results"])
    assert len(said["lines"]) == 1, said["lines"]
    level, line = said["lines"][0]
    assert level == "WARNING"
    assert line.startswith("using backend 'torch' for cpu tensors (no native: ")
    assert reason in line and "\n" not in line
    assert said["error"].startswith("backend 'native' cannot run: ")
    assert reason in said["error"]
    assert said["chosen"] == "auto"
    assert "Traceback" not in said["stderr"]


def test_environment_selects_native_although_it_cannot_run(tmp_path: Path) -> None:
    """The choice is checked at the first call, so that a wrong one does not break the import."""
    said = python(
        """
        try:
            results()
        except wnfused.BackendUnavailable as error:
            say(error=str(error))
        """,
        tmp_path,
        WNFUSED_BACKEND="native",
        CXX="/no/such/compiler",
    )
    assert said["error"] == (
        "backend 'native' cannot run on device 'cpu': no C++ compiler found (looked for /no/such/compiler)"
    )
    assert said["lines"] == []


def test_environment_selects_torch(tmp_path: Path) -> None:
    """The native library is neither built nor loaded, and autograd runs in Python."""
    said = python(
        """
        given = results()
        node = wnfused.WNLinear(2, 2)(torch.ones(1, 2)).grad_fn
        say(results=given, chosen=wnfused.ops.backends.chosen(), node=type(node).__name__)
        """,
        tmp_path,
        WNFUSED_BACKEND="torch",
    )
    assert_own_results(said["results"])
    assert said["chosen"] == "torch"
    assert said["node"] == "_DifferentiableBackward"
    assert said["lines"] == []
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("value", ["fast", "triton"])
def test_environment_selects_an_unavailable_backend(tmp_path: Path, value: str) -> None:
    code = """
        try:
            results()
        except wnfused.BackendUnavailable as error:
            say(error=str(error))
        """
    if value == "triton":
        error = python(code, tmp_path, WNFUSED_BACKEND=value, TRITON_INTERPRET="0")["error"]
        assert error.startswith("backend 'triton' cannot run on device 'cpu': CPU tensors need triton's interpreter")
    else:
        with pytest.raises(AssertionError, match="environment variable WNFUSED_BACKEND: backend: unknown name 'fast'"):
            python(code, tmp_path, WNFUSED_BACKEND=value)


def test_auto_logs_its_choice_once(tmp_path: Path) -> None:
    """Also after other choices in between, and with an empty environment variable."""
    said = python(
        """
        given = results()
        results()
        with wnfused.backend("torch"):
            results()
        results()
        say(results=given, chosen=wnfused.ops.backends.chosen())
        """,
        tmp_path,
        WNFUSED_BACKEND="",
        TORCH_EXTENSIONS_DIR=str(cache_root()),
    )
    assert said["lines"] == [["INFO", "using backend 'native' for cpu tensors"]]
    assert said["chosen"] == "auto"
    assert_own_results(said["results"])


def test_import_has_no_side_effects(tmp_path: Path) -> None:
    """No GPU, compiler, file or triton is used, neither at import nor when layers are made, converted and printed."""
    code = """
    import subprocess, sys, torch

    class NoTriton:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] == "triton":
                raise ImportError("triton is not installed here")
    sys.meta_path.insert(0, NoTriton())
    for name in [name for name in sys.modules if name.partition(".")[0] == "triton"]:
        del sys.modules[name]

    def forbidden(*args, **kwargs):
        raise AssertionError("touched")
    for name in ("is_available", "device_count", "current_device", "get_device_capability", "_lazy_init", "init"):
        setattr(torch.cuda, name, forbidden)
    subprocess.Popen.__init__ = forbidden
    torch.ops.load_library = forbidden
    import wnfused
    model = torch.nn.Sequential(wnfused.WNConv1d(3, 4, 3), torch.nn.Flatten(), torch.nn.Linear(24, 5))
    wnfused.apply(model)
    repr(model), model.state_dict()
    touched = sorted(sys.modules)
    wnfused.backend("torch")
    y = model(torch.randn(2, 3, 8))
    y.sum().backward()
    import json
    print(json.dumps({"shape": list(y.shape), "triton": "triton" in touched}))
    """
    environment = {k: v for k, v in os.environ.items() if k != "WNFUSED_BACKEND"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**environment, "TORCH_EXTENSIONS_DIR": str(tmp_path / "cache")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"shape": [2, 5], "triton": False}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_python_autograd_passes_the_same_tests(tmp_path: Path) -> None:
    """Once loaded, the native library's C++ autograd handles CPU tensors on every backend. To test the Python autograd,
    the tests of derivatives, and some of tracing, run again in a process that never loads the library."""
    chosen = "test_autograd or opcheck_forward or compiled_network or autocast"
    files = ["test_autograd.py", "test_autograd_derivatives.py", "test_autograd_transforms.py"]
    files += ["test_opcheck.py", "test_compile.py", "test_autocast.py"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short", "-k", chosen, *files],
        env={**os.environ, "WNFUSED_BACKEND": "torch", "TORCH_EXTENSIONS_DIR": str(tmp_path / "cache")},
        cwd=OPS,
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    assert " passed" in done.stdout and "skipped" not in done.stdout
    assert not (tmp_path / "cache").exists()
