"""The commands and links of the pages about experiments lead somewhere, and committed runs are found again."""

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.support.experiments import Listing
from wnfused import experiments
from wnfused.experiments import catalog
from wnfused.experiments.jobs import Job, Outcome
from wnfused.experiments.ledger import Ledger
from wnfused.experiments.sweep import Sweep

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


RESULTS = sorted(file.parent for file in (ROOT / "docs/results").glob("*/runs-1.jsonl"))


class Asked(Ledger):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.asked: set[str] = set()

    def get(self, job: Job) -> Outcome | None:
        self.asked.add(job.key)
        return super().get(job)


@pytest.mark.parametrize("results", RESULTS, ids=lambda path: path.name)
def test_committed_runs_are_found_again(results: Path, tmp_path: Path) -> None:
    """A finished experiment has nothing left to run; an unfinished one continues from its committed jobs."""
    if results.name == "rl":
        pytest.importorskip("gymnasium")
    shutil.copytree(results, tmp_path / "copy")
    lines = [line for file in results.glob("runs-*.jsonl") for line in file.read_text(encoding="utf-8").splitlines()]
    committed = {entry["key"]: Job(entry["function"], entry["settings"]).key for entry in map(json.loads, lines)}
    assert committed and all(key == made for key, made in committed.items())
    scale = json.loads((results / "about.json").read_text(encoding="utf-8"))["scale"]
    experiment, ledger, executor = catalog.get(results.name), Asked(tmp_path / "copy"), Listing(accuracy=0.0)
    experiment.run(experiment.scales[scale], Sweep(ledger, executor))
    if (results / "README.md").exists():
        assert not executor.jobs, f"{results.name} is finished, but {len(executor.jobs)} of its jobs are not committed"
    # Some may be of settings that were changed since.
    assert len(ledger.asked & committed.keys()) > 0.9 * len(committed)
