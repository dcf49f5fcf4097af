"""The configuration: what it accepts, what it refuses and how, and that files and presets speak the same language."""

import dataclasses
from pathlib import Path

import pytest

from wnfused.train import Config, RunError, preset
from wnfused.train.build import architecture
from wnfused.train.config import FIELDS, from_mapping
from wnfused.train.config_file import read
from wnfused.train.presets import PRESETS


def test_the_defaults_are_valid_and_filled_in():
    config = Config()
    assert (config.init, config.crop, config.flip) == ("robust", 0, False)
    assert dataclasses.replace(config, epochs=3).epochs == 3
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.epochs = 3


def test_what_depends_on_other_fields():
    cifar = Config(data="cifar10", norm="batch")
    assert (cifar.init, cifar.crop, cifar.flip) == ("he", 4, True)
    assert Config(data="cifar10", flip=False).flip is False


def test_every_field_is_explained():
    assert all(entry.metadata["help"] for entry in FIELDS.values())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"data": "cifar"}, "data: unknown 'cifar', did you mean 'cifar10'?"),
        ({"norm": "layer"}, "norm: unknown 'layer', expected one of weight, batch, none"),
        ({"schedule": "cosin"}, "schedule: unknown 'cosin', expected one of constant, third"),
        ({"schedule": "0.1@9,x"}, "schedule: expected FACTOR@EPOCH,EPOCH as in 0.1@91,136, got '0.1@9,x'"),
        ({"schedule": "0.1@9,3"}, "schedule: expected a factor above 0 and rising epochs"),
        ({"epochs": 0}, "epochs: expected a number from 1 to 1e+06, got 0"),
        ({"epochs": 2.5}, "epochs: expected a whole number, got 2.5"),
        ({"epochs": True}, "epochs: expected a whole number, got True"),
        ({"lr": "fast"}, "lr: expected a number, got 'fast'"),
        ({"lr": float("nan")}, "lr: expected a number from 0 to 1e+06, got nan"),
        ({"nesterov": "yes"}, "nesterov: expected true or false, got 'yes'"),
        ({"model": 20}, "model: expected a text, got 20"),
        ({"batch_size": 0}, "batch_size: expected"),
        ({"validation": 1.0}, "validation: expected"),
        ({"norm": "none", "init": "data_dependent"}, "init 'data_dependent' does not go with norm 'none': exp"),
        ({"norm": "batch", "init": "robust"}, "init 'robust' does not go with norm 'batch': expected he"),
        ({"norm": "batch", "impl": "torch"}, "impl 'torch' is torch's weight_norm: it needs norm 'weight'"),
        ({"nesterov": True, "momentum": 0.0}, "nesterov: needs a momentum above 0"),
        ({"accumulate": 9, "batch_size": 8}, "accumulate: 9 parts of a batch of 8 images"),
        ({"warmup_epochs": 11.0}, "warmup_epochs: 11 is longer than the 10 epochs"),
    ],
)  # fmt: skip
def test_refusals_name_the_setting(settings, said):
    with pytest.raises(RunError) as refusal:
        Config(**settings)
    assert str(refusal.value).startswith(said) and "\n" not in str(refusal.value)


def test_a_file_in_either_language(tmp_path: Path):
    (tmp_path / "a.toml").write_text('preset = "smoke"\nepochs = 3\nlr = 1e-2\nnesterov = true\n')
    (tmp_path / "a.yaml").write_text("preset: smoke\nepochs: 3\nlr: 1e-2\nnesterov: true\n")
    toml, yaml = read(tmp_path / "a.toml"), read(tmp_path / "a.yaml")
    assert toml.pop("preset") == yaml.pop("preset") == "smoke"
    assert from_mapping(toml, "a") == from_mapping(yaml, "a") == Config(epochs=3, lr=0.01, nesterov=True)
    (tmp_path / "empty.yml").write_text("# nothing\n")
    assert read(tmp_path / "empty.yml") == {}


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.toml", "epochs = ", "a.toml is not valid TOML"),
        ("a.yaml", "epochs: [", "a.yaml is not valid YAML"),
        ("a.yaml", "- 3", "expected settings like `epochs`, got list"),
        ("a.json", "{}", "expected a file named .toml, .yaml or .yml"),
        ("a.toml", None, "No such file"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, name: str, text: str | None, said: str):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(RunError) as refusal:
        read(tmp_path / name)
    assert said in str(refusal.value) and "\n" not in str(refusal.value)


def test_an_unknown_setting_in_a_file():
    with pytest.raises(RunError, match="a.toml: unknown setting 'epoch', did you mean 'epochs'?"):
        from_mapping({"epoch": 3}, "a.toml")


ROWS = [
    (network, data, cutout, method)
    for network, data, cutout in (
        ("resnet56", "cifar10", 0),
        ("resnet110", "cifar10", 0),
        ("wrn-40-10", "cifar10", 16),
        ("resnet164", "cifar100", 16),
    )
    for method in ("", "-nowarmup", "-datadep", "-bn")
]


@pytest.mark.parametrize(("network", "data", "cutout", "method"), ROWS)
def test_every_row_of_table_1_is_a_preset(network, data, cutout, method):
    config = preset(f"{network}-{data}{method}")
    assert (config.model, config.data, config.cutout) == (network, data, cutout)
    assert (config.crop, config.flip, config.validation, config.momentum, config.batch_size) == (4, True, 0.1, 0.9, 128)
    assert config.norm == ("batch" if method == "-bn" else "weight")
    if config.norm == "weight":
        assert config.init == ("data_dependent" if method == "-datadep" else "robust")
        assert (config.warmup_epochs > 0) == (method == "")
        assert config.warmup == "quadratic"
    elif cutout:
        assert config.init == "orthogonal"
    assert config.decay_all


def test_there_are_no_other_presets():
    assert set(PRESETS) == {"smoke"} | {f"{network}-{data}{method}" for network, data, _, method in ROWS}


def test_presets_can_be_changed_before_they_are_checked():
    assert preset("smoke", norm="batch").init == "he"
    with pytest.raises(RunError, match="unknown preset 'smok', did you mean 'smoke'?"):
        preset("smok")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("vgg16", "model: unknown 'vgg16', expected resnetN"),
        ("resnet21", "model 'resnet21': ResNet: depth: expected 6n + 2"),
        ("wrn-41-10", "model 'wrn-41-10': WRN: depth"),
    ],
)
def test_networks_that_do_not_exist(name, said):
    with pytest.raises(RunError) as refusal:
        architecture(name, "weight", (3, 32, 32), 10)
    assert str(refusal.value).startswith(said)
