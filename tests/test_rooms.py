"""The rooms of the package and what each must not know: CONTRIBUTING.md's table, checked against every import."""

import ast
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()

# The words of the table in code: the modules and names that each stands for.
WORDS = {
    "autograd": (
        "torch.autograd",
        "torch.no_grad",
        "torch.enable_grad",
        "torch.set_grad_enabled",
        "torch.inference_mode",
    ),
    "nn.Module": ("torch.nn",),
    "kernels": ("wnfused.kernels",),
    "ops": ("wnfused.ops",),
    "backends": ("wnfused.ops.backends", "wnfused.kernels"),
    "functional": ("wnfused.functional",),
    "layers": ("wnfused.nn", "wnfused.surgery"),
    "nn": ("wnfused.nn",),
    "models": ("wnfused.models",),
    "training": ("wnfused.train",),
    "train": ("wnfused.train",),
    "experiments": ("wnfused.experiments",),
    "cli": ("wnfused.cli",),
}
STATELESS = "torch.nn.functional"  # functions of tensors: kernels may call them

MUST_NOT_KNOW = {
    "kernels/cpu/": {"autograd", "nn.Module"},
    "kernels/triton/": {"autograd", "nn.Module"},
    "wnfused/ops/": {"layers"},
    "wnfused/functional.py": {"backends"},
    "wnfused/checks.py": {"backends"},
    "wnfused/geometry.py": {"backends"},
    "wnfused/nn/": {"kernels"},
    "wnfused/surgery/": {"kernels"},
    "wnfused/init/": {"training"},
    "wnfused/models/": {"training"},
    "wnfused/diagnostics/": {"training"},
    "wnfused/unchanged.py": {"layers"},
    "wnfused/model_io.py": {"layers"},
    "wnfused/files.py": {"layers"},
    "wnfused/extras.py": {"layers"},
    "wnfused/suggestions.py": {"layers"},
    "wnfused/formatting.py": {"layers"},
    "wnfused/plotting.py": {"layers"},
    "wnfused/data/": {"models", "training"},
    "wnfused/train/": {"experiments"},
    "wnfused/experiments/": {"cli"},
    "wnfused/report/": {"experiments", "cli"},
    "wnfused/cli/": set(),
}
FLOW = ["cli", "experiments", "train", "models", "nn", "functional", "ops", "kernels"]

# Modules outside the rooms: the public names, `python -m wnfused`, and the docstring of the kernels.
DOORS = {"wnfused/__init__.py", "wnfused/__main__.py", "kernels/__init__.py"}
MODULES = {
    path.relative_to(ROOT).as_posix(): path.read_text()
    for folder in ("wnfused", "kernels")
    for path in sorted((ROOT / folder).rglob("*.py"))
}


def dotted(path: str) -> str:
    """The import name of a file or room of the checkout: ``kernels/cpu/`` is ``wnfused.kernels.cpu``."""
    name = path.removesuffix(".py").removesuffix("/").removesuffix("/__init__").replace("/", ".")
    return f"wnfused.{name}" if name.split(".")[0] == "kernels" else name


