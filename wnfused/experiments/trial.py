"""A short training run for a sweep: no files or checkpoints, every loss read, two rules of divergence recorded."""

import math
import time
from contextlib import nullcontext
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from torch import nn

from wnfused import data
from wnfused.experiments import peers
from wnfused.experiments.jobs import Job, Outcome
from wnfused.train import Config, RunError, distributed
from wnfused.train import data as images
from wnfused.train.metrics import evaluate
from wnfused.train.model import network
from wnfused.train.optimization import learning_rate, sgd

THRESHOLD = 1000.0  # the second rule: a loss above it. The first, the paper's, is NaN or infinity.
BINS = 10  # of the recorded loss curve


def trial(*, test: bool | int = False, peer: str | None = None, **config: Any) -> Job:
    """The job of one run; ``test`` also measures its accuracy on the test images, or on the first ``test`` of them.

    ``peer`` names one of ``peers.PEERS``, which then builds the network in place of the configuration's norm and init.
    """
    Config(**config)  # refuses bad settings before anything runs
    return Job("trial:run", {"config": config, "test": test, **({"peer": peer} if peer else {})})


def run(settings: dict[str, Any], data_dir: str | None) -> Outcome:
    start, cpu_start = time.perf_counter(), time.process_time()
    config = Config(**settings["config"])
    with distributed.joined(config.device) as world:
        dataset = _data_set(config.data, data_dir)
        if settings["test"] > 1:  # True is 1
            dataset = replace(dataset, test=data.first(dataset.test, settings["test"]))
        loaders = images.loaders(config, dataset, world)
        if peer := settings.get("peer"):
            model = peers.network(peer, config, loaders.shape, loaders.classes)
        else:
            model = network(config, loaders.shape, loaders.classes, lambda: loaders.first_batch)
        model.to(world.device)
        losses, accuracy = _train(config, model, loaders.train)
        finite = all(map(math.isfinite, losses))
        tested = evaluate(model, loaders.test, world, nullcontext)[1] if settings["test"] and finite else None
    return {
        "diverged_step": None if finite else len(losses),
        "threshold_step": next((i for i, loss in enumerate(losses, 1) if not loss <= THRESHOLD), None),
        "steps": len(losses),
        "losses": _curve(losses),
        "train_accuracy": round(accuracy, 4) if finite else None,
        "test_accuracy": tested,
        "seconds": round(time.perf_counter() - start, 2),
        "cpu_seconds": round(time.process_time() - cpu_start, 2),  # does not depend on what else the machine runs
    }


def prepare(config: Config, data_dir: str | None) -> tuple[nn.Module, data.Loader]:
    """The initialized network and its training images, for measurements before the first step."""
    with distributed.joined(config.device) as world:
        loaders = images.loaders(config, _data_set(config.data, data_dir), world)
        model = network(config, loaders.shape, loaders.classes, lambda: loaders.first_batch)
        return model.to(world.device), loaders.train


@lru_cache(maxsize=2)
def _data_set(name: str, data_dir: str | None) -> data.Dataset:
    """A worker reads a data set once. ``data_dir`` contains its files, or a folder of its name with them."""
    folder = None if data_dir is None else Path(data_dir)
    if folder is not None and (folder / name).is_dir():
        folder = folder / name
    try:
        return data.load(name, data_dir=folder)
    except data.DataError as error:
        raise RunError(str(error)) from None


def _train(config: Config, model: nn.Module, loader: data.Loader) -> tuple[list[float], float]:
    """The losses up to the first that is not finite, and the accuracy over the last fifth of the steps."""
    optimizer = sgd(model, config)
    steps = config.max_steps or config.epochs * len(loader)
    losses: list[float] = []
    correct: list[float] = []
    model.train()
    for epoch in range(-(-steps // len(loader))):
        for x, y in loader.epoch(epoch):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(config, len(losses), len(loader))
            logits = model(x)
            loss = F.cross_entropy(logits, y, label_smoothing=config.label_smoothing)
            losses.append(loss.item())
            correct.append((logits.argmax(1) == y).float().mean().item())
            if not math.isfinite(losses[-1]) or len(losses) == steps:
                return losses, _mean(correct[-max(1, steps // 5) :])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            if config.clip:
                nn.utils.clip_grad_norm_(model.parameters(), config.clip)
            optimizer.step()
    return losses, _mean(correct[-max(1, steps // 5) :])


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _curve(losses: list[float]) -> list[float]:
    """Means of about BINS equal parts, to four digits; what is not finite is left out."""
    finite = [loss for loss in losses if math.isfinite(loss)]
    size = max(1, math.ceil(len(finite) / BINS))
    return [float(f"{_mean(finite[i : i + size]):.4g}") for i in range(0, len(finite), size)]
