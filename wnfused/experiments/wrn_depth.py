"""Figure 3, right: wide residual networks of 10 to 10,000 layers, from five initializations."""

from wnfused.experiments.catalog import Experiment
from wnfused.experiments.depth_sweep import SEARCHED, Depth, Setting, findings, measure
from wnfused.experiments.results import Findings
from wnfused.experiments.sweep import Sweep

INITS = ("robust", "norm_gain", "torch_default", "data_dependent", "hanin")
CIFAR = {"data": "cifar10", "normalization": "authors", "validation": 0.0, "weight_decay": 5e-4, "epochs": 1}
RATES = (1e-7, 1e-6, 1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 7e-1)


def _layers(blocks: int) -> int:
    return 6 * blocks + 4


def _depth(
    blocks: int, search_steps: int, stem: str = "", short_tried: int = 0, seeds: int | None = None, **changes: object
) -> Depth:
    return Depth(_layers(blocks), f"wrn-{_layers(blocks)}-1{stem}", search_steps, changes, short_tried, seeds)


SMOKE = Setting(
    {"data": "digits", "validation": 0.0, "batch_size": 32, "epochs": 1, "image_size": 8, "weight_decay": 5e-4},
    [_depth(1, 8, max_steps=30), _depth(8, 8, max_steps=30)],
    ("robust", "norm_gain"),
    (1e-3, 1e-2, 1e-1),
    seeds=2,
    deviations=["Digits instead of CIFAR-10, 30 steps, two depths: shows that the command works, nothing else."],
)
SMALL = Setting(
    {**CIFAR, "image_size": 16},
    [
        _depth(1, 100, short_tried=5),
        _depth(16, 40, short_tried=5, max_steps=120),
        _depth(166, 20, "-stem2", short_tried=5, max_steps=60, batch_size=32),
        _depth(1666, 5, "-stem2", short_tried=3, seeds=1, max_steps=15, batch_size=16),
    ],
    INITS,
    RATES,
    seeds=3,
    deviations=[
        "CIFAR-10 from a JPEG copy; images averaged down to 16 × 16; 3 seeds instead of 5.",
        "100 layers: 120 steps of 128 images; 1000 layers: 60 steps of 32 images.",
        "10,000 layers: 15 steps of 16 images, one seed, which shows whether a network starts and nothing more.",
        "From 1000 layers on a stem of stride 2, as the authors' code has for very deep networks.",
    ],
)
PAPER = Setting(
    CIFAR,
    [_depth(1, 100), _depth(16, 100), _depth(166, 100), _depth(1666, 100, "-stem2")],
    INITS,
    RATES,
    seeds=5,
    deviations=[SEARCHED],
)


PAPER_SAYS = """The paper trains WRNs with k = 1 for one epoch. It reports about the same accuracy at every depth for
the proposed initialization; PyTorch's default (orthogonal weights, g = ‖v‖) diverges at most depths, the data-dependent
one needs small learning rates, and stage-wise Hanin rates ten times smaller."""


def run(setting: Setting, sweep: Sweep) -> Findings:
    return findings(setting, measure(setting, sweep), [PAPER_SAYS])


EXPERIMENT = Experiment(
    "WRN: accuracy and learning rate over depth (figure 3, right)",
    "figure 3, right: WRNs of 10 to 10,000 layers, accuracy after one epoch and largest stable learning rate",
    {"smoke": SMOKE, "small": SMALL, "paper": PAPER},
    run,
)
