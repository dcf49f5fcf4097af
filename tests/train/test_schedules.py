"""Learning rates, step by step."""

import pytest

from wnfused.train import Config
from wnfused.train.schedules import learning_rate, milestones


@pytest.mark.parametrize(
    ("schedule", "epochs", "wanted"),
    [
        ("constant", 7, (1.0, ())),
        ("third", 500, (0.1, (166,))),
        ("thirds", 150, (0.1, (50, 100))),
        ("halves", 200, (0.1, (100, 150))),
        ("resnet", 182, (0.1, (91, 136))),
        ("resnet", 20, (0.1, (10, 14))),
        ("wrn", 200, (0.2, (60, 120, 160))),
        ("halves", 1, (0.1, (1, 1))),  # a run of one epoch is not decayed from its start
        ("0.5@3,4", 10, (0.5, (3, 4))),
    ],
)
def test_milestones(schedule, epochs, wanted):
    assert milestones(schedule, epochs) == wanted


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
