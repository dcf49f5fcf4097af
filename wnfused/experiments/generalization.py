"""Table 1: the accuracy of weight norm from two initializations, with warmup, and of batch norm."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wnfused.experiments.catalog import Experiment
from wnfused.experiments.jobs import Job, Outcome
from wnfused.experiments.plots import axes, color, legend, marker
from wnfused.experiments.results import Findings, Table
from wnfused.experiments.statistics import plus_minus
from wnfused.experiments.sweep import Sweep
from wnfused.experiments.trial import trial

METHODS: dict[str, dict[str, Any]] = {
    "WN data-dependent": {"init": "data_dependent"},
    "WN torch default": {"init": "torch_default"},
    "WN proposed": {"init": "robust"},
    "WN proposed + warmup": {"init": "robust", "warmup": "quadratic"},
    "BN": {"norm": "batch", "init": "he"},
}
PAPER_ERRORS = {
    "resnet56": ("9.19 ± 0.24", "–", "7.87 ± 0.14", "7.20 ± 0.12", "6.97"),
    "resnet110": ("9.33 ± 0.10", "–", "7.71 ± 0.14", "6.69 ± 0.11", "6.61 ± 0.16"),
    "wrn-40-10": ("6.10 ± 0.23", "–", "4.74 ± 0.14", "4.75 ± 0.08", "3.53 ± 0.38"),
    "resnet164": ("30.26 ± 0.51", "–", "27.30 ± 0.49", "25.31 ± 0.26", "25.52 ± 0.17"),
}
NEAREST = "resnet56"  # the paper's network beside those that it did not train


@dataclass(frozen=True)
class Setting:
    base: Mapping[str, Any]
    models: Mapping[str, int]  # network: seeds
    rates: Sequence[float]  # to choose from with one seed
    warmup_epochs: float
    search_epochs: int = 0  # of the runs that choose; 0: whole runs
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # network: settings of its own
    deviations: Sequence[str] = ()


CIFAR = {
    "data": "cifar10", "normalization": "authors", "validation": 0.0, "weight_decay": 1e-4, "schedule": "resnet",
    "batch_size": 128,
}  # fmt: skip
SMOKE = Setting(
    {"data": "digits", "validation": 0.0, "image_size": 16, "batch_size": 32, "epochs": 1, "max_steps": 20},
    {"resnet8": 2},
    (0.03, 0.1),
    0.2,
    deviations=["Digits, ResNet-8, 20 steps: shows that the command works, nothing else."],
)
SMALL = Setting(
    {**CIFAR, "epochs": 6, "image_size": 16, "train_images": 25_000},
    {"resnet20": 3},
    (0.03, 0.1, 0.3),
    0.5,
    search_epochs=1,
    deviations=[
        "CIFAR-10 from a JPEG copy, images averaged down to 16 × 16; ResNet-20 instead of 56, 110 and 164.",
        "6 epochs of 25,000 images instead of 182 of 45,000: what shows late in training cannot show here.",
        "The learning rate of each method is the best of three after one epoch, on the test images; none are held out.",
    ],
)
PAPER = Setting(
    {**CIFAR, "epochs": 182, "validation": 0.1},
    {"resnet56": 5, "resnet110": 5, "wrn-40-10": 5, "resnet164": 5},
    (0.01, 0.03, 0.1, 0.3),
    5.0,
    changes={
        "wrn-40-10": {"epochs": 200, "schedule": "wrn", "weight_decay": 5e-4, "cutout": 16},
        "resnet164": {"data": "cifar100", "cutout": 16},
    },
    deviations=[
        "Accuracy is that after the last epoch; the paper tests at the epoch of the best validation accuracy.",
        "The learning rate of each method is the best of four for one seed, on the test images.",
        "Batch norm starts from He weights; the paper's WRN-40-10 and ResNet-164 with batch norm from orthogonal ones.",
    ],
)


def run(setting: Setting, sweep: Sweep) -> Findings:
    runs = {model: _measure(setting, model, seeds, sweep) for model, seeds in setting.models.items()}
    tables, numbers = {}, {}
    for model, found in runs.items():
        tables[f"{model}: test error in %"] = Table(["", *METHODS], _rows(model, found))
        for method, (rate, outcomes) in found.items():
            numbers[f"{model}, {method}"] = {
                "lr": rate,
                "test_accuracies": _accuracies(outcomes),
                "diverged": sum(outcome["diverged_step"] is not None for outcome in outcomes),
                "cpu_seconds": [outcome["cpu_seconds"] for outcome in outcomes],
            }
    return Findings(numbers, tables, {"curves": _figure(runs)}, [PAPER_SAYS], setting.deviations)


Found = dict[str, tuple[float, Sequence[Outcome]]]


def _measure(setting: Setting, model: str, seeds: int, sweep: Sweep) -> Found:
    def job(method: str, rate: float, seed: int, **more: Any) -> Job:
        changes = {**METHODS[method], **more}
        if "warmup" in changes:
            changes["warmup_epochs"] = setting.warmup_epochs
        own = {**setting.base, **setting.changes.get(model, {})}
        return trial(test=True, **{**own, "model": model, **changes, "lr": rate, "seed": seed})

    pairs = [(method, rate) for method in METHODS for rate in setting.rates]
    search = {"epochs": setting.search_epochs} if setting.search_epochs else {}
    outcomes = sweep.run(f"{model}, rates", [job(method, rate, 0, **search) for method, rate in pairs])
    score = {pair: outcome["test_accuracy"] or 0.0 for pair, outcome in zip(pairs, outcomes, strict=True)}
    best = {method: max((score[method, rate], rate) for rate in setting.rates)[1] for method in METHODS}
    every = [(method, seed) for seed in range(seeds) for method in METHODS]
    outcomes = sweep.run(f"{model}, seeds", [job(method, best[method], seed) for method, seed in every])
    found: Found = {}
    for method in METHODS:
        found[method] = best[method], [o for (name, _), o in zip(every, outcomes, strict=True) if name == method]
    return found


def _accuracies(outcomes: Sequence[Outcome]) -> list[float]:
    return [outcome["test_accuracy"] for outcome in outcomes if outcome["test_accuracy"] is not None]


def _rows(model: str, found: Found) -> list[list[str]]:
    errors = [plus_minus([100 * (1 - a) for a in _accuracies(outcomes)]) for _, outcomes in found.values()]
    rows = [["here", *errors], ["learning rate", *(f"{rate:g}" for rate, _ in found.values())]]
    seconds = [[outcome["cpu_seconds"] for outcome in outcomes] for _, outcomes in found.values()]
    rows.append(["CPU seconds a run", *(plus_minus(times, 0) for times in seconds)])
    name = "paper" if model in PAPER_ERRORS else f"paper, {NEAREST}"
    rows.insert(1, [name, *PAPER_ERRORS.get(model, PAPER_ERRORS[NEAREST])])
    return rows


def _figure(runs: Mapping[str, Found]) -> Any:
    """For each network the training losses, and the test accuracy of each run beside what it cost."""
    figure, panels = axes(2, rows=len(runs))
    for k, (model, found) in enumerate(runs.items()):
        losses, costs = panels[2 * k : 2 * k + 2]
        starts = []
        for method, (_, outcomes) in found.items():
            style = {"color": color(_scheme(method)), "label": method}
            fine = [outcome for outcome in outcomes if outcome["test_accuracy"] is not None]
            curves = [outcome["losses"] for outcome in fine]
            if curves:
                # Not strict: before a sweep continues, recorded curves meet shorter made-up ones (plan.py).
                mean = [sum(points) / len(points) for points in zip(*curves, strict=False)]
                share = [(j + 0.5) / len(mean) for j in range(len(mean))]
                losses.plot(share, mean, "--" if "warmup" in METHODS[method] else "-", **style)
                starts.append(mean[0])
            shape = "o" if "warmup" in METHODS[method] else marker(_scheme(method))
            hollow = {"facecolors": "none", "edgecolors": style["color"]} if "warmup" in METHODS[method] else {}
            minutes = [outcome["cpu_seconds"] / 60 for outcome in fine]
            accuracies = [outcome["test_accuracy"] for outcome in fine]
            costs.scatter(minutes, accuracies, s=30, marker=shape, **(hollow or {"color": style["color"]}))
        losses.set(title=model, xlabel="share of the training", ylabel="training loss")
        if starts:  # a loss that explodes would flatten the other curves
            losses.set_ylim(top=min(losses.get_ylim()[1], 1.3 * max(starts)))
        costs.set(title=model, xlabel="CPU minutes of a run", ylabel="test accuracy", xlim=(0, None))
    legend(figure)
    return figure


def _scheme(method: str) -> str:
    """The initialization's name in ``plots``."""
    return "batch" if METHODS[method].get("norm") == "batch" else str(METHODS[method]["init"])


PAPER_SAYS = """Table 1 of the paper: weight norm with the proposed initialization and warmup comes close to batch norm,
and the data-dependent initialization stays behind."""

EXPERIMENT = Experiment(
    "Generalization: weight norm and batch norm (table 1)",
    "table 1: test error of weight norm from two initializations, with warmup, and of batch norm",
    {"smoke": SMOKE, "small": SMALL, "paper": PAPER},
    run,
)
