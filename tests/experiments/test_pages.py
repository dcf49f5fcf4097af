"""The commands that the pages about experiments name exist, and so do the experiments' files that they link to."""

import re
from pathlib import Path

import pytest

from wnfused import experiments
from wnfused.experiments import catalog

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "docs/experiments.md", *sorted((ROOT / "docs/results").rglob("README.md"))]
COMMAND = re.compile(r"wnfused experiment ([a-z][a-z-]*)(?: --scale ([a-z]+))?")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_exist(page: Path) -> None:
    for name, scale in COMMAND.findall(page.read_text(encoding="utf-8")):
        assert name in (*experiments.NAMES, "list"), f"{page}: no experiment {name!r}"
        assert not scale or scale in catalog.get(name).scales, f"{page}: {name} has no scale {scale!r}"


def test_the_page_names_every_experiment() -> None:
    table = re.findall(r"^\| `([a-z-]+)` \|", (ROOT / "docs/experiments.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert tuple(table) == experiments.NAMES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []
