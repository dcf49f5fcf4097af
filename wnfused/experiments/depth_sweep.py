"""What the depth experiments share: per depth and initialization, the largest stable learning rate, then the seeds.

1. Bisect the learning rate with short runs of one seed.
2. Train with one seed at the largest stable rate and the ones below it, the whole length or, where that is too
   expensive, as long as in the search; keep the most accurate.
3. Spend the seeds there.

Every initialization sees the same seeds, and so the same batches.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from wnfused.experiments.jobs import Job, Outcome
from wnfused.experiments.peers import PEERS
from wnfused.experiments.plots import axes, beside, color, label, legend, marker, ticks_at
from wnfused.experiments.results import Findings, Table
from wnfused.experiments.search import largest_stable, survived
from wnfused.experiments.statistics import mean_std, plus_minus
from wnfused.experiments.sweep import Sweep
from wnfused.experiments.trial import trial

TRIED = 4  # learning rates whose runs have full length: the largest stable one and those below it

CHANCE = 0.1  # of ten classes
LEARNED = 0.15  # accuracies below this are chance
# A deviation from the paper, which tries every learning rate with every seed.
SEARCHED = "The largest stable learning rate is bisected with short runs; seeds are spent at the most accurate rate."


@dataclass(frozen=True)
class Depth:
    """One depth: how it is called in tables, its network, and what it changes in the base settings."""

    layers: int
    model: str
    search_steps: int  # of the short runs; 0: whole runs, which then serve as those of step 2
    changes: Mapping[str, Any]
    short_tried: int = 0  # so many rates are compared by short runs, instead of the setting's by whole ones
    seeds: int | None = None  # instead of the setting's


@dataclass(frozen=True)
class Setting:
    base: Mapping[str, Any]  # fields of Config
    depths: Sequence[Depth]
    inits: Sequence[str]  # of weight-normalized layers, "batch" for batch norm, or a peer
    rates: Sequence[float]  # rising
    seeds: int
    deviations: Sequence[str] = ()
    stable: Callable[[Outcome], bool] = survived  # the rule of the search
    tried: int = TRIED
    test: bool | int = True  # measure accuracy on all test images, or on so many


@dataclass(frozen=True)
class Cell:
    """One initialization at one depth."""

    stable_rate: float | None  # the largest that the search survived
    best_rate: float | None
    runs: Sequence[Outcome]  # of all seeds, at the best rate

    @property
    def accuracies(self) -> list[float]:
        return [run["test_accuracy"] for run in self.runs if run["test_accuracy"] is not None]

    @property
    def lost(self) -> int:
        """Runs that diverged by the paper's rule."""
        return sum(not survived(run) for run in self.runs)


Cells = dict[tuple[int, str], Cell]


def measure(setting: Setting, sweep: Sweep) -> Cells:
    cells: Cells = {}
    for depth in setting.depths:
        stable = largest_stable(
            sweep,
            f"{depth.layers} layers",
            {init: partial(_search_trial, setting, depth, init) for init in setting.inits},
            setting.rates,
            setting.stable,
        )
        best = _best_rates(setting, depth, stable, sweep)
        seeds = range(depth.seeds or setting.seeds)
        pairs = [(init, seed) for init in setting.inits if best[init] for seed in seeds]
        jobs = [_trial(setting, depth, init, best[init] or 0.0, seed=seed, test=setting.test) for init, seed in pairs]
        outcomes = sweep.run(f"{depth.layers} layers, seeds", jobs)
        for init in setting.inits:
            runs = [outcome for (name, _), outcome in zip(pairs, outcomes, strict=True) if name == init]
            cells[depth.layers, init] = Cell(stable[init], best[init], runs)
    return cells


def _best_rates(
    setting: Setting, depth: Depth, stable: Mapping[str, float | None], sweep: Sweep
) -> dict[str, float | None]:
    """The most accurate of the largest stable rates; a run that diverges counts as 0."""
    tried = {
        init: [] if rate is None else [r for r in setting.rates if r <= rate][-(depth.short_tried or setting.tried) :]
        for init, rate in stable.items()
    }
    pairs = [(init, rate) for init, rates in tried.items() for rate in rates]
    if depth.short_tried:
        score, jobs = "train_accuracy", [_search_trial(setting, depth, init, rate) for init, rate in pairs]
    else:
        score, jobs = "test_accuracy", [_trial(setting, depth, init, rate, test=setting.test) for init, rate in pairs]
    scores = {
        pair: outcome[score] or 0.0
        for pair, outcome in zip(pairs, sweep.run(f"{depth.layers} layers, rates", jobs), strict=True)
    }
    best: dict[str, float | None] = {}
    for init, rates in tried.items():
        best[init] = max(((scores[init, rate], rate) for rate in rates), default=(0.0, None))[1]
    return best