def is_under(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(f"{prefix}.")


def names_known(path: str, source: str) -> Iterator[str]:
    """The full names of all imports of a module, and of the attributes that it reads from them.

    Imports inside functions count: they delay the loading but are still a dependency. So do imports under
    ``TYPE_CHECKING``: a signature with another room's type depends on that room.
    """
    tree = ast.parse(source)
    package = dotted(path).split(".") if path.endswith("__init__.py") else dotted(path).split(".")[:-1]
    bound = {}  # the name in this file -> the full name
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name
                bound[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else alias.name.split(".")[0]
                )
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                yield f"{module}.{alias.name}"
                bound[alias.asname or alias.name] = f"{module}.{alias.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            attributes: list[str] = []
            inner: ast.expr = node
            while isinstance(inner, ast.Attribute):
                attributes.insert(0, inner.attr)
                inner = inner.value
            if isinstance(inner, ast.Name) and inner.id in bound:
                yield ".".join([bound[inner.id], *attributes])
        elif isinstance(node, ast.Call) and "import_module" in ast.unparse(node.func):
            yield from (
                part.value for part in node.args if isinstance(part, ast.Constant) and isinstance(part.value, str)
            )


def room_of(name: str) -> str | None:
    """The room that contains a full name; None for modules outside the rooms and for other projects."""
    return next((room for room in MUST_NOT_KNOW if is_under(name, dotted(room))), None)


def forbidden(path: str, source: str, words: set[str]) -> list[str]:
    """The imported names of a module that ``words`` forbid."""
    prefixes = [prefix for word in words for prefix in WORDS[word]]
    return sorted(
        f"{path}: {name}"
        for name in set(names_known(path, source))
        if any(is_under(name, prefix) for prefix in prefixes) and not is_under(name, STATELESS)
    )


def rows_of_contributing() -> dict[str, set[str]]:
    """CONTRIBUTING's table by path; ``a/b.py``, ``c.py`` in one row stand for a/b.py and a/c.py."""
    table = CONTRIBUTING.split("| room | holds | must not know |")[1].split("\n\n")[0]
    rows = {}
    for line in table.splitlines()[2:]:
        rooms, _, words = (cell.strip() for cell in line.strip().strip("|").split(" |"))
        paths = re.findall(r"`([^`]+)`", rooms)
        folder = paths[0].rpartition("/")[0]
        for path in paths:
            where = path if "/" in path else f"{folder}/{path}"
            rows[where] = {word.strip().strip("`") for word in words.split(",")} - {""}
    return rows


def test_the_table_matches_CONTRIBUTING() -> None:
    package = {
        path: words for path, words in rows_of_contributing().items() if path.startswith(("wnfused/", "kernels/"))
    }
    assert package == MUST_NOT_KNOW


def test_the_order_of_the_rooms_matches_CONTRIBUTING() -> None:
    sentence = re.search(r"Data flows one way: ([^.]+)\.", CONTRIBUTING)
    assert sentence
    assert re.split(r"\s*→\s*", sentence[1]) == FLOW


def test_every_module_is_in_a_room() -> None:
    assert set(MODULES) >= DOORS
    assert [path for path in MODULES if path not in DOORS and room_of(dotted(path)) is None] == []


def test_every_room_has_a_module() -> None:
    rooms = {room_of(dotted(path)) for path in MODULES}
    assert [room for room in MUST_NOT_KNOW if room not in rooms] == []


@pytest.mark.parametrize("room", MUST_NOT_KNOW)
def test_no_module_imports_what_its_room_must_not_know(room: str) -> None:
    modules = {path: source for path, source in MODULES.items() if room_of(dotted(path)) == room}
    assert [name for path, source in modules.items() for name in forbidden(path, source, MUST_NOT_KNOW[room])] == []


@pytest.mark.parametrize("word", FLOW)
def test_data_flows_one_way(word: str) -> None:
    before = set(FLOW[: FLOW.index(word)])
    modules = {
        path: source
        for path, source in MODULES.items()
        if any(is_under(dotted(path), prefix) for prefix in WORDS[word])
    }
    assert modules
    assert [name for path, source in modules.items() for name in forbidden(path, source, before)] == []


def test_no_circular_imports_between_rooms() -> None:
    """Also among the rooms that the chain does not name (initialization, data, reports, …).

    The package itself counts as a room: a room that ``import wnfused`` loads must not use ``wnfused.…`` in turn.
    """
    uses: dict[str, set[str]] = {}
    for path, source in MODULES.items():
        here = room_of(dotted(path)) or dotted(path)
        of_wnfused = {name for name in names_known(path, source) if is_under(name, "wnfused")}
        uses.setdefault(here, set()).update({room_of(name) or "wnfused" for name in of_wnfused} - {here})
    try:
        TopologicalSorter(uses).prepare()
    except CycleError as error:
        pytest.fail(" ← ".join(error.args[1]))


def test_the_package_imports_nothing_from_outside_it() -> None:
    """The installed package has no tests or examples; its kernels and benchmarks are wnfused.kernels and so on."""
    outside = ("tests", "benchmarks", "examples", "kernels")
    known = [(path, name) for path, source in MODULES.items() for name in set(names_known(path, source))]
    assert [found for found in known if found[1].split(".")[0] in outside] == []


def test_no_comments_for_the_type_checker_in_files_that_it_does_not_check() -> None:
    comment = "# type:" + " ignore"
    assert [str(path) for path in (ROOT / "tests").rglob("*.py") if comment in path.read_text()] == []


def test_the_native_kernels_include_no_autograd() -> None:
    sources = [path for path in (ROOT / "kernels/cpu").iterdir() if path.suffix in (".cpp", ".h")]
    assert sources
    for path in sources:
        assert not re.search(
            r"torch/csrc/autograd|torch/(nn|all|extension)\.h|torch::(autograd|nn)\b", path.read_text()
        ), path


@pytest.mark.parametrize(
    ("source", "known"),
    [
        ("import wnfused.train.loop", "wnfused.train.loop"),
        ("import wnfused\nx = wnfused.train.loop.Trainer", "wnfused.train.loop.Trainer"),
        ("from wnfused import train as t\nx = t.run(1).y", "wnfused.train.run"),
        ("from ..train import loop", "wnfused.train.loop"),
        ("from . import gains", "wnfused.init.gains"),
        ("def f():\n    from wnfused.train import loop", "wnfused.train.loop"),
        ("if TYPE_CHECKING:\n    from wnfused.train import loop", "wnfused.train.loop"),
        ("from importlib import import_module\nimport_module('wnfused.train')", "wnfused.train"),
    ],
)
def test_an_import_is_found(source: str, known: str) -> None:
    assert known in set(names_known("wnfused/init/roles.py", source))


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("kernels/cpu/build.py", "from torch import nn\nclass Layer(nn.Module): ..."),
        ("kernels/triton/rows.py", "import torch\nwith torch.no_grad(): ..."),
        ("wnfused/functional.py", "from wnfused import ops\nops.backends.native"),
        ("wnfused/nn/base.py", "from wnfused.kernels.triton import rows"),
    ],
)
def test_forbidden_imports_are_reported(path: str, source: str) -> None:
    room = room_of(dotted(path))
    assert room
    assert forbidden(path, source, MUST_NOT_KNOW[room])
    assert forbidden(path, "import torch.nn.functional as F\nF.linear", MUST_NOT_KNOW[room]) == []
