"""Wheel, source distribution and editable install, each used from outside the checkout."""

import json
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest
from setuptools.config.pyprojecttoml import read_configuration

import wnfused
from wnfused.extras import EXTRAS

ROOT = Path(__file__).parent.parent
ROOMS = {"wnfused": ROOT / "wnfused", "wnfused.kernels": ROOT / "kernels", "wnfused.benchmarks": ROOT / "benchmarks"}

USE_IT = """
import pathlib, torch, wnfused, wnfused.benchmarks.layers, wnfused.kernels.cpu, wnfused.kernels.triton
from wnfused.ops.backends import native
wnfused.backend("torch")
y = wnfused.functional.wn_linear(torch.ones(2, 3), torch.ones(4, 3), torch.ones(4, 1))
assert y.shape == (2, 4)
native.library_path()  # reads every C++ source
for module in (wnfused, wnfused.ops, wnfused.kernels, wnfused.kernels.cpu):
    folder = pathlib.Path(module.__file__).parent
    print(folder, len([*folder.glob("*.cpp")]))
"""


def run(*command: object, cwd: Path) -> str:
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def files_of_rooms(pattern: str) -> set[str]:
    """The matching files of the checkout, as paths in the installed package."""
    return {
        (Path(*name.split(".")) / path.relative_to(folder)).as_posix()
        for name, folder in ROOMS.items()
        for path in folder.rglob(pattern)
    }


def names_of(requirements: list[str]) -> set[str]:
    return {re.split(r"[<>=;! ]", line, maxsplit=1)[0] for line in requirements}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("packaging")


@pytest.fixture(scope="module")
def checkout(place: Path) -> Path:
    """A copy of the checkout, so that building neither changes the tree nor uses stale files from it."""
    copy = place / "checkout"
    ignore = shutil.ignore_patterns("__pycache__")
    for folder in ROOMS.values():
        shutil.copytree(folder, copy / folder.name, ignore=ignore)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    return copy


@pytest.fixture(scope="module")
def sdist(place: Path, checkout: Path) -> Path:
    make = f"from setuptools.build_meta import build_sdist; build_sdist({str(place)!r})"
    run(sys.executable, "-c", make, cwd=checkout)
    (archive,) = place.glob("wnfused-*.tar.gz")
    return archive


@pytest.fixture(scope="module")
def wheel(place: Path, sdist: Path) -> Path:
    """Built from the source distribution, which shows that both are complete."""
    with tarfile.open(sdist) as archive:
        archive.extractall(place / "unpacked", filter="data")
    (source,) = (place / "unpacked").iterdir()
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps", "--no-index")
    run(*pip, "--wheel-dir", place, source, cwd=place)
    (built,) = place.glob("wnfused-*.whl")
    return built


def fresh_environment(folder: Path) -> Path:
    """A new virtual environment that sees this one's torch, but not its editable wnfused; returns its Python."""
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
    python = folder / "bin" / "python"
    packages = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip()
    (Path(packages) / "parent.pth").write_text(sysconfig.get_path("purelib"))
    return python


def install(python: Path, *what: object) -> None:
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index")
    run(*pip, "--ignore-installed", "--no-build-isolation", *what, cwd=python.parent)


def test_every_folder_with_code_is_a_listed_package():
    listed = read_configuration(ROOT / "pyproject.toml", expand=False)["tool"]["setuptools"]["packages"]
    folders = {str(Path(file).parent).replace("/", ".") for file in files_of_rooms("*.py")}
    assert sorted(listed) == sorted(folders)


def test_sdist_and_wheel_contain_every_file_of_the_package(sdist, wheel):
    kinds = ("*.py", "*.cpp", "*.h", "*.css", "*.html", "*.toml")
    needed = set().union(*map(files_of_rooms, kinds)) | {"wnfused/py.typed"}
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert held == needed
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[-1] for name in archive.getnames()}
    assert {re.sub("^wnfused/(kernels|benchmarks)/", r"\1/", name) for name in needed} <= names
    assert {"pyproject.toml", "README.md", "LICENSE"} <= names


