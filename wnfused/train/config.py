"""The configuration of a training run: one frozen dataclass for Python, files and the command line.

Every Config is valid: ``__post_init__`` fills in defaults that depend on other fields and rejects invalid values.
"""

import dataclasses
import sys
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wnfused.checks import is_integer
from wnfused.data import NAMES as DATA
from wnfused.extras import not_installed
from wnfused.models.layers import NORMS
from wnfused.suggestions import did_you_mean
from wnfused.train.optimization import SCHEDULES, milestones
from wnfused.train.result import RunError

IMPLS = ("wnfused", "torch")
# The first of each is the default. `robust` without a norm is the weight-normalized network, initialized and folded.
INITS = {
    "weight": (
        "robust",
        "robust_he",
        "robust_padding",
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
    """A field with the text that ``--help`` shows."""
    return field(default=default, metadata={"help": text, "choices": choices})


@dataclass(frozen=True)
class Config:
    # data
    data: str = _about("digits", "data set", DATA)
    data_dir: str | None = _about(None, "directory with the data set's files (default: download them)")
    download: bool = _about(True, "download a missing data set")
    normalization: str = _about(
        "data", "mean and std of the inputs: those of the data set, or those of the paper's authors", NORMALIZATIONS
    )
    train_images: int = _about(0, "train on the first N images of the training set; 0: all")
    image_size: int = _about(0, "average images down to this height and width; 0: as they are")
    validation: float = _about(0.1, "fraction of the training images held out to choose the best epoch; 0: none")
    crop: int | None = _about(None, "padding of random crops in pixels (default: 4 for CIFAR, 0 otherwise)")
    flip: bool | None = _about(None, "flip images at random (default: for CIFAR)")
    cutout: int = _about(0, "side of the square cut out of each training image; 0: none")
    # network
    model: str = _about(
        "resnet20", "network: resnetN[-basic|-bottleneck], wrn-N-k[-stem2], mlp-LAYERS-WIDTH or cnn-LAYERS[-CHANNELS]"
    )
    norm: str = _about("weight", "normalization", NORMS)
    init: str | None = _about(None, "initialization (default: robust; he with batch norm)", ALL_INITS)
    impl: str = _about("wnfused", "implementation of weight norm: wnfused, or torch's own on the same network", IMPLS)
    # recipe
    epochs: int = _about(10, "passes over the training images")
    max_steps: int = _about(0, "end the run after N steps; 0: after its epochs")
    batch_size: int = _about(128, "images per step, over all processes")
    accumulate: int = _about(1, "parts in which a batch is computed, to save memory")
    drop_last: bool = _about(False, "drop the last batch of an epoch if it is not full")
    lr: float = _about(0.1, "learning rate, after warmup and before the first decay")
    schedule: str = _about("constant", f"{', '.join(SCHEDULES)}, or FACTOR@EPOCH,EPOCH as in 0.1@91,136")
    warmup: str = _about("quadratic", "shape of the warmup", WARMUPS)
    warmup_epochs: float = _about(0.0, "length of the warmup; 0: none")
    warmup_lr: float = _about(0.0, "learning rate at the start of the warmup")
    momentum: float = _about(0.9, "momentum of SGD")
    nesterov: bool = _about(False, "Nesterov momentum")
    weight_decay: float = _about(1e-4, "weight decay")
    decay_all: bool = _about(True, "apply weight decay to gains and biases too, as in the paper")
    label_smoothing: float = _about(0.0, "label smoothing")
    clip: float = _about(0.0, "clip the norm of the gradient to this; 0: no clipping")
    ema: float = _about(0.0, "decay of a running average of the weights, used for validation and test; 0: none")
    # Runs that start at a loss of thousands can recover, so only NaN and infinity count as divergence by default.
    max_loss: float | None = _about(None, "a loss above this ends the run as diverged (default: only NaN or infinity)")
    # execution
    seed: int = _about(0, "seed of initialization, data order, augmentation and validation split")
    device: str = _about("auto", "auto, cpu, cuda or cuda:N")
    amp: str = _about("none", "mixed precision", AMPS)
    channels_last: bool = _about(False, "use the channels-last memory format")
    compile: bool = _about(False, "torch.compile the network")
    sharding: str = _about("ddp", "with several processes: replicate (ddp) or shard (fsdp) the network", SHARDINGS)
    # checkpoints and logs
    keep: int = _about(3, "number of checkpoints to keep")
    checkpoint_steps: int = _about(0, "also save a checkpoint every N steps; 0: only after epochs")
    checkpoint_seconds: float = _about(600.0, "also save a checkpoint after this many seconds; 0: only after epochs")
    tensorboard: bool = _about(False, "also log to TensorBoard")

    def __new__(cls, *values: Any, **settings: Any) -> "Config":
        check_names(settings, "Config")  # before the dataclass's own __init__, whose error suggests nothing
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for entry in dataclasses.fields(self):
            object.__setattr__(self, entry.name, _typed(entry, getattr(self, entry.name)))
        _check_choices(self)
        _fill_in(self)
        _check_numbers(self)
        _check_combinations(self)

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


# Settings that may change when a run is resumed, because they do not affect its result.
FREE = ("data_dir", "download", "keep", "checkpoint_steps", "checkpoint_seconds", "tensorboard")
FIELDS: dict[str, "dataclasses.Field[Any]"] = {entry.name: entry for entry in dataclasses.fields(Config)}


def from_mapping(values: Mapping[str, Any], where: str) -> Config:
    """A Config from settings by name; ``where`` begins the error message for an unknown name."""
    check_names(values, where)
    return Config(**values)


def check_names(settings: Mapping[str, Any], where: str) -> None:
    for name in settings:
        if not isinstance(name, str) or name not in FIELDS:
            raise RunError(f"{where}: unknown setting {name!r}, {did_you_mean(str(name), FIELDS)}")


def value_type(entry: "dataclasses.Field[Any]") -> tuple[type, bool]:
    """(the type of a field, whether it may also be None)."""
    kind = typing.get_type_hints(Config)[entry.name]
    if isinstance(kind, types.UnionType):
        return next(part for part in kind.__args__ if part is not type(None)), True
    return kind, False


WORDS = {int: "an integer", float: "a number", bool: "true or false", str: "a string"}


def _typed(entry: "dataclasses.Field[Any]", value: Any) -> Any:
    kind, optional = value_type(entry)
    if value is None and optional:
        return None
    if kind is float and not isinstance(value, bool):
        try:  # YAML reads 1e-4 as a string
            return float(value)
        except (TypeError, ValueError):
            pass
    elif kind is int and is_integer(value):
        return int(value)
    elif type(value) is kind and kind is not int:
        return value
    raise RunError(f"{entry.name}: expected {WORDS[kind]}, got {value!r}")


def _check_choices(config: Config) -> None:
    for entry in dataclasses.fields(config):
        choices, value = entry.metadata["choices"], getattr(config, entry.name)
        if choices and value is not None and value not in choices:
            raise RunError(f"{entry.name}: unknown {value!r}, {did_you_mean(value, choices)}")


def _fill_in(config: Config) -> None:
    """Set defaults that depend on other fields, so that the stored configuration is complete."""
    natural = config.data.startswith("cifar")
    usual = {"crop": 4 if natural else 0, "flip": natural, "init": INITS[config.norm][0]}
    for name, value in usual.items():
        if getattr(config, name) is None:
            object.__setattr__(config, name, value)


# name: (minimum, maximum), both allowed
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
        raise RunError(f"init: {config.init!r} is not available with norm {config.norm!r}; expected {', '.join(inits)}")
    if config.impl == "torch" and config.norm != "weight":
        raise RunError(f"impl: 'torch' needs norm 'weight', got {config.norm!r}")
    if config.nesterov and config.momentum == 0:
        raise RunError("nesterov: expected a momentum above 0")
    if config.accumulate > config.batch_size:
        raise RunError(f"accumulate: expected at most batch_size, {config.batch_size}, got {config.accumulate}")
    if config.warmup_epochs > config.epochs:
        raise RunError(f"warmup_epochs: expected at most epochs, {config.epochs}, got {config.warmup_epochs:g}")
    milestones(config.schedule, config.epochs)  # raises for an unknown name


def read_settings(path: Path) -> dict[str, Any]:
    """The settings of a YAML or TOML file, by the names of Config's fields; ``preset`` may name a preset."""
    readers = {".toml": _parse_toml, ".yaml": _parse_yaml, ".yml": _parse_yaml}
    if path.suffix not in readers:
        raise RunError(f"{path}: expected a .toml, .yaml or .yml file")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    values = readers[path.suffix](text, path)
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise RunError(f"{path}: expected settings like `epochs`, got {type(values).__name__}")
    return values


def _parse_toml(text: str, path: Path) -> Any:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        try:
            import tomli as tomllib
        except ImportError:
            raise RunError(f"{path}: {not_installed('tomli')}") from None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RunError(f"{path} is not valid TOML: {error}") from None


def _parse_yaml(text: str, path: Path) -> Any:
    try:
        import yaml
    except ImportError:
        raise RunError(f"{path}: {not_installed('yaml')}") from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise RunError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
