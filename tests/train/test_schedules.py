"""Learning rates, step by step."""

import re
from itertools import pairwise
from pathlib import Path

import pytest

from wnfused.train import Config
from wnfused.train.schedules import NAMES, learning_rate, milestones


@pytest.mark.parametrize(
    ("schedule", "epochs", "wanted"),
    [
        ("constant", 7, (1.0, ())),
        ("third", 500, (0.1, (166,))),
        ("thirds", 150, (0.1, (50, 100))),
        ("halves", 200, (0.1, (100, 150))),
        ("resnet", 182, (0.1, (91, 136))),
        ("resnet", 20, (0.1, (10, 15))),
        ("wrn", 200, (0.2, (60, 120, 160))),
        ("halves", 1, (0.1, (1, 2))),  # a run of one epoch is not decayed from its start
        ("wrn", 2, (0.2, (1, 2, 3))),
        ("0.5@3,4", 10, (0.5, (3, 4))),
    ],
)
def test_milestones(schedule, epochs, wanted):
    assert milestones(schedule, epochs) == wanted


SHORT = {
    ("resnet", 4): [1, 1, 0.1, 0.01],
    ("wrn", 3): [1, 0.2, 0.04],
    ("thirds", 2): [1, 0.1],
    ("halves", 3): [1, 1, 0.1],
    ("third", 2): [1, 0.1],
}


@pytest.mark.parametrize(("name", "epochs"), SHORT)
def test_short_runs_have_the_rates_of_the_authors_code(name, epochs):
    config = Config(lr=1.0, epochs=epochs, schedule=name)
    assert [learning_rate(config, epoch, 1) for epoch in range(epochs)] == pytest.approx(SHORT[name, epochs])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("epochs", [*range(1, 40), 100, 181, 183, 199, 201, 1000])
def test_no_phase_is_skipped_and_decays_come_when_they_are_due(name, epochs):
    """The authors' rule, epoch by epoch: a decay counts in the epochs that start at or after its mark."""
    factor, marks, length = NAMES[name]
    config = Config(lr=1.0, epochs=epochs, schedule=name)
    rates = [learning_rate(config, epoch, 1) for epoch in range(epochs)]
    assert rates == pytest.approx([factor ** sum(epoch * length >= mark * epochs for mark in marks)
                                   for epoch in range(epochs)])  # fmt: skip
    assert rates[0] == 1.0
    assert all(later == pytest.approx(rate) or later == pytest.approx(rate * factor)
               for rate, later in pairwise(rates))  # fmt: skip
    found = milestones(name, epochs)[1]
    assert len(set(found)) == len(found) == len(marks)


def test_the_table_in_the_docs():
    lines = (Path(__file__).parents[2] / "docs" / "training.md").read_text(encoding="utf-8").splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("| epochs | `thirds`"))
    names = re.findall(r"`(\w+)`", lines[start])
    rows = [line.strip("| ").split(" | ") for line in lines[start + 2 : start + 7]]
    for epochs, *cells in rows:
        for name, cell in zip(names, cells, strict=True):
            config = Config(lr=1.0, epochs=int(epochs), schedule=name)
            rates = [learning_rate(config, epoch, 1) for epoch in range(int(epochs))]
            assert [float(rate) for rate in cell.split(",")] == pytest.approx(rates), (name, epochs)


def test_decay_happens_after_so_many_epochs():
    config = Config(lr=0.1, epochs=200, schedule="wrn")
    rates = [learning_rate(config, step, 10) for step in (0, 599, 600, 1199, 1200, 1600, 1999)]
    assert rates == pytest.approx([0.1, 0.1, 0.02, 0.02, 0.004, 0.0008, 0.0008])


@pytest.mark.parametrize(
    ("warmup", "wanted"),
    [
        ("linear", [0.1 + 0.9 * a / 5 for a in (1, 2, 3, 4, 5)]),
        ("quadratic", [0.1 + 0.9 * (a / 5) ** 2 for a in (1, 2, 3, 4, 5)]),  # lr0 + α² (lr − lr0)
        ("constant", [0.1] * 5),
    ],
)
def test_warmup_is_per_batch(warmup, wanted):
    config = Config(lr=1.0, warmup=warmup, warmup_epochs=0.5, warmup_lr=0.1, epochs=3)
    assert [learning_rate(config, step, 10) for step in range(6)] == pytest.approx([*wanted, 1.0])
