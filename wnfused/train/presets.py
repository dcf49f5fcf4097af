"""Configurations by name: every row of the paper's Table 1, and one for trying things out.

The paper says of Table 1: 10% of the training images held out, "the default hyperparameters reported in literature for
batch normalized networks", and only the initial learning rate tuned for weight norm. It prints none of these numbers.
So epochs, batch, schedule, momentum and weight decay are those of He et al. (2016) and Zagoruyko & Komodakis (2016).
What nobody printed, and is chosen here: the tuned learning rates, and the warmup's length (Goyal et al. (2017), whom
the paper cites for it, have 5 epochs; its form is that of the authors' code).
"""

from typing import Any

from wnfused.train.config import Config
from wnfused.train.errors import RunError, nearest

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
    "-nowarmup": {**PROPOSED, "lr": 0.03},  # tuned by the authors, not printed: a third of batch norm's
    "-datadep": {"norm": "weight", "init": "data_dependent", "lr": 0.01},  # likewise: a tenth
    "-bn": {"norm": "batch", "init": "he"},
}
# He et al. train ResNet-110 at 0.01 until it has started, about 400 steps. "BN w/ orthogonal init" is the paper's.
BATCH_NORM: dict[str, Settings] = {
    "resnet110-cifar10-bn": {"warmup": "constant", "warmup_lr": 0.01, "warmup_epochs": 400 / 352},
    "wrn-40-10-cifar10-bn": {"init": "orthogonal"},
    "resnet164-cifar100-bn": {"init": "orthogonal"},
}

# Digits are much alike on average, which makes the first steps steep: hence the clipping.
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
    """What the preset sets, to change before a Config is made of it."""
    if name not in PRESETS:
        raise RunError(f"unknown preset {name!r}, {nearest(name, PRESETS)}")
    return dict(PRESETS[name])


def preset(name: str, **changes: Any) -> Config:
    """The preset's Config, with changes."""
    return Config(**{**settings(name), **changes})