def _search_trial(setting: Setting, depth: Depth, init: str, lr: float) -> Job:
    if depth.search_steps:
        return _trial(setting, depth, init, lr, max_steps=depth.search_steps)
    return _trial(setting, depth, init, lr, test=setting.test)


def _trial(
    setting: Setting, depth: Depth, init: str, lr: float, *, seed: int = 0, test: bool | int = False, **more: Any
) -> Job:
    method = {"norm": "batch", "init": "he"} if init == "batch" else {"init": init}
    if init in PEERS:
        method = {"peer": init, "norm": "none", "init": "he"}
    return trial(
        test=test, **{**setting.base, "model": depth.model, **depth.changes, **method, "lr": lr, "seed": seed, **more}
    )


def several(settings: Mapping[str, Setting], sweep: Sweep, paragraphs: Sequence[str]) -> Findings:
    """One page for several settings, by their titles; the deviations are those of the first."""
    parts = {title: findings(setting, measure(setting, sweep), []) for title, setting in settings.items()}
    return Findings(
        {f"{title}: {name}": value for title, part in parts.items() for name, value in part.numbers.items()},
        {f"{heading}, {title}": table for title, part in parts.items() for heading, table in part.tables.items()},
        {f"{n}-{title.replace(' ', '-')}": plot for title, part in parts.items() for n, plot in part.figures.items()},
        paragraphs,
        next(iter(parts.values())).deviations,
    )


def findings(setting: Setting, cells: Cells, paragraphs: Sequence[str]) -> Findings:
    layers = [depth.layers for depth in setting.depths]
    head = ["initialization", *(f"{count} layers" for count in layers)]
    accuracy = [[label(init), *(_accuracy(cells[n, init]) for n in layers)] for init in setting.inits]
    rates = [[label(init), *(_rates(cells[n, init]) for n in layers)] for init in setting.inits]
    numbers = {
        f"{n} layers, {init}": {
            "largest_stable_lr": cell.stable_rate,
            "lr": cell.best_rate,
            "test_accuracies": cell.accuracies,
            "diverged": cell.lost,
            "threshold_steps": [run["threshold_step"] for run in cell.runs],
            "seeds": len(cell.runs),
        }
        for (n, init), cell in cells.items()
    }
    tables = {
        "Test accuracy in %, at the best learning rate, over seeds": Table(head, accuracy),
        "Largest stable learning rate (the one used)": Table(head, rates),
    }
    return Findings(numbers, tables, {"depth": _figure(setting, cells, layers)}, paragraphs, setting.deviations)


def _figure(setting: Setting, cells: Cells, layers: Sequence[int]) -> Any:
    """Curves end where no run survives; curves at chance show networks that survive without learning."""
    figure, (left, right) = axes(2)
    for i, init in enumerate(setting.inits):
        places = dict(zip(layers, beside(layers, i, len(setting.inits)), strict=True))
        style = {"color": color(init), "marker": marker(init), "markersize": 5, "linewidth": 1.2, "label": label(init)}
        points = [(places[n], *mean_std(cells[n, init].accuracies)) for n in layers if cells[n, init].accuracies]
        left.errorbar(*(zip(*points, strict=True) if points else ([], [], [])), capsize=2, **style)
        known = [(places[n], rate) for n in layers if (rate := cells[n, init].stable_rate)]
        right.plot(*(zip(*known, strict=True) if known else ([], [])), **style)
    left.axhline(CHANCE, color="#5b646e", linewidth=0.8, linestyle=":")
    left.set(xscale="log", xlabel="layers", ylabel="test accuracy (dotted: chance)", ylim=(0, None))
    right.set(xscale="log", yscale="log", xlabel="layers", ylabel="largest stable learning rate")
    low, high = setting.rates[0], setting.rates[-1]
    right.set_ylim(low / 2, high * 2)
    for panel in (left, right):
        ticks_at(panel.xaxis, layers)
    legend(figure)
    return figure


def _accuracy(cell: Cell) -> str:
    if cell.best_rate is None:
        return "diverges at every rate"
    if cell.accuracies and max(cell.accuracies) < LEARNED:
        return "does not learn"
    text = plus_minus([100 * accuracy for accuracy in cell.accuracies], 1)
    return f"{text} ({cell.lost} of {len(cell.runs)} diverged)" if cell.lost else text


def _rates(cell: Cell) -> str:
    if cell.stable_rate is None:
        return "none"
    return f"{cell.stable_rate:g} ({cell.best_rate:g})"
