"""The whole configuration of a training run: one frozen dataclass for Python, files and the command line alike.

A Config that exists is valid: ``__post_init__`` fills in what depends on other fields and refuses what cannot be.
"""

import dataclasses
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from wnfused.data import NAMES as DATA
from wnfused.models.norm import NORMS
from wnfused.train import schedules
from wnfused.train.errors import RunError, nearest

IMPLS = ("wnfused", "torch")
# The first of each is the default. `robust` without a norm is the weight-normalized network, initialized and folded.
INITS = {
    "weight": (
        "robust",
        "robust_he",
        "torch_default",
        "norm_gain",
        "norm_gain_he",
        "data_dependent",
        "hanin",
        "he",
    ),
    "batch": ("he", "torch_default", "orthogonal"),
    "none": ("robust", "torch_default", "he", "orthogonal"),
}
ALL_INITS = tuple(dict.fromkeys(name for names in INITS.values() for name in names))
WARMUPS = ("linear", "quadratic", "constant")
NORMALIZATIONS = ("data", "authors")
AMPS = ("none", "bf16", "fp16")
SHARDINGS = ("ddp", "fsdp")


def _about(default: Any, text: str, choices: tuple[str, ...] | None = None) -> Any:
    """A field with the words that ``--help`` shows."""
    return field(default=default, metadata={"help": text, "choices": choices})


@dataclass(frozen=True)
class Config:
    # data
    data: str = _about("digits", "data set", DATA)
    data_dir: str | None = _about(None, "folder that holds the data set's files; without it they are downloaded")
    download: bool = _about(True, "download what is missing")
    normalization: str = _about(
        "data", "mean and std of the inputs: those of the data set, or those of the paper's authors", NORMALIZATIONS
    )
    train_images: int = _about(0, "train on this many images, the first of the training set; 0: on all")
    image_size: int = _about(0, "average images down to this height and width; 0: as they are")
    validation: float = _about(0.1, "share of the training images held out to choose the best epoch; 0: none")
    crop: int | None = _about(None, "pixels of padding for random crops (default: 4 for CIFAR, 0 otherwise)")
    flip: bool | None = _about(None, "mirror half of the images (default: for CIFAR)")
    cutout: int = _about(0, "side of the square cut out of each training image; 0: none")
    # network
    model: str = _about(
        "resnet20", "network: resnetN[-basic|-bottleneck], wrn-N-k[-stem2], mlp-LAYERS-WIDTH or cnn-LAYERS[-CHANNELS]"
    )
    norm: str = _about("weight", "normalization", NORMS)
    init: str | None = _about(None, "initialization (default: robust; he with batch norm)", ALL_INITS)
    impl: str = _about("wnfused", "wnfused, or torch's own weight_norm on the same network", IMPLS)
    # recipe
    epochs: int = _about(10, "passes over the training images")
    max_steps: int = _about(0, "end the run after this many steps; 0: after its epochs")
    batch_size: int = _about(128, "images of one step, of all processes together")
    accumulate: int = _about(1, "parts in which a batch is computed, to save memory")
    drop_last: bool = _about(False, "leave out the last batch of an epoch when it is not full")
    lr: float = _about(0.1, "learning rate, after warmup and before the first decay")
    schedule: str = _about("constant", f"{', '.join(schedules.NAMES)}, or FACTOR@EPOCH,EPOCH as in 0.1@91,136")
    warmup: str = _about("quadratic", "how the learning rate rises during warmup", WARMUPS)
    warmup_epochs: float = _about(0.0, "length of the warmup; 0: none")
    warmup_lr: float = _about(0.0, "learning rate that the warmup starts from")
    momentum: float = _about(0.9, "momentum of SGD")
    nesterov: bool = _about(False, "Nesterov's form of momentum")
    weight_decay: float = _about(1e-4, "weight decay")
    decay_all: bool = _about(True, "weight decay on gains and biases too, as in the paper")
    label_smoothing: float = _about(0.0, "label smoothing")
    clip: float = _about(0.0, "largest norm of the gradient; 0: as it comes")
    ema: float = _about(0.0, "decay of the running average of the weights that is validated and kept; 0: none")
    # Runs that start at a loss of thousands can recover, so only NaN and infinity count as divergence by default.
    max_loss: float | None = _about(None, "a loss above this ends the run as diverged (default: only NaN or infinity)")
    # execution
    seed: int = _about(0, "seed of the initialization, the order of the data, its augmentation and its split")
    device: str = _about("auto", "auto, cpu, cuda or cuda:N")
    amp: str = _about("none", "mixed precision", AMPS)
    channels_last: bool = _about(False, "keep images and convolutions channels-last")
    compile: bool = _about(False, "torch.compile the network")
    sharding: str = _about("ddp", "several processes: each the whole network (ddp) or rows of it (fsdp)", SHARDINGS)
    # what is kept
    keep: int = _about(3, "checkpoints to keep")
    checkpoint_steps: int = _about(0, "also write a checkpoint every so many steps; 0: only after epochs")
    checkpoint_seconds: float = _about(600.0, "also write a checkpoint when the last is so old; 0: only after epochs")
    tensorboard: bool = _about(False, "log for TensorBoard too")

    def __post_init__(self) -> None:
        for entry in dataclasses.fields(self):
            object.__setattr__(self, entry.name, _typed(entry, getattr(self, entry.name)))
        _check_choices(self)
        _fill_in(self)
        _check_numbers(self)
        _check_combinations(self)

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


