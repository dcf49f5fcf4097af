"""Configurations by name: every row of the paper's Table 1, and ``smoke`` for a quick try.

Table 1 of the paper holds out 10% of the training images, uses "the default hyperparameters reported in literature for
batch normalized networks" and tunes only the initial learning rate of weight norm. It does not print these numbers. So
epochs, batch size, schedule, momentum and weight decay are those of He et al. (2016) and Zagoruyko & Komodakis (2016).
Two values were never published and are chosen here: the tuned learning rates, and the length of the warmup (5 epochs as
in Goyal et al. (2017), whom the paper cites; its shape is that of the authors' code).
"""

from typing import Any

from wnfused.suggestions import did_you_mean
from wnfused.train.config import Config, from_mapping
from wnfused.train.result import RunError

Settings = dict[str, Any]

RESNET: Settings = {"epochs": 182, "lr": 0.1, "schedule": "resnet", "weight_decay": 1e-4}  # He et al.: 64k steps
WIDE: Settings = {"epochs": 200, "lr": 0.1, "schedule": "wrn", "weight_decay": 5e-4}
CUTOUT: Settings = {"cutout": 16}
CIFAR10: Settings = {"data": "cifar10", "normalization": "authors"}
CIFAR100: Settings = {"data": "cifar100", "normalization": "authors"}
NETWORKS: dict[str, Settings] = {
    "resnet56-cifar10": {**CIFAR10, "model": "resnet56", **RESNET},
    "resnet110-cifar10": {**CIFAR10, "model": "resnet110", **RESNET},
    "wrn-40-10-cifar10": {**CIFAR10, "model": "wrn-40-10", **WIDE, **CUTOUT},
    "resnet164-cifar100": {**CIFAR100, "model": "resnet164", **RESNET, **CUTOUT},
}

PROPOSED: Settings = {"norm": "weight", "init": "robust"}
METHODS: dict[str, Settings] = {
    "": {**PROPOSED, "warmup": "quadratic", "warmup_epochs": 5.0},
    "-nowarmup": {**PROPOSED, "lr": 0.03},  # the tuned value is not published: a third of batch norm's
    "-datadep": {"norm": "weight", "init": "data_dependent", "lr": 0.01},  # likewise: a tenth
    "-bn": {"norm": "batch", "init": "he"},
}
# He et al. warm up ResNet-110 at 0.01 for about 400 steps. "BN w/ orthogonal init" is the paper's.
BATCH_NORM: dict[str, Settings] = {
    "resnet110-cifar10-bn": {"warmup": "constant", "warmup_lr": 0.01, "warmup_epochs": 400 / 352},
    "wrn-40-10-cifar10-bn": {"init": "orthogonal"},
    "resnet164-cifar100-bn": {"init": "orthogonal"},
}

# The digits have a large mean, which makes the first gradients large: hence the clipping.
SMOKE: Settings = {
    "data": "digits", "model": "resnet8", "epochs": 12, "batch_size": 32, "lr": 0.1, "schedule": "halves", "clip": 1.0,
    "warmup": "linear", "warmup_epochs": 1.0,
}  # fmt: skip

PRESETS: dict[str, Settings] = {"smoke": SMOKE} | {
    network + method: {**settings, **changes, **BATCH_NORM.get(network + method, {})}
    for network, settings in NETWORKS.items()
    for method, changes in METHODS.items()
}


def settings(name: str) -> Settings:
    """The settings of a preset, to be changed before a Config is made from them."""
    if name not in PRESETS:
        raise RunError(f"preset: unknown {name!r}, {did_you_mean(name, PRESETS)}")
    return dict(PRESETS[name])


def preset(name: str, **changes: Any) -> Config:
    """The Config of a preset, with changes."""
    return from_mapping({**settings(name), **changes}, "preset")