def test_wheel_metadata(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = archive.read(name).decode()
    assert f"\nVersion: {wnfused.__version__}\n" in metadata
    assert "\nLicense-Expression: MIT\n" in metadata
    required = [line for line in re.findall("Requires-Dist: (.*)", metadata) if "extra ==" not in line]
    assert names_of(required) == {"numpy", "torch", "triton"}


@pytest.mark.parametrize("how", ["wheel", "editable"])
def test_installed_package_works_outside_the_checkout(how, place, checkout, request):
    python = fresh_environment(place / how)
    if how == "wheel":
        install(python, request.getfixturevalue("wheel"))
        home = place / how
    else:
        install(python, "--editable", checkout)
        home = checkout
    found = [line.rsplit(" ", 1) for line in run(python, "-c", USE_IT, cwd=place).splitlines()]
    assert all(Path(folder).is_relative_to(home) for folder, _ in found)
    assert [sources != "0" for _, sources in found] == [False, True, False, True]
    assert run(python.parent / "wnfused", "--version", cwd=place).strip() == wnfused.__version__


def test_nothing_installs_torch_without_its_pin():
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert any(re.fullmatch(r"torch==\d+\.\d+\.\d+", line) for line in pins)
    assert all(line.startswith("#") or "==" in line for line in pins)
    for name in ("Makefile", "README.md", "CONTRIBUTING.md", ".ci/run"):
        for line in (ROOT / name).read_text(encoding="utf-8").splitlines():
            if "pip install" in line:
                assert "-c constraints.txt" in line, f"{name}: {line.strip()}"


def test_each_optional_package_is_in_the_extra_that_messages_name():
    wanted = read_configuration(ROOT / "pyproject.toml", expand=False)["project"]["optional-dependencies"]
    for package, extra in EXTRAS.values():
        assert package in names_of(wanted[extra])
    assert {package for package, extra in EXTRAS.values() if extra == "train"} == names_of(wanted["train"])


def test_every_dependency_is_pinned():
    project = read_configuration(ROOT / "pyproject.toml", expand=False)["project"]
    wanted = project["dependencies"] + [name for extra in project["optional-dependencies"].values() for name in extra]
    assert names_of(wanted) <= names_of((ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines())


def test_the_install_line_of_the_readme_installs_what_make_train_needs():
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^    (pip install .*)$", page, flags=re.MULTILINE)
    assert "make train" in page
    extras = re.fullmatch(r'pip install -c constraints\.txt "\.\[([\w,]+)\]"', line)
    assert extras
    wanted = read_configuration(ROOT / "pyproject.toml", expand=False)["project"]["optional-dependencies"]
    assert {"scikit-learn", "matplotlib"} <= names_of([name for e in extras[1].split(",") for name in wanted[e]])


def test_readme_examples_run_one_after_the_other():
    examples = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(examples) == 2
    run(sys.executable, "-c", "".join(examples), cwd=ROOT)


def test_api_page_names_the_whole_public_api():
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    table = page[page.index("| name |") : page.index("## Layers")]
    named = set(re.findall(r"`(\w+)(?:\(\w+\))?`", "".join(re.findall(r"^\|(.*?)\|", table, flags=re.MULTILINE))))
    assert named == set(wnfused.__all__)
    assert all(f"`{name}`" in table for name in wnfused.functional.__all__)


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", *(f"docs/{p.name}" for p in ROOT.glob("docs/*.md"))])
def test_links_between_pages_are_valid(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#\s]+)", text) if "://" not in link]
    missing = [link for link in links if not (ROOT / page).parent.joinpath(link).exists()]
    assert not missing
    if page == "README.md":
        assert len(links) > 15


def test_readme_speed_matches_the_committed_results():
    """All figures match, and the worst row of layers and networks is on the front page."""
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    measured: dict[str, dict[str, dict[str, float]]] = {}
    for file in ("layers.json", "networks.json"):
        for row in json.loads((ROOT / "benchmarks/results" / file).read_text(encoding="utf-8"))["results"]:
            if row["mode"] == "step":
                measured.setdefault(row["case"], {})[row["peer"]] = row
    worst = max(measured, key=lambda case: measured[case]["wnfused"]["relative"])
    shown = re.findall(r"^\| (\w[^|]*?) \| (.*) \|$", page[page.index("| layer or network") :], flags=re.MULTILINE)[1:]
    assert len(shown) == 6 and shown[-1][0] == f"{worst} (the worst row)"
    assert any("WRN" in name for name, _ in shown) and any("HiFi-GAN" in name for name, _ in shown)
    for name, cells in shown:
        row = measured[name.removesuffix(" (the worst row)")]
        ratios = [f"{row[peer]['relative']:.2f}" for peer in ("torch hook", "torch parametrized", "wnfused")]
        expected = [f"{row['plain']['microseconds'] / 1e3:.3g} ms", *ratios]
        assert cells.replace("*", "").split(" | ") == expected, name
