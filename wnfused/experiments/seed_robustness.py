"""Figure 4: the share of runs that survive, over learning rates and seeds, with and without warmup."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wnfused.experiments.catalog import Experiment
from wnfused.experiments.jobs import Job, Outcome
from wnfused.experiments.plots import axes, beside, color, label, legend, marker, ticks_at
from wnfused.experiments.results import Findings, Table
from wnfused.experiments.search import survived
from wnfused.experiments.statistics import wilson
from wnfused.experiments.sweep import Sweep
from wnfused.experiments.trial import trial


@dataclass(frozen=True)
class Setting:
    base: Mapping[str, Any]
    inits: Sequence[str]
    rates: Sequence[float]
    warmups: Sequence[float]  # epochs; 0: none
    seeds: int
    deviations: Sequence[str] = ()


INITS = ("robust", "norm_gain", "torch_default", "data_dependent", "hanin")
CIFAR = {"data": "cifar10", "normalization": "authors", "validation": 0.0, "weight_decay": 5e-4, "warmup": "quadratic"}
SMOKE = Setting(
    {"data": "digits", "model": "wrn-16-1", "validation": 0.0, "image_size": 8, "batch_size": 32, "max_steps": 15},
    ("robust", "norm_gain"),
    (1e-2, 1.0),
    (0.0, 0.2),
    seeds=3,
    deviations=["Digits, WRN-16-1, 15 steps, 3 seeds: shows that the command works, nothing else."],
)
SMALL = Setting(
    {**CIFAR, "model": "wrn-40-1", "image_size": 16, "train_images": 9600, "batch_size": 64, "epochs": 1},
    INITS,
    (0.01, 0.03, 0.1, 0.3),
    (0.0, 1 / 3),
    seeds=20,
    deviations=[
        "CIFAR-10 from a JPEG copy; WRN-40-1 instead of WRN-40-10; images averaged down to 16 × 16.",
        "150 steps of 64 images (one epoch of 9,600 images) instead of 3 epochs; warmup over the first 50 steps.",
    ],
)
PAPER = Setting(
    {**CIFAR, "model": "wrn-40-10", "epochs": 3, "cutout": 16},
    INITS,
    (0.003, 0.01, 0.03, 0.1, 0.3),
    (0.0, 1.0),
    seeds=20,
)

Group = tuple[float, str, float]  # warmup, init, lr


def _trial(setting: Setting, group: Group, seed: int) -> Job:
    warmup, init, lr = group
    return trial(**{**setting.base, "init": init, "lr": lr, "warmup_epochs": warmup, "seed": seed})


def run(setting: Setting, sweep: Sweep) -> Findings:
    groups = [(warmup, init, lr) for warmup in setting.warmups for init in setting.inits for lr in setting.rates]
    # Seeds in the outer loop: stopped early, every group has as many.
    pairs = [(group, seed) for seed in range(setting.seeds) for group in groups]
    outcomes = sweep.run("runs", [_trial(setting, group, seed) for group, seed in pairs])
    runs: dict[Group, list[Outcome]] = {group: [] for group in groups}
    for (group, _), outcome in zip(pairs, outcomes, strict=True):
        runs[group].append(outcome)
    return _findings(setting, runs)


def _findings(setting: Setting, runs: Mapping[Group, Sequence[Outcome]]) -> Findings:
    figure, panels = axes(len(setting.warmups), sharey=True)
    tables, numbers = {}, {}
    for panel, warmup in zip(panels, setting.warmups, strict=True):
        for i, init in enumerate(setting.inits):
            shares = [_share(runs[warmup, init, lr]) for lr in setting.rates]
            bounds = [wilson(_survivors(runs[warmup, init, lr]), setting.seeds) for lr in setting.rates]
            below = [max(0.0, share - low) for share, (low, _) in zip(shares, bounds, strict=True)]
            above = [max(0.0, high - share) for share, (_, high) in zip(shares, bounds, strict=True)]
            panel.errorbar(
                beside(setting.rates, i, len(setting.inits)), shares, [below, above], label=label(init), capsize=2,
                color=color(init), marker=marker(init), markersize=5, linewidth=1.2, elinewidth=0.8,
            )  # fmt: skip
        title = _title(warmup)
        panel.set(xscale="log", xlabel="learning rate", title=title, ylim=(-0.05, 1.05))
        ticks_at(panel.xaxis, setting.rates)
        rows = [[label(init), *(_cell(runs[warmup, init, lr]) for lr in setting.rates)] for init in setting.inits]
        tables[f"Runs that survive, {title}"] = Table(["initialization", *(f"lr {lr:g}" for lr in setting.rates)], rows)
    panels[0].set_ylabel("share of runs that survive")
    legend(figure)
    for (warmup, init, lr), found in runs.items():
        numbers[f"{_title(warmup)}, {init}, lr {lr:g}"] = {
            "survived": _survivors(found),
            "survived_threshold": sum(outcome["threshold_step"] is None for outcome in found),
            "seeds": len(found),
            "diverged_steps": [step for outcome in found if (step := outcome["diverged_step"]) is not None],
        }
    return Findings(numbers, tables, {"robustness": figure}, [PAPER_SAYS], setting.deviations)


def _title(warmup: float) -> str:
    return "with warmup" if warmup else "without warmup"


def _survivors(outcomes: Sequence[Outcome]) -> int:
    return sum(map(survived, outcomes))


def _share(outcomes: Sequence[Outcome]) -> float:
    return _survivors(outcomes) / len(outcomes)


def _cell(outcomes: Sequence[Outcome]) -> str:
    low, high = wilson(_survivors(outcomes), len(outcomes))
    return f"{_share(outcomes):.0%} ({low:.0%}–{high:.0%})"


PAPER_SAYS = """The paper trains WRN-40-10 for 3 epochs with 20 seeds and counts the runs without a NaN: the proposed
initialization survives most often at every learning rate, and warmup helps every initialization. In brackets: Wilson's
95% intervals."""

EXPERIMENT = Experiment(
    "WRN-40: the share of runs that survive, over learning rates (figure 4)",
    "figure 4: share of runs that survive, over learning rates and seeds, with and without warmup",
    {"smoke": SMOKE, "small": SMALL, "paper": PAPER},
    run,
)
