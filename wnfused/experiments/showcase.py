"""What ``wnfused train`` does without arguments: one deep network, three initializations, and what a step costs.

The three runs share network, data, seed and learning rate; only the initialization differs. A showcase that was stopped
is gone on with, one that is complete is left alone: the next one gets a folder of its own.
"""

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from wnfused import data, report
from wnfused.diagnostics.timing import Timing
from wnfused.experiments import step_time
from wnfused.report import Table, numbers
from wnfused.train import Config, Progress, Result, RunError, records, train
from wnfused.train.interrupts import passed_on
from wnfused.train.run import check
from wnfused.train.run_folder import RunFolder, write_atomically

INITS = {"torch default": "torch_default", "data-dependent": "data_dependent", "proposed": "robust"}
PAGE = "report.html"
TIMES = "step_times.json"


@dataclass(frozen=True)
class Showcase:
    """The setting; a smaller one is for tests."""

    config: Config
    rounds: int = 12  # of the step times


# At 304 layers torch's default diverges whatever the seed; at 244 it depends on the seed, and at 58 it trains.
# Small batches make many steps of little time.
USUAL = Showcase(
    Config(data="digits", model="wrn-304-1", epochs=2, batch_size=8, lr=0.003, weight_decay=5e-4, max_loss=1000.0),
    rounds=8,
)


def run(
    root: Path = Path("runs"),
    *,
    showcase: Showcase = USUAL,
    progress: Callable[[], Progress] = Progress,
    say: Callable[[str], None] = lambda text: None,
    table: Callable[[Table], None] = lambda table: None,
) -> None:
    """Train, measure, show. ``say`` shows a paragraph, ``table`` a table.

    Whatever is missing raises RunError before anything is shown. Ctrl-C and SIGTERM, wherever they arrive, end it with
    a KeyboardInterrupt, and the next call resumes.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise RunError("the showcase is for one process: for several name a run, as with --preset and --run-dir")
    check(showcase.config)
    folder, goes_on = place(root, showcase)
    RunFolder(folder / _slug(next(iter(INITS)))).make()
    try:
        _show(folder, goes_on, showcase, progress, say, table)
    except KeyboardInterrupt:
        say(f"Stopped: the next `wnfused train` goes on with {folder}.")
        raise


def _show(
    folder: Path,
    goes_on: bool,
    showcase: Showcase,
    progress: Callable[[], Progress],
    say: Callable[[str], None],
    table: Callable[[Table], None],
) -> None:
    for paragraph in introduction(showcase.config):
        say(paragraph)
    say(f"Going on with {folder}, which was stopped." if goes_on else f"The runs go into {folder}.")
    results: dict[str, Result] = {}
    for number, (name, init) in enumerate(INITS.items(), start=1):
        say(f"{number} of {len(INITS)}: {name} initialization")
        config = replace(showcase.config, init=init)
        results[name] = train(config, folder / _slug(name), resume=goes_on, progress=progress())
        if results[name].status == "interrupted":
            raise passed_on(results[name].stopped_by)
    say("What a step costs, measured in turns …")
    times = _times(folder, showcase)
    tables = [outcomes(results), costs(times, showcase.config)]
    for shown in tables:
        table(shown)
    runs = [records.read(folder / _slug(name)) for name in INITS]
    page = report.render(
        runs,
        title="One network, three initializations",
        lead=[*introduction(showcase.config), conclusion(results, times)],
        more=[tables[1]],
        names=list(INITS),
    )
    say(conclusion(results, times))
    say(f"The page with the curves: {report.write(page, folder / PAGE)}")


def place(root: Path, showcase: Showcase) -> tuple[Path, bool]:
    """The folder to use, and whether a stopped showcase lies in it."""
    number = 1
    while (folder := root / ("showcase" if number == 1 else f"showcase-{number}")).exists():
        if not (folder / PAGE).exists() and _same(folder, showcase):
            return folder, True
        number += 1
    return folder, False


def _same(folder: Path, showcase: Showcase) -> bool:
    """Whether what lies in the folder was begun with these settings."""
    for name, init in INITS.items():
        file = folder / _slug(name) / "config.json"
        try:
            stored = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            continue
        except (OSError, ValueError):
            return False
        if stored != replace(showcase.config, init=init).as_dict():
            return False
    return True


def _slug(name: str) -> str:
    return name.replace(" ", "-")


WHAT = """A weight-normalized residual network of {layers} layers ({model}) learns scikit-learn's digits (shown as
3×32×32) three times, with the same seed, batches and learning rate ({lr:g}). Only its initialization differs."""
WHY = """Without normalization of activations, signals and gradients grow or fade from layer to layer. The proposed
initialization (Arpit, Campos & Bengio, 2019) has orthogonal directions, and gains that keep both at their size, however
deep the network is."""


def introduction(config: Config) -> list[str]:
    layers = "".join(re.findall(r"\d+", config.model)[:1])  # resnet110, wrn-304-1, mlp-20-512
    return [" ".join(text.format(layers=layers, model=config.model, lr=config.lr).split()) for text in (WHAT, WHY)]


def conclusion(results: Mapping[str, Result], times: Mapping[str, Timing]) -> str:
    """What came out, in a sentence or two: as measured, whichever way it went."""
    parts = "; ".join(f"{name}: {_outcome(result)}" for name, result in results.items())
    fused, torchs = (f"{times[name].ratio:.2f} times" for name in ("wnfused", "torch's weight_norm"))
    cost = f"Against no normalization, a step takes {fused} as long with wnfused and {torchs} with torch's weight_norm."
    return f"{parts[0].upper()}{parts[1:]}. {cost}"


def _outcome(result: Result) -> str:
    if result.status == "diverged":
        return f"diverged at step {result.diverged_step}"
    return f"{numbers.accuracy(result.test_accuracy)} of the test images right"


def outcomes(results: Mapping[str, Result]) -> Table:
    rows = []
    for name, result in results.items():
        diverged = result.status == "diverged"
        rows.append(
            (
                name,
                "diverged" if diverged else result.status,
                f"{result.diverged_step if diverged else result.steps}",
                numbers.accuracy(None if diverged else result.best_validation_accuracy),
                numbers.accuracy(result.test_accuracy),
                numbers.duration(result.seconds),
            )
        )
    return Table(("initialization", "outcome", "steps", "validation", "test", "time"), rows, title="Initialization")


def costs(times: Mapping[str, Timing], config: Config) -> Table:
    rows = [(name, numbers.milliseconds(time.seconds), f"{time.ratio:.2f}") for name, time in times.items()]
    return Table(
        ("the same network with", "step", "relative"),
        rows,
        title="What a step costs",
        note=f"Forward, backward and SGD on {config.batch_size} images, {torch.get_num_threads()} thread(s), in turns: "
        "medians of the times, and of the ratios within a round.",
    )


def _times(folder: Path, showcase: Showcase) -> dict[str, Timing]:
    """Measured once for a folder."""
    file = folder / TIMES
    try:
        return step_time.from_dicts(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, AttributeError):
        pass
    images, labels = _batch(showcase.config)
    times = step_time.measure(showcase.config, images, labels, showcase.rounds)
    stored: dict[str, Any] = {name: asdict(time) for name, time in times.items()}
    write_atomically(file, (json.dumps(stored, indent=2) + "\n").encode())
    return times


def _batch(config: Config) -> Sequence[torch.Tensor]:
    known = data.load(config.data, data_dir=Path(config.data_dir) if config.data_dir else None)
    loader = data.Loader(known.train, config.batch_size, mean=known.mean, std=known.std, seed=config.seed)
    return next(iter(loader.epoch(0)))
