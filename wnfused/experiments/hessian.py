"""Table 2: the curvature at initialization, and the largest stable learning rate beside it."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from wnfused.diagnostics import hessian_norm
from wnfused.experiments import trial
from wnfused.experiments.catalog import Experiment
from wnfused.experiments.jobs import Job, Outcome
from wnfused.experiments.plots import axes, color, label, legend, marker
from wnfused.experiments.results import Findings, Table
from wnfused.experiments.search import largest_stable
from wnfused.experiments.statistics import plus_minus
from wnfused.experiments.sweep import Sweep
from wnfused.train import Config

INITS = ("norm_gain", "data_dependent", "hanin", "robust", "torch_default", "norm_gain_he")
PAPER_FIGURES = {
    "wrn-40-10": ("4.68 ± 0.60", "3.01 ± 0.02", "7.14 ± 0.72", "1.31 ± 0.12", "–", "–"),
    "resnet164": ("9.56 ± 0.54", "2.68 ± 0.09", "diverged", "1.56 ± 0.18", "–", "–"),
    "resnet164-basic": ("9.56 ± 0.54", "2.68 ± 0.09", "diverged", "1.56 ± 0.18", "–", "–"),
}


@dataclass(frozen=True)
class Setting:
    base: Mapping[str, Any]
    images: Mapping[str, int]  # network: images of the sample
    seeds: int
    sizes: Sequence[int]  # samples to compare on ``scatter``
    scatter: str  # the network whose learning rates are searched
    rates: Sequence[float]
    steps: int  # of a run of the search
    inits: Sequence[str] = INITS
    iterations: int = 20
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # network: settings of its own
    deviations: Sequence[str] = ()


CIFAR = {
    "data": "cifar10",
    "normalization": "authors",
    "validation": 0.0,
    "weight_decay": 5e-4,
    "crop": 0,
    "flip": False,
}
RAYLEIGH = "λ is the Rayleigh quotient of a converged eigenvector; the authors' code takes the largest entry of Hv."
RATES = tuple(round(10 ** (k / 2), 9) for k in range(-14, 2))
SMOKE = Setting(
    {"data": "digits", "validation": 0.0, "image_size": 8, "batch_size": 16, "crop": 0, "flip": False},
    {"wrn-16-1": 32},
    seeds=2,
    sizes=(16, 32),
    scatter="wrn-16-1",
    rates=(1e-3, 1e-1, 1.0),
    steps=10,
    inits=("norm_gain", "robust"),
    iterations=6,
    deviations=["Digits, WRN-16-1, 32 images: shows that the command works, nothing else."],
)
SMALL = Setting(
    {**CIFAR, "batch_size": 64},
    {"wrn-40-1": 256, "resnet164-basic": 64, "resnet164": 64, "wrn-40-10": 4},
    seeds=3,
    sizes=(16, 32, 64, 128, 256),
    scatter="wrn-40-1",
    rates=RATES,
    steps=60,
    deviations=[
        "CIFAR-10 from a JPEG copy, for ResNet-164 too (CIFAR-100 in the paper); no augmentation.",
        RAYLEIGH,
        "Samples of 4 to 256 images instead of 10% of the training set: the table below shows how little λ moves.",
    ],
)
PAPER = Setting(
    {**CIFAR, "batch_size": 128},
    {"wrn-40-10": 5000, "resnet164": 5000, "resnet164-basic": 5000},
    seeds=5,
    sizes=(128, 512, 2048, 5000),
    scatter="wrn-40-10",
    rates=RATES,
    steps=390,
    iterations=50,
    changes={"resnet164": {"data": "cifar100"}, "resnet164-basic": {"data": "cifar100"}},
    deviations=[RAYLEIGH, "No augmentation: λ is that of 5,000 fixed images."],
)


def measure(settings: dict[str, Any], data_dir: str | None) -> Outcome:
    """log10 λ of one network at its initialization, on the first ``images`` of the training set."""
    start = time.perf_counter()
    config = Config(**settings["config"], train_images=settings["images"])
    model, loader = trial.prepare(config, data_dir)
    batches = list(loader.epoch(0))
    try:
        found = hessian_norm(
            model, F.cross_entropy, batches, method="lanczos", tolerance=1e-2,
            iterations=settings["iterations"], generator=torch.Generator().manual_seed(config.seed),
        )  # fmt: skip
    except ValueError as error:  # the loss or its derivatives overflow
        return {"log10": None, "reason": str(error), "seconds": round(time.perf_counter() - start, 1)}
    seconds = round(time.perf_counter() - start, 1)
    return {"log10": math.log10(found.value), "converged": found.converged, "seconds": seconds}


def _job(setting: Setting, model: str, init: str, seed: int, images: int) -> Job:
    config = {**setting.base, **setting.changes.get(model, {}), "model": model, "init": init, "seed": seed}
    config["batch_size"] = min(config["batch_size"], images)
    Config(**config)
    return Job("hessian:measure", {"config": config, "images": images, "iterations": setting.iterations})


def run(setting: Setting, sweep: Sweep) -> Findings:
    table, values = _by_network(setting, sweep)
    by_size = _by_size(setting, sweep)
    rates = largest_stable(
        sweep, setting.scatter, {init: partial(_train, setting, init) for init in setting.inits}, setting.rates
    )
    size = setting.images.get(setting.scatter, setting.sizes[-1])
    curvature = {init: values.get((setting.scatter, init)) or by_size[init][-1:] for init in setting.inits}
    figure, (panel,) = axes(1)
    for init in setting.inits:
        if (rate := rates[init]) and curvature[init]:
            x = sum(curvature[init]) / len(curvature[init])
            panel.scatter([x], [rate], s=50, color=color(init), marker=marker(init), label=label(init))
    panel.set(yscale="log", xlabel=f"log10 λ at initialization, {size} images", ylabel="largest stable learning rate")
    panel.set_ylim(setting.rates[0] / 2, setting.rates[-1] * 2)
    panel.set_title(setting.scatter)
    legend(figure, columns=2)
    numbers = {
        "log10_lambda": {f"{model}, {init}": found for (model, init), found in values.items()},
        "by_sample_size": {init: dict(zip(map(str, setting.sizes), by_size[init], strict=False)) for init in by_size},
        "largest_stable_lr": rates,
    }
    sizes = Table(
        ["initialization", *(f"{n} images" for n in setting.sizes)],
        [[label(init), *(f"{value:.2f}" for value in found)] for init, found in by_size.items()],
    )
    tables = {"log10 of the spectral norm": table, f"{setting.scatter}, over the size of the sample": sizes}
    return Findings(numbers, tables, {"curvature-and-rate": figure}, [PAPER_SAYS], setting.deviations)


def _train(setting: Setting, init: str, lr: float) -> Job:
    return trial.trial(**{**setting.base, "model": setting.scatter, "init": init, "lr": lr, "max_steps": setting.steps})


def _by_network(setting: Setting, sweep: Sweep) -> tuple[Table, dict[tuple[str, str], list[float]]]:
    rows, values = [], {}
    for model, images in setting.images.items():
        pairs = [(init, seed) for seed in range(setting.seeds) for init in setting.inits]
        found = sweep.run(model, [_job(setting, model, init, seed, images) for init, seed in pairs])
        for init in setting.inits:
            values[model, init] = [
                outcome["log10"] for (name, _), outcome in zip(pairs, found, strict=True)
                if name == init and outcome["log10"] is not None
            ]  # fmt: skip
        rows.append([f"{model}, {images} images", *(plus_minus(values[model, init]) for init in setting.inits)])
        if model in PAPER_FIGURES and tuple(setting.inits) == INITS:
            rows.append(["paper", *PAPER_FIGURES[model]])
    return Table(["network", *map(label, setting.inits)], rows), values


def _by_size(setting: Setting, sweep: Sweep) -> dict[str, list[float]]:
    jobs = {
        init: [_job(setting, setting.scatter, init, 0, images) for images in setting.sizes] for init in setting.inits
    }
    sweep.run("sample sizes", [job for some in jobs.values() for job in some])
    return {
        init: [v for outcome in sweep.run("sample sizes", some) if (v := outcome["log10"]) is not None]
        for init, some in jobs.items()
    }


PAPER_SAYS = """Table 2 of the paper: the proposed initialization has the lowest curvature, which is why it takes the
largest learning rates. "paper's default" is the paper's baseline, orthogonal weights with g = ‖v‖; torch's own default,
which the paper does not train, is shown beside it."""

EXPERIMENT = Experiment(
    "Curvature at initialization (table 2)",
    "table 2: spectral norm of the Hessian at initialization, and the largest stable learning rate beside it",
    {"smoke": SMOKE, "small": SMALL, "paper": PAPER},
    run,
)
