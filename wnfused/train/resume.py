"""Starting in a run directory: whether a run may start there, and the checkpoint that it resumes from."""

from pathlib import Path
from typing import Any

from wnfused.train import checkpoints
from wnfused.train.config import FREE, Config, from_mapping
from wnfused.train.distributed import World
from wnfused.train.optimization import learning_rate
from wnfused.train.progress import Progress
from wnfused.train.result import Result, RunError
from wnfused.train.run_directory import RunDirectory, describe_environment


def find_result(
    directory: RunDirectory, config: Config, resume: bool, force: bool, progress: Progress
) -> Result | None:
    """The stored result if the run in ``directory`` has ended and is resumed; None if a run is to start.

    Raises RunError if the directory is in use for something else. Changes nothing.
    """
    path = directory.path
    if resume and force:
        raise RunError("resume, force: both are set; pass resume=True to continue a run or force=True to replace it")
    if path.exists() and not path.is_dir():
        raise RunError(f"run_dir: '{path}' is a file; choose a directory")
    if not directory.has_content():
        return None
    if not resume and not force:
        raise RunError(f"run_dir: '{path}' already exists; pass resume=True to continue it or force=True to replace it")
    if not directory.is_run():
        raise RunError(f"run_dir: '{path}' is not a run directory (it has no config.json); choose another")
    if force:
        return None
    stored = stored_config(path)
    _check_same_settings(stored, config, path)
    result = _stored_result(directory, progress)
    if result is not None and (result.status == "diverged" or stored.epochs == config.epochs):
        return result
    return None


def claim(
    directory: RunDirectory, config: Config, world: World, resume: bool, progress: Progress
) -> checkpoints.State | None:
    """Lock the directory, write the first files of the run and return the checkpoint to resume from, if any."""
    directory.create()
    directory.lock()
    saved = None
    if resume:
        saved = checkpoints.latest(directory.checkpoints, progress.say)
        if saved is not None:
            _check_epochs(saved, config)
            _forget_lost_best(directory, saved, progress)
        checkpoints.delete_temporary_files(directory.checkpoints)
        (directory.path / "result.json").unlink(missing_ok=True)
    else:
        directory.clear()
    facts = describe_environment(config, world)
    if saved is not None:
        before = _stored_environment(directory, progress)
        facts["resumed"] = [*before.get("resumed", []), facts["started"]]
        facts["started"] = before.get("started", facts["started"])
    directory.write("config.json", config.as_dict())
    directory.write("environment.json", facts)
    directory.write_metrics(saved["history"] if saved is not None else [])
    return saved


def stored_config(run_dir: Path) -> Config:
    """The configuration of the run in ``run_dir``."""
    stored = RunDirectory(run_dir).read("config.json")
    if stored is None:
        raise RunError(f"run_dir: '{run_dir}' has no config.json; there is nothing to resume")
    if not isinstance(stored, dict):
        raise RunError(f"{run_dir / 'config.json'}: expected settings, got {type(stored).__name__}")
    return from_mapping(stored, str(run_dir / "config.json"))


def _stored_result(directory: RunDirectory, progress: Progress) -> Result | None:
    """None if it is missing or damaged: resuming from the last checkpoint computes it again."""
    try:
        stored = directory.read("result.json")
        if stored is None:
            return None
        result = Result(**stored)
        if result.status in ("finished", "diverged"):
            return result
        reason = f"unknown status {result.status!r}"
    except (RunError, TypeError) as error:
        reason = str(error)
    progress.say(f"skipped the result {directory.path / 'result.json'}: {reason}")
    return None


def _stored_environment(directory: RunDirectory, progress: Progress) -> dict[str, Any]:
    """Empty if it is missing or damaged: no result depends on it."""
    try:
        stored = directory.read("environment.json")
    except RunError as error:
        progress.say(f"skipped the time of the first start: {error}")
        return {}
    if isinstance(stored, dict) and isinstance(stored.get("resumed", []), list):
        return stored
    return {}


def _check_same_settings(stored: Config, config: Config, path: Path) -> None:
    """``epochs`` may grow; other settings that affect results must match."""
    before, after = stored.as_dict(), config.as_dict()
    differing = [name for name in before if name not in FREE and name != "epochs" and before[name] != after[name]]
    if differing:
        changes = ", ".join(f"{name} was {before[name]!r} and is {after[name]!r}" for name in differing)
        raise RunError(f"resume: '{path}' has another configuration: {changes}")


def _check_epochs(saved: checkpoints.State, config: Config) -> None:
    """The number of epochs may change only if the learning rates of past epochs stay the same."""
    before, position = from_mapping(saved["config"], "checkpoint"), saved["position"]
    past = position["epoch"] + (position["batch"] > 0)
    if config.epochs < past:
        raise RunError(f"epochs: expected at least {past}, the epoch that the run has reached, got {config.epochs}")
    for epoch in range(past):
        rates = [learning_rate(settings, epoch, 1) for settings in (before, config)]
        if rates[0] != rates[1]:
            raise RunError(
                f"epochs: cannot change from {before.epochs} to {config.epochs}: schedule {config.schedule!r} would "
                f"change the learning rate of epoch {epoch + 1}, which is over"
            )


def _forget_lost_best(directory: RunDirectory, saved: checkpoints.State, progress: Progress) -> None:
    """If the best weights are lost, remove their score from ``saved``: the last or the next epoch becomes the best."""
    if saved["best"]["epoch"] is None:
        return
    try:
        checkpoints.load(directory.checkpoints / checkpoints.BEST)
    except checkpoints.Unusable as error:
        progress.say(f"lost the best weights, {directory.checkpoints / checkpoints.BEST}: {error}")
        saved["best"] = {"epoch": None, "validation_accuracy": None}
