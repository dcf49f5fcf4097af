"""Figure 3, left: plain convolutional networks, and what zero padding does to them."""

from collections.abc import Mapping

from wnfused.experiments.catalog import Experiment
from wnfused.experiments.depth_sweep import SEARCHED, Depth, Setting, findings, measure, several
from wnfused.experiments.results import Findings
from wnfused.experiments.sweep import Sweep

INITS = ("robust", "robust_padding", "norm_gain", "torch_default", "data_dependent")
RATES = (1e-6, 1e-5, 1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1)
CIFAR = {"data": "cifar10", "normalization": "authors", "validation": 0.0, "momentum": 0.0, "batch_size": 100}


def _depth(layers: int, channels: int, search_steps: int, short_tried: int = 0, **changes: object) -> Depth:
    return Depth(layers, f"cnn-{layers}-{channels}", search_steps, changes, short_tried)


SMOKE = Setting(
    {"data": "digits", "validation": 0.0, "batch_size": 32, "epochs": 1, "weight_decay": 1e-3, "momentum": 0.0},
    [_depth(5, 8, 8, max_steps=20), _depth(20, 8, 8, max_steps=20)],
    ("robust", "robust_padding"),
    (1e-3, 1e-2, 1e-1),
    seeds=2,
    deviations=["Digits instead of CIFAR-10, 8 channels, 20 steps: shows that the command works, nothing else."],
)
SMALL = Setting(
    {**CIFAR, "weight_decay": 1e-3, "epochs": 1},
    [
        _depth(5, 64, 100, short_tried=5),
        _depth(25, 64, 60, short_tried=5, max_steps=150),
        _depth(100, 64, 40, short_tried=5, max_steps=120, batch_size=50),
    ],
    INITS,
    RATES,
    seeds=3,
    deviations=[
        "CIFAR-10 from a JPEG copy; 64 channels instead of 512.",
        "One epoch instead of 500; 25 layers: 150 steps; 100 layers: 120 steps of 50 images.",
        "Weight decay 1e-3 only, constant learning rate.",
        '`padding="aware"` divides each gain by what zero padding takes; the paper has no such term.',
    ],
)
PAPER = {
    f"weight decay {decay:g}": Setting(
        {**CIFAR, "weight_decay": decay, "epochs": 500, "schedule": "third", "validation": 0.1},
        [_depth(5, 512, 500), _depth(25, 512, 500), _depth(100, 512, 500)],
        INITS,
        RATES,
        seeds=5,
        deviations=[SEARCHED, "The paper has 1e-2, and 1e-3 with 100 layers."],
    )
    for decay in (1e-3, 1e-4)
}


PAPER_SAYS = """The paper finds the trend of its multilayer perceptrons again: the deeper the network, the more the
proposed initialization is ahead. Zero padding shrinks the signal of deep plain networks, which the derivation does not
know: `robust_(…, padding='aware')` corrects it."""


def run(setting: Setting | Mapping[str, Setting], sweep: Sweep) -> Findings:
    if not isinstance(setting, Setting):
        return several(setting, sweep, [PAPER_SAYS])
    return findings(setting, measure(setting, sweep), [PAPER_SAYS])


EXPERIMENT = Experiment(
    "Plain CNN: accuracy and learning rate over depth (figure 3, left)",
    "figure 3, left: plain CNNs of 5 to 100 layers, with and without the correction for zero padding",
    {"smoke": SMOKE, "small": SMALL, "paper": PAPER},
    run,
)
