"""Figure 2: multilayer perceptrons of 2 to 200 hidden layers."""

from collections.abc import Mapping

from wnfused.experiments.catalog import Experiment
from wnfused.experiments.depth_sweep import SEARCHED, Depth, Setting, findings, measure, several
from wnfused.experiments.results import Findings
from wnfused.experiments.sweep import Sweep

INITS = ("robust", "robust_he", "norm_gain", "torch_default", "data_dependent")
RATES = (1e-6, 1e-5, 1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0)
MNIST = {
    "normalization": "authors",
    "validation": 0.0,
    "weight_decay": 1e-4,
    "batch_size": 128,
    "crop": 0,
    "flip": False,
}


def _depth(layers: int, width: int, search_steps: int, short_tried: int = 0, **changes: object) -> Depth:
    return Depth(layers, f"mlp-{layers}-{width}", search_steps, changes, short_tried)


SMOKE = Setting(
    {"data": "digits", "validation": 0.0, "batch_size": 32, "epochs": 1, "image_size": 8, "weight_decay": 1e-4},
    [_depth(2, 32, 10, max_steps=30), _depth(40, 32, 10, max_steps=30)],
    ("robust", "data_dependent"),
    (1e-3, 1e-2, 1e-1),
    seeds=2,
    deviations=["Digits instead of MNIST, width 32, 30 steps: shows that the command works, nothing else."],
)
SMALL = Setting(
    {**MNIST, "data": "fashion-mnist", "epochs": 1},
    [
        _depth(2, 512, 150),
        _depth(10, 512, 150),
        _depth(20, 512, 150),
        _depth(100, 512, 100, short_tried=6, max_steps=200),
        _depth(200, 512, 50, short_tried=6, max_steps=100),
    ],
    INITS,
    RATES,
    seeds=3,
    deviations=[
        "Fashion-MNIST instead of MNIST, normalized as the authors normalize MNIST: (x − 0.5) / 1.",
        "One epoch instead of 150, width 512 only; 100 layers have 200 steps, 200 layers 100.",
        "The learning rate is constant: the paper's first decay comes after 50 epochs.",
    ],
)
PAPER = {
    f"width {width}": Setting(
        {**MNIST, "data": "mnist", "validation": 0.1, "epochs": 150, "schedule": "thirds"},
        [_depth(layers, width, 468) for layers in (2, 5, 10, 20, 100, 200)],
        INITS,
        (1e-5, 1e-4, 1e-3, 1e-2, 1e-1),
        seeds=5,
        deviations=[SEARCHED],
    )
    for width in (512, 1024)
}


PAPER_SAYS = """In the paper the data-dependent initialization trains up to 20 hidden layers and diverges beyond at any
learning rate; the proposed one trains 200 layers, with rates up to ten times larger."""


def run(setting: Setting | Mapping[str, Setting], sweep: Sweep) -> Findings:
    if not isinstance(setting, Setting):
        return several(setting, sweep, [PAPER_SAYS])
    return findings(setting, measure(setting, sweep), [PAPER_SAYS])


EXPERIMENT = Experiment(
    "MLP: accuracy and learning rate over depth (figure 2)",
    "figure 2: multilayer perceptrons of 2 to 200 layers, which initialization trains which",
    {"smoke": SMOKE, "small": SMALL, "paper": PAPER},
    run,
)
