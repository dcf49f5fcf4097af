"""The paper's appendix: actor-critic with a residual policy of 100 layers, with and without weight norm."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wnfused.experiments.actor_critic import train
from wnfused.experiments.catalog import Experiment
from wnfused.experiments.environments import GAMES, check_installed
from wnfused.experiments.jobs import Job, Outcome
from wnfused.experiments.plots import axes, color, label, legend
from wnfused.experiments.results import Findings, Table
from wnfused.experiments.statistics import plus_minus
from wnfused.experiments.sweep import Sweep

ARMS = ("robust", "norm_gain", "torch_default", "none")
POINTS = 40  # of a curve


@dataclass(frozen=True)
class Setting:
    base: Mapping[str, Any]  # of every job
    steps: Mapping[str, int]  # game: steps of all environments together
    seeds: int
    arms: Sequence[str] = ARMS
    deviations: Sequence[str] = ()


# The usual values of synchronous actor-critic: RMSprop, entropy 0.01, half the squared error, gradients clipped to 0.5.
USUAL = {"discount": 0.99, "entropy": 0.01, "value": 0.5, "clip": 0.5, "layers": 100}
SMOKE = Setting(
    {**USUAL, "width": 16, "layers": 10, "lr": 1e-3, "n": 8, "environments": 8},
    {"cartpole": 2_000},
    seeds=2,
    arms=("robust", "none"),
    deviations=["CartPole, 10 layers, 2,000 steps: shows that the command works, nothing else."],
)
SMALL = Setting(
    {**USUAL, "width": 64, "lr": 3e-4, "n": 8, "environments": 16},
    {"cartpole": 200_000, "breakout": 600_000},
    seeds=3,
    deviations=[
        "CartPole and MinAtar Breakout instead of Pong; a residual network of linear layers of width 64.",
        "Synchronous actor-critic with 16 environments instead of asynchronous workers.",
        "The paper does not say which learning rate, optimizer and entropy it used; those here are usual values.",
    ],
)
PAPER = Setting(
    {**USUAL, "width": 256, "lr": 3e-4, "n": 20, "environments": 6},
    {"pong": 7_000_000},
    seeds=3,
    deviations=[
        "Synchronous actor-critic with 6 environments instead of 6 asynchronous workers.",
        "The paper does not say which 100 layers, learning rate, optimizer and entropy it used; those here are usual.",
    ],
)

Runs = Mapping[tuple[str, str], Sequence[Outcome]]  # by game and arm


def measure(settings: dict[str, Any], data_dir: str | None) -> Outcome:
    start = time.perf_counter()
    progress = train(settings)
    final = progress.final(settings["steps"])
    return {
        "curve": progress.curve(settings["steps"], POINTS),
        "final_return": final,
        # A run that diverged did not start, whatever it reached before.
        "started": progress.diverged_step is None and final is not None and final >= GAMES[settings["game"]].started,
        "diverged_step": progress.diverged_step,
        "episodes": len(progress.ended),
        "seconds": round(time.perf_counter() - start, 1),
    }


def run(setting: Setting, sweep: Sweep) -> Findings:
    check_installed(list(setting.steps))
    # Seeds in the outer loop: stopped early, every arm has as many.
    cases = [(seed, game, arm) for seed in range(setting.seeds) for game in setting.steps for arm in setting.arms]
    jobs = [
        Job("rl:measure", {**setting.base, "game": game, "arm": arm, "steps": setting.steps[game], "seed": seed})
        for seed, game, arm in cases
    ]
    runs: dict[tuple[str, str], list[Outcome]] = {(game, arm): [] for _, game, arm in cases}
    for (_, game, arm), outcome in zip(cases, sweep.run("runs", jobs), strict=True):
        runs[game, arm].append(outcome)
    head = ["network", *(GAMES[game].title for game in setting.steps)]
    returns = [[_label(arm), *(_final(runs[game, arm]) for game in setting.steps)] for arm in setting.arms]
    started = [[_label(arm), *(_started(runs[game, arm]) for game in setting.steps)] for arm in setting.arms]
    tables = {
        "Mean return in the last tenth of the steps": Table(head, returns),
        "Runs that start": Table(head, started),
    }
    numbers = {f"{game}, {arm}": list(outcomes) for (game, arm), outcomes in runs.items()}
    criterion = "; ".join(f"{GAMES[game].title} {GAMES[game].started:.1f}" for game in setting.steps)
    paragraphs = [PAPER_SAYS, f"{STARTS} ({criterion})."]
    return Findings(numbers, tables, {"returns": _figure(setting, runs)}, paragraphs, setting.deviations)


def _label(arm: str) -> str:
    return label(arm) if arm == "none" else f"weight norm, {label(arm)}"


def _final(outcomes: Sequence[Outcome]) -> str:
    lost = [outcome["diverged_step"] for outcome in outcomes if outcome["diverged_step"] is not None]
    text = plus_minus([outcome["final_return"] for outcome in outcomes if outcome["final_return"] is not None], 1)
    return f"{text} ({len(lost)} of {len(outcomes)} diverged)" if lost else text


def _started(outcomes: Sequence[Outcome]) -> str:
    return f"{sum(outcome['started'] for outcome in outcomes)} of {len(outcomes)}"


def _figure(setting: Setting, runs: Runs) -> Any:
    figure, panels = axes(len(setting.steps))
    for panel, (game, steps) in zip(panels, setting.steps.items(), strict=True):
        for arm in setting.arms:
            points = []
            for i, values in enumerate(zip(*(outcome["curve"] for outcome in runs[game, arm]), strict=True)):
                if known := [value for value in values if value is not None]:
                    points.append(((i + 0.5) * steps / POINTS, sum(known) / len(known), min(known), max(known)))
            if points:
                x, mean, low, high = zip(*points, strict=True)
                panel.plot(x, mean, color=color(arm), label=_label(arm))
                panel.fill_between(x, low, high, color=color(arm), alpha=0.15)
        panel.axhline(GAMES[game].random, color="#5b646e", linewidth=0.8, linestyle=":")
        panel.set(title=GAMES[game].title, xlabel="steps of all environments")
    panels[0].set_ylabel("mean return of episodes")
    legend(figure, columns=min(2, len(setting.steps) + 1))
    return figure


PAPER_SAYS = """The paper's appendix trains a residual policy of 100 layers on Pong with 3 seeds: weight norm with the
proposed initialization solves it fastest, the network without normalization later, and weight norm with PyTorch's
default initialization (orthogonal weights, g = ‖v‖, in the authors' code) does not start. Lines are means over seeds,
bands the smallest and largest; the dotted line is a random policy."""
STARTS = """A run starts if its mean return in the last tenth of the steps is at least a tenth of the way from that of a
random policy to that of a good one"""

EXPERIMENT = Experiment(
    "Actor-critic with a policy of 100 layers (appendix)",
    "appendix: actor-critic with a policy of 100 layers, with and without weight norm",
    {"smoke": SMOKE, "small": SMALL, "paper": PAPER},
    run,
)
