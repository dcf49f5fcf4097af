"""One run on tiny data: it learns, writes its files, and each setting of the recipe has its effect."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import wnfused
from tests.support.train_cases import CLASSES, config, dataset, same, use
from wnfused.train import Config, Result, RunError, load_best, train
from wnfused.train.checkpoints import KEYS, load, steps
from wnfused.train.data import load as load_images
from wnfused.train.distributed import World
from wnfused.train.metrics import Meter
from wnfused.train.model import network
from wnfused.train.optimization import EMA, sgd


@pytest.fixture(autouse=True)
def _tiny_images(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch)


def weights(run_dir: Path) -> dict[str, Tensor]:
    return load(steps(run_dir / "checkpoints")[0], KEYS)["model"]


def lines(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def run(folder: Path, **changes: Any) -> Result:
    return train(config(**changes), folder)


def test_a_run_learns_and_writes_its_directory(tmp_path: Path) -> None:
    result = run(tmp_path / "a", epochs=30, lr=0.1)
    assert result.status == "finished"
    assert (result.epochs, result.steps) == (30, 150)
    assert result.test_accuracy is not None and result.test_accuracy > 0.8
    stored = json.loads((tmp_path / "a" / "config.json").read_text())
    assert Config(**stored) == config(epochs=30, lr=0.1)
    assert json.loads((tmp_path / "a" / "result.json").read_text()) == result.as_dict()
    environment = json.loads((tmp_path / "a" / "environment.json").read_text())
    assert environment["torch"] == torch.__version__ and environment["seed"] == 3 and environment["world_size"] == 1
    found = lines(tmp_path / "a")
    assert [(line["epoch"], line["step"]) for line in found] == [(e, 5 * e) for e in range(1, 31)]
    assert set(found[0]) == {
        "epoch", "step", "lr", "train_loss", "train_accuracy", "validation_loss", "validation_accuracy", "seconds",
        "images_per_second", "median_step_seconds",
    }  # fmt: skip
    assert found[-1]["train_loss"] < found[0]["train_loss"] / 2
    best = max(found, key=lambda line: line["validation_accuracy"])
    assert (result.best_epoch, result.best_validation_accuracy) == (best["epoch"], best["validation_accuracy"])
    assert [path.name for path in steps(tmp_path / "a" / "checkpoints")] == [
        "step-00000150.pt", "step-00000145.pt", "step-00000140.pt",
    ]  # fmt: skip


def test_the_best_weights_are_tested(tmp_path: Path) -> None:
    result = run(tmp_path / "a", epochs=6, lr=0.1)
    images = dataset().test
    x = (images.images.float() / 255 - 0.3) / 0.25
    with torch.no_grad():
        accuracy = (load_best(tmp_path / "a")(x).argmax(1) == images.labels).float().mean().item()
    assert accuracy == pytest.approx(result.test_accuracy)


@pytest.mark.parametrize("changes", [{"impl": "torch"}, {"norm": "none"}, {"norm": "batch"}, {"channels_last": True}])
def test_the_best_weights_of_every_network_can_be_used(tmp_path: Path, changes: dict[str, Any]) -> None:
    run(tmp_path / "a", epochs=1, model="resnet8", **changes)
    model, last = load_best(tmp_path / "a"), weights(tmp_path / "a")
    assert not model.training and same(model.state_dict(), last)
    assert model(torch.zeros(2, 1, 6, 6)).isfinite().all()


def test_an_unavailable_backend_is_a_run_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unavailable(device: torch.device) -> None:
        raise wnfused.BackendUnavailable("backend 'native' cannot run: no compiler")

    monkeypatch.setattr("wnfused.ops.backends.resolve", unavailable)
    with pytest.raises(RunError, match="backend 'native' cannot run: no compiler"):
        run(tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_without_a_validation_set_the_last_epoch_is_the_best(tmp_path: Path) -> None:
    result = run(tmp_path / "a", validation=0.0, epochs=3)
    assert (result.best_epoch, result.best_validation_accuracy) == (3, None)
    assert same(weights(tmp_path / "a"), load_best(tmp_path / "a").state_dict())
    assert lines(tmp_path / "a")[0]["validation_loss"] is None


def test_the_first_steps_are_those_of_plain_sgd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One epoch, recomputed with plain torch: momentum, weight decay, label smoothing, schedule, clipping."""
    seen: list[tuple[Tensor, Tensor]] = []
    original = wnfused.data.Loader.epoch

    def noted(self: Any, number: int, start: int = 0) -> Any:
        for images, labels in original(self, number, start):
            if self.shuffle:
                seen.append((images.clone(), labels.clone()))
            yield images, labels

    monkeypatch.setattr(wnfused.data.Loader, "epoch", noted)
    settings = {"epochs": 1, "label_smoothing": 0.1, "warmup": "linear", "warmup_epochs": 1.0, "lr": 0.2, "clip": 0.5}
    result = run(tmp_path / "a", **settings, nesterov=True, weight_decay=0.01)
    first, batches = seen[0][0], seen[1:]  # the first is for data-dependent initialization
    assert torch.equal(first, batches[0][0]) and len(batches) == 5
    model = network(config(), (1, 6, 6), CLASSES, lambda: first)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9, nesterov=True, weight_decay=0.01)
    total = 0.0
    for i, (images, labels) in enumerate(batches):
        optimizer.param_groups[0]["lr"] = 0.2 * (i + 1) / 5
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels, label_smoothing=0.1)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        total += loss.item() * len(labels)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(weights(tmp_path / "a")[name], value)
    assert lines(tmp_path / "a")[0]["train_loss"] == pytest.approx(total / 41)
    assert lines(tmp_path / "a")[0]["lr"] == 0.2
    assert result.parameters == sum(p.numel() for p in model.parameters())