# What may differ between a run and its resumption: none of it changes a result.
FREE = ("data_dir", "download", "keep", "checkpoint_steps", "checkpoint_seconds", "tensorboard")
FIELDS: dict[str, "dataclasses.Field[Any]"] = {entry.name: entry for entry in dataclasses.fields(Config)}


def from_mapping(values: Mapping[str, Any], where: str) -> Config:
    """A Config from the entries of a file; what is missing has its default."""
    for name in values:
        if not isinstance(name, str) or name not in FIELDS:
            raise RunError(f"{where}: unknown setting {name!r}, {nearest(str(name), FIELDS)}")
    return Config(**values)


def value_type(entry: "dataclasses.Field[Any]") -> tuple[type, bool]:
    """The type of a field, and whether it may also be None."""
    kind = typing.get_type_hints(Config)[entry.name]
    if isinstance(kind, types.UnionType):
        return next(part for part in kind.__args__ if part is not type(None)), True
    return kind, False


WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


def _typed(entry: "dataclasses.Field[Any]", value: Any) -> Any:
    kind, optional = value_type(entry)
    if value is None and optional:
        return None
    if kind is float and not isinstance(value, bool):
        try:  # YAML reads 1e-4 as a text
            return float(value)
        except (TypeError, ValueError):
            pass
    elif type(value) is kind:
        return value
    raise RunError(f"{entry.name}: expected {WORDS[kind]}, got {value!r}")


def _check_choices(config: Config) -> None:
    for entry in dataclasses.fields(config):
        choices, value = entry.metadata["choices"], getattr(config, entry.name)
        if choices and value is not None and value not in choices:
            raise RunError(f"{entry.name}: unknown {value!r}, {nearest(value, choices)}")


def _fill_in(config: Config) -> None:
    """Defaults that depend on other fields, so that the stored configuration says what was done."""
    natural = config.data.startswith("cifar")
    usual = {"crop": 4 if natural else 0, "flip": natural, "init": INITS[config.norm][0]}
    for name, value in usual.items():
        if getattr(config, name) is None:
            object.__setattr__(config, name, value)


# name: (least, most), both allowed.
RANGES: dict[str, tuple[float, float]] = {
    "train_images": (0, 10**9), "image_size": (0, 10**4), "max_steps": (0, 10**9),
    "validation": (0, 0.9), "crop": (0, 1000), "cutout": (0, 1000), "epochs": (1, 10**6), "batch_size": (1, 10**9),
    "accumulate": (1, 10**6), "lr": (0, 1e6), "warmup_epochs": (0, 10**6), "warmup_lr": (0, 1e6), "momentum": (0, 1),
    "weight_decay": (0, 1e6), "label_smoothing": (0, 1), "clip": (0, 1e30), "ema": (0, 0.999999999),
    "max_loss": (1e-30, 1e300), "seed": (0, 2**63 - 1), "keep": (1, 10**6), "checkpoint_steps": (0, 10**12),
    "checkpoint_seconds": (0, 1e12),
}  # fmt: skip


def _check_numbers(config: Config) -> None:
    for name, (least, most) in RANGES.items():
        value = getattr(config, name)
        if value is not None and not least <= value <= most:  # NaN is not in any range
            raise RunError(f"{name}: expected a number from {least:g} to {most:g}, got {value}")


def _check_combinations(config: Config) -> None:
    inits = INITS[config.norm]
    if config.init not in inits:
        raise RunError(f"init {config.init!r} does not go with norm {config.norm!r}: expected {', '.join(inits)}")
    if config.impl == "torch" and config.norm != "weight":
        raise RunError(f"impl 'torch' is torch's weight_norm: it needs norm 'weight', got {config.norm!r}")
    if config.nesterov and config.momentum == 0:
        raise RunError("nesterov: needs a momentum above 0")
    if config.accumulate > config.batch_size:
        raise RunError(f"accumulate: {config.accumulate} parts of a batch of {config.batch_size} images")
    if config.warmup_epochs > config.epochs:
        raise RunError(f"warmup_epochs: {config.warmup_epochs:g} is longer than the {config.epochs} epochs of the run")
    schedules.milestones(config.schedule, config.epochs)  # raises for an unknown name
