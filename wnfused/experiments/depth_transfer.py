"""Beyond the paper: depth and learning rate on equal terms, beside other ways to train deep residual networks."""

from wnfused.experiments.catalog import Experiment
from wnfused.experiments.depth_sweep import Depth, Setting, findings, measure
from wnfused.experiments.jobs import Outcome
from wnfused.experiments.results import Findings
from wnfused.experiments.search import survived
from wnfused.experiments.sweep import Sweep
from wnfused.experiments.wrn_depth import CIFAR

METHODS = ("robust", "norm_gain", "torch_default", "batch", "fixup", "skip_init", "scaled_ws")
RATES = (1e-6, 1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0, 3.0)
RISE = 1.1  # of the loss, which batches alone do not explain
WHOLE = 0  # steps of short runs: none. They would end before the branches of Fixup and SkipInit have grown from 0.


def stable(outcome: Outcome) -> bool:
    """No loss is NaN or infinite, and the last tenth of the losses is not above the first one.

    NaN alone, the paper's rule, says nothing about batch norm, whose runs fail with finite losses.
    """
    return survived(outcome) and outcome["losses"][-1] <= RISE * outcome["losses"][0]


def _depth(blocks: int, search_steps: int, stem: str = "", **changes: object) -> Depth:
    layers = 6 * blocks + 4
    return Depth(layers, f"wrn-{layers}-1{stem}", search_steps, changes)


EQUAL = [
    "Not in the paper. Every method has the same optimizer, batches and learning rate, for all of its parameters.",
    "Fixup's authors divide the learning rate of scalars by 10. NFNets also clip gradients and use SkipInit.",
    "Every method has the paper's blocks, without an activation after the sum.",
]
SMOKE = Setting(
    {"data": "digits", "validation": 0.0, "batch_size": 32, "epochs": 1, "image_size": 8, "weight_decay": 5e-4},
    [_depth(1, 8, max_steps=20), _depth(4, 8, max_steps=20)],
    METHODS,
    (1e-3, 1e-2, 1e-1),
    seeds=2,
    deviations=["Digits, 20 steps, two depths: shows that the command works, nothing else.", *EQUAL],
    stable=stable,
)
SMALL = Setting(
    {**CIFAR, "image_size": 16, "train_images": 5000, "batch_size": 32, "max_steps": 60},
    [_depth(blocks, WHOLE, "-stem2") for blocks in (1, 6, 16, 166)],
    METHODS,
    RATES,
    seeds=3,
    deviations=[
        "CIFAR-10 from a JPEG copy; images averaged down to 16 × 16; a stem of stride 2.",
        "60 steps of 32 images, from the first 5000; accuracy on the first 1000 test images.",
        *EQUAL,
    ],
    stable=stable,
    tried=3,
    test=1000,
)
PAPER = Setting(
    CIFAR,
    [_depth(blocks, 100) for blocks in (1, 6, 16, 166)],
    METHODS,
    RATES,
    seeds=5,
    deviations=EQUAL,
    stable=stable,
)


ABOUT = """The WRN of figure 3 (k = 1) from the proposed initialization of weight norm, from both defaults, with batch
norm, and with three methods for plain layers: Fixup, SkipInit (ReZero) and scaled weight standardization. A learning
rate is stable if no loss of a run is NaN or infinite and the loss has not risen by its end. The accuracy is that
after equally many steps."""


def run(setting: Setting, sweep: Sweep) -> Findings:
    return findings(setting, measure(setting, sweep), [ABOUT])


EXPERIMENT = Experiment(
    "Depth and learning rate: weight norm beside Fixup, SkipInit, scaled weight standardization and batch norm",
    "beyond the paper: WRNs of 10 to 1000 layers beside Fixup, SkipInit, scaled weight standardization and batch norm",
    {"smoke": SMOKE, "small": SMALL, "paper": PAPER},
    run,
)
