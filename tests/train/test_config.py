"""Config: valid and invalid settings, configuration files, presets."""

import copy
import dataclasses
import pickle
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from wnfused.train import Config, RunError, preset
from wnfused.train.config import FIELDS, from_mapping, read_settings
from wnfused.train.model import architecture
from wnfused.train.presets import PRESETS


def test_the_defaults_are_valid_and_filled_in():
    config = Config()
    assert (config.init, config.crop, config.flip) == ("robust", 0, False)
    assert dataclasses.replace(config, epochs=3).epochs == 3
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.epochs = 3


def test_defaults_that_depend_on_other_fields():
    cifar = Config(data="cifar10", norm="batch")
    assert (cifar.init, cifar.crop, cifar.flip) == ("he", 4, True)
    assert Config(data="cifar10", flip=False).flip is False


def test_every_field_is_explained():
    assert all(entry.metadata["help"] for entry in FIELDS.values())


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"data": "cifar"}, "data: unknown 'cifar', did you mean 'cifar10'?"),
        ({"norm": "layer"}, "norm: unknown 'layer', expected one of weight, batch, none"),
        ({"schedule": "cosin"}, "schedule: unknown 'cosin', expected one of constant, third"),
        ({"schedule": "0.1@9,x"}, "schedule: expected FACTOR@EPOCH,EPOCH as in 0.1@91,136, got '0.1@9,x'"),
        ({"schedule": "0.1@9,3"}, "schedule: expected a factor above 0 and increasing epochs"),
        ({"epochs": 0}, "epochs: expected a number from 1 to 1e+06, got 0"),
        ({"epochs": 2.5}, "epochs: expected an integer, got 2.5"),
        ({"epochs": True}, "epochs: expected an integer, got True"),
        ({"lr": "fast"}, "lr: expected a number, got 'fast'"),
        ({"lr": float("nan")}, "lr: expected a number from 0 to 1e+06, got nan"),
        ({"nesterov": "yes"}, "nesterov: expected true or false, got 'yes'"),
        ({"model": 20}, "model: expected a string, got 20"),
        ({"batch_size": 0}, "batch_size: expected"),
        ({"validation": 1.0}, "validation: expected"),
        ({"norm": "none", "init": "data_dependent"}, "init: 'data_dependent' is not available with norm 'none'; exp"),
        ({"norm": "batch", "init": "robust"}, "init: 'robust' is not available with norm 'batch'; expected he"),
        ({"norm": "batch", "impl": "torch"}, "impl: 'torch' needs norm 'weight', got 'batch'"),
        ({"nesterov": True, "momentum": 0.0}, "nesterov: expected a momentum above 0"),
        ({"accumulate": 9, "batch_size": 8}, "accumulate: expected at most batch_size, 8, got 9"),
        ({"warmup_epochs": 11.0}, "warmup_epochs: expected at most epochs, 10, got 11"),
    ],
)  # fmt: skip
def test_errors_name_the_setting(settings, expected):
    with pytest.raises(RunError) as refusal:
        Config(**settings)
    assert str(refusal.value).startswith(expected) and "\n" not in str(refusal.value)


def test_toml_and_yaml_files(tmp_path: Path):
    (tmp_path / "a.toml").write_text('preset = "smoke"\nepochs = 3\nlr = 1e-2\nnesterov = true\n')
    (tmp_path / "a.yaml").write_text("preset: smoke\nepochs: 3\nlr: 1e-2\nnesterov: true\n")
    toml, yaml = read_settings(tmp_path / "a.toml"), read_settings(tmp_path / "a.yaml")
    assert toml.pop("preset") == yaml.pop("preset") == "smoke"
    assert from_mapping(toml, "a") == from_mapping(yaml, "a") == Config(epochs=3, lr=0.01, nesterov=True)
    (tmp_path / "empty.yml").write_text("# nothing\n")
    assert read_settings(tmp_path / "empty.yml") == {}


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.toml", "epochs = ", "a.toml is not valid TOML"),
        ("a.yaml", "epochs: [", "a.yaml is not valid YAML"),
        ("a.yaml", "- 3", "expected settings like `epochs`, got list"),
        ("a.json", "{}", "a.json: expected a .toml, .yaml or .yml file"),
        ("a.toml", None, "No such file"),
    ],
)
def test_unreadable_files(tmp_path: Path, name: str, text: str | None, expected: str):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(RunError) as refusal:
        read_settings(tmp_path / name)
    assert expected in str(refusal.value) and "\n" not in str(refusal.value)


@pytest.mark.parametrize(("suffix", "module", "package"), [("yaml", "yaml", "pyyaml"), ("toml", "tomli", "tomli")])
def test_a_missing_reader_is_named_with_its_extra(tmp_path: Path, monkeypatch, suffix: str, module: str, package: str):
    if module == "tomli":
        monkeypatch.setattr(sys, "version_info", (3, 10))
    monkeypatch.setitem(sys.modules, module, None)
    (tmp_path / f"a.{suffix}").write_text("")
    with pytest.raises(RunError, match=f"{package} is not installed; install the extra 'train': pip install"):
        read_settings(tmp_path / f"a.{suffix}")


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


def test_changes_of_a_preset_apply_before_its_checks():
    assert preset("smoke", norm="batch").init == "he"
    with pytest.raises(RunError, match="preset: unknown 'smok', did you mean 'smoke'?"):
        preset("smok")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("vgg16", "model: unknown 'vgg16', expected resnetN"),
        ("resnet21", "model: 'resnet21': ResNet: depth: expected 6n + 2"),
        ("wrn-41-10", "model: 'wrn-41-10': WRN: depth"),
    ],
)
def test_unknown_networks(name, expected):
    with pytest.raises(RunError) as refusal:
        architecture(name, "weight", (3, 32, 32), 10)
    assert str(refusal.value).startswith(expected)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Config(lrr=1), "Config: unknown setting 'lrr', did you mean 'lr'?"),
        (lambda: dataclasses.replace(Config(), epoch=3), "Config: unknown setting 'epoch', did you mean 'epochs'?"),
        (lambda: preset("smoke", epoch=3), "preset: unknown setting 'epoch', did you mean 'epochs'?"),
    ],
)
def test_a_mistyped_setting_is_suggested(make: Callable[[], Config], message: str) -> None:
    with pytest.raises(RunError) as raised:
        make()
    assert str(raised.value) == message


def test_a_config_can_be_copied_and_pickled() -> None:
    config = Config(lr=0.5)
    assert copy.deepcopy(config) == config == pickle.loads(pickle.dumps(config)) and Config("mnist").data == "mnist"