def test_the_seed_determines_the_run(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        run(tmp_path / name, seed=seed, epochs=1)
    a, b, c = (weights(tmp_path / name) for name in "abc")
    assert same(a, b) and not same(a, c)


def test_accumulated_parts_give_the_same_gradients(tmp_path: Path) -> None:
    run(tmp_path / "whole", epochs=2)
    run(tmp_path / "parts", epochs=2, accumulate=4)  # the last batch, of 5 images, too
    whole, parts = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    for name, value in whole.items():
        torch.testing.assert_close(parts[name], value, rtol=1e-4, atol=1e-6)
    assert lines(tmp_path / "parts")[1]["train_loss"] == pytest.approx(lines(tmp_path / "whole")[1]["train_loss"], 1e-5)


@pytest.mark.parametrize("changes", [{"amp": "bf16"}, {"channels_last": True, "model": "cnn-2-8"}, {"norm": "batch"}])
def test_execution_settings(tmp_path: Path, changes: dict[str, Any]) -> None:
    result = run(tmp_path / "a", epochs=8, lr=0.05, **changes)
    assert result.status == "finished"
    assert lines(tmp_path / "a")[-1]["train_loss"] < 0.95 * lines(tmp_path / "a")[0]["train_loss"]


def test_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiled network is trained, validated and saved; the eager backend keeps it quick."""
    compiled: list[nn.Module] = []
    original = nn.Module.compile

    def quick(self: nn.Module) -> None:
        compiled.append(self)
        original(self, backend="eager")

    monkeypatch.setattr(nn.Module, "compile", quick)
    run(tmp_path / "a", epochs=1)
    run(tmp_path / "b", epochs=1, compile=True)
    assert len(compiled) == 1
    for name, value in weights(tmp_path / "a").items():
        torch.testing.assert_close(weights(tmp_path / "b")[name], value)


def test_fp16_needs_a_gpu(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="amp: 'fp16' needs a GPU"):
        run(tmp_path / "a", amp="fp16")
    assert not (tmp_path / "a").exists()


def test_weight_decay_can_exclude_gains_and_biases() -> None:
    model = network(config(model="resnet8"), (3, 8, 8), 10, lambda: torch.zeros(2, 3, 8, 8))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    (everything,) = sgd(model, config()).param_groups
    assert len(everything["params"]) == len(names)
    decayed, spared = sgd(model, config(decay_all=False)).param_groups
    assert spared["weight_decay"] == 0 and decayed["weight_decay"] == 1e-4
    assert {names[id(p)].rsplit(".")[-1] for p in decayed["params"]} == {"weight_v", "weight"}
    assert {names[id(p)].rsplit(".")[-1] for p in spared["params"]} == {"weight_g", "bias"}
    wnfused.to_torch(model)
    decayed, spared = sgd(model, config(decay_all=False)).param_groups
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    assert {names[id(p)].rsplit(".")[-1] for p in spared["params"]} == {"original0", "bias"}


def test_ema_is_a_running_average() -> None:
    model = nn.Linear(2, 1)
    ema = EMA(model, 0.5)
    average = model.weight.detach().clone()
    for step in range(20):
        with torch.no_grad():
            model.weight += 1
        ema.update(step)
        decay = min(0.5, (1 + step) / (10 + step))
        average = decay * average + (1 - decay) * model.weight.detach()
    own = model.weight.detach().clone()
    with ema.in_place():
        torch.testing.assert_close(model.weight.detach(), average)
    assert torch.equal(model.weight, own)


def test_averaged_weights_are_validated_and_saved(tmp_path: Path) -> None:
    run(tmp_path / "plain", epochs=3)
    run(tmp_path / "ema", epochs=3, ema=0.9)
    assert same(weights(tmp_path / "plain"), weights(tmp_path / "ema"))  # training itself is unchanged
    kept = load(steps(tmp_path / "ema" / "checkpoints")[0], KEYS)["ema"]
    assert not same(kept, weights(tmp_path / "ema"))
    assert lines(tmp_path / "ema")[-1]["validation_loss"] != lines(tmp_path / "plain")[-1]["validation_loss"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"lr": 1e5}, "is nan"),
        ({"lr": 1e5, "max_loss": 1000.0}, "the loss of step 2 is 3"),
        ({"max_loss": 1e-9}, "the loss of step 1 is 1."),
    ],
)
def test_divergence_is_a_result(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    result = run(tmp_path / "a", **changes)
    assert result.status == "diverged" and result.test_accuracy is None
    assert result.reason is not None and reason in result.reason
    assert result.diverged_step is not None and result.diverged_step <= result.steps
    last = lines(tmp_path / "a")[-1]
    assert last["diverged"] is True
    assert all(value is None or math.isfinite(value) for value in last.values())
    assert json.loads((tmp_path / "a" / "result.json").read_text())["status"] == "diverged"
    for path in steps(tmp_path / "a" / "checkpoints"):
        assert all(value.isfinite().all() for value in load(path, KEYS)["model"].values())
    # Resuming returns the same result.
    assert train(config(**changes), tmp_path / "a", resume=True) == result


def test_a_large_loss_may_recover(tmp_path: Path) -> None:
    """Only NaN and infinity end a run by default: 10 steps of a small learning rate bring the loss down."""
    start = {"model": "wrn-40-1", "init": "norm_gain_he", "lr": 1e-6, "weight_decay": 0.0}
    result = run(tmp_path / "a", **start, epochs=2)
    losses = [line["train_loss"] for line in lines(tmp_path / "a")]
    assert result.status == "finished" and losses[0] > 100 > losses[1]
    assert run(tmp_path / "b", **start, epochs=2, max_loss=100.0).diverged_step == 1


ALONE = World(0, 1, torch.device("cpu"))


def test_number_size_and_normalization_of_images() -> None:
    settings = config(data="cifar10", train_images=30, image_size=3, validation=0.0, crop=0, flip=False)
    images = load_images(settings, ALONE)
    assert len(images.train.images) == 30 and images.shape == (1, 3, 3)
    with pytest.raises(RunError, match="normalization: the paper's authors did not use digits"):
        load_images(config(normalization="authors"), ALONE)


def test_max_steps_ends_the_run(tmp_path: Path) -> None:
    result = run(tmp_path / "a", epochs=3, max_steps=7)  # 5 batches are an epoch
    assert (result.status, result.steps, [line["step"] for line in lines(tmp_path / "a")]) == ("finished", 7, [5, 7])
    assert train(config(epochs=3, max_steps=7), tmp_path / "a", resume=True) == result


def test_losses_are_read_every_few_steps_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading a loss makes the CPU wait for a GPU."""
    read, reads = Meter.read, []

    def counted(self: Meter, world: Any) -> list[float]:
        if self.pending:
            reads.append(self.pending)
        return read(self, world)

    monkeypatch.setattr(Meter, "read", counted)
    run(tmp_path / "a", batch_size=2, epochs=2)
    assert reads == [10, 10, 1, 9, 10, 2]  # steps 10, 20, the epoch's last, 30, …


def test_a_batch_larger_than_the_data(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="batch_size: expected at most 41, the training images of digits, got 42"):
        run(tmp_path / "a", batch_size=42)
    assert not (tmp_path / "a").exists()


def test_batch_norm_needs_two_images_per_part(tmp_path: Path) -> None:
    with pytest.raises(
        RunError, match="batch_size: 1 images in 1 parts leave fewer than 2 for batch norm; pass drop_last=True"
    ):
        run(tmp_path / "a", batch_size=8, norm="batch")
    assert run(tmp_path / "a", batch_size=8, norm="batch", drop_last=True, epochs=1).steps == 5


def test_the_best_weights_of_a_run_that_does_not_exist(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    with pytest.raises(RunError) as raised:
        load_best(nowhere)
    assert str(raised.value) == f"run_dir: there is no directory {nowhere}; pass the directory of a run"
    with pytest.raises(RunError, match="has no best weights; pass the directory of a run with a finished epoch"):
        load_best(tmp_path)
