"""``train``: from a Config and a folder to a Result, through every check that can refuse the run before it starts."""

from pathlib import Path
from typing import Any

from torch import nn

from wnfused.ops import backends
from wnfused.train import build, checkpoints, data, distributed, environment, schedules, state, tensorboard
from wnfused.train.config import FREE, Config, from_mapping
from wnfused.train.distributed import World
from wnfused.train.errors import RunError
from wnfused.train.loop import Trainer
from wnfused.train.progress import Progress
from wnfused.train.result import Result
from wnfused.train.run_folder import RunFolder


def train(
    config: Config, run_dir: Path | str, *, resume: bool = False, force: bool = False, progress: Progress | None = None
) -> Result:
    """Train, and leave everything in ``run_dir`` (docs/training.md tells what).

    ``resume`` goes on from the last checkpoint there, if there is one; ``force`` removes an earlier run first. Bad
    input raises RunError before anything is written. A run that diverges, or is interrupted by Ctrl-C or SIGTERM, ends
    with a Result.
    """
    folder = RunFolder(Path(run_dir))
    with distributed.joined(config.device) as world:
        shown = progress if progress is not None and world.first else Progress()
        return _train(config, folder, world, shown, resume, force)


def check(config: Config) -> None:
    """Raise RunError where a run would not start for want of a package, of its data set or of its backend."""
    with distributed.joined(config.device) as world:
        _check_packages(config)
        data.load(config, world)
        _check_machine(config, world)


def _train(config: Config, folder: RunFolder, world: World, progress: Progress, resume: bool, force: bool) -> Result:
    _check_packages(config)
    ended = world.from_first(lambda: _check_folder(folder, config, resume, force, progress))
    if ended is not None:
        progress.say(f"the run in {folder.path} has {ended.status} already")
        return ended
    images = data.load(config, world)
    _check_machine(config, world)
    model = build.network(config, images.shape, images.classes, lambda: images.first_batch)
    try:
        saved = world.from_first(lambda: _open(folder, config, world, resume, progress))
        return _run(Trainer(config, model, images, folder, world, progress, saved))
    finally:
        folder.unlock()


def _run(trainer: Trainer) -> Result:
    folder, world, progress = trainer.folder, trainer.world, trainer.progress
    if trainer.config.tensorboard and world.first:
        trainer.board = tensorboard.Board(folder.path / "tensorboard", trainer.step)
    progress.begin(_title(trainer))
    result: Result | None = None
    try:
        result = trainer.run()
        if result.status != "interrupted":
            world.from_first(lambda: folder.write("result.json", result.as_dict()))
            if world.first:
                _plot(folder.path, progress)
        return result
    finally:
        progress.end(result)
        if trainer.board is not None:
            trainer.board.close()


def _title(trainer: Trainer) -> str:
    config, world, train_images = trainer.config, trainer.world, trainer.images.train
    count = sum(parameter.numel() for parameter in trainer.parameters)
    how = f"norm {config.norm}, init {config.init}" + (", torch's weight_norm" if config.impl == "torch" else "")
    where = f"{world.size} processes, {config.sharding}" if world.size > 1 else str(world.device)
    since = f"; resumed at step {trainer.step}" if trainer.step else ""
    return (
        f"{config.model} ({how}; {count:,} parameters) on {config.data}: {config.epochs} × {len(train_images)} "
        f"steps of {config.batch_size} images, {where}, into {trainer.folder.path}{since}"
    )


def _check_packages(config: Config) -> None:
    if config.tensorboard:
        tensorboard.check()


def _check_machine(config: Config, world: World) -> None:
    if config.amp == "fp16" and world.device.type == "cpu":
        raise RunError("amp 'fp16' needs a GPU: expected 'bf16' or 'none' on a CPU")
    try:
        backends.resolve(world.device)  # builds the native kernels if need be
    except backends.BackendUnavailable as error:
        raise RunError(str(error)) from None


def _check_folder(folder: RunFolder, config: Config, resume: bool, force: bool, progress: Progress) -> Result | None:
    """Refuse a folder that is taken; the result of a run that is over and only to be resumed. Changes nothing."""
    path = folder.path
    if resume and force:
        raise RunError("--resume goes on with a run, --force starts it anew: expected one of them")
    if path.exists() and not path.is_dir():
        raise RunError(f"run folder {path}: a file has that name")
    if not folder.exists():
        return None
    if not resume and not force:
        raise RunError(
            f"run folder {path} exists: --resume goes on with it, --force starts anew, --run-dir names another"
        )
    if not folder.is_run():
        raise RunError(f"run folder {path} holds no run (it has no config.json): name another with --run-dir")
    if force:
        return None
    stored = stored_config(path)
    _check_same(stored, config, path)
    result = _stored_result(folder, progress)
    if result is not None and (result.status == "diverged" or stored.epochs == config.epochs):
        return result
    return None


def _stored_result(folder: RunFolder, progress: Progress) -> Result | None:
    """None where there is none, and where it is damaged: the last checkpoint leads to it again."""
    try:
        stored = folder.read("result.json")
        if stored is None:
            return None
        result = Result(**stored)
        if result.status in ("finished", "diverged"):
            return result
        reason = f"unknown status {result.status!r}"
    except (RunError, TypeError) as error:
        reason = str(error)
    progress.say(f"skipped the result {folder.path / 'result.json'}: {reason}")
    return None


def stored_config(run_dir: Path) -> Config:
    stored = RunFolder(run_dir).read("config.json")
    if stored is None:
        raise RunError(f"nothing to resume in {run_dir}: it has no config.json")
    if not isinstance(stored, dict):
        raise RunError(f"{run_dir / 'config.json'}: expected settings, got {type(stored).__name__}")
    return from_mapping(stored, str(run_dir / "config.json"))


def _check_same(stored: Config, config: Config, path: Path) -> None:
    """Only what changes no result may change; of the epochs there may be more."""
    before, after = stored.as_dict(), config.as_dict()
    differing = [name for name in before if name not in FREE and name != "epochs" and before[name] != after[name]]
    if differing:
        told = ", ".join(f"{name} (there {before[name]!r}, asked {after[name]!r})" for name in differing)
        raise RunError(f"cannot resume {path} with another configuration: {told}")


def _check_epochs(saved: checkpoints.Payload, config: Config) -> None:
    """A run may become longer where that leaves the learning rates of its past alone."""
    before, position = from_mapping(saved["config"], "checkpoint"), saved["position"]
    past = position["epoch"] + (position["batch"] > 0)
    if config.epochs < past:
        raise RunError(f"cannot resume with epochs {config.epochs}: the run is in epoch {past} already")
    for epoch in range(past):
        rates = [schedules.learning_rate(run, epoch, 1) for run in (before, config)]
        if rates[0] != rates[1]:
            raise RunError(
                f"cannot resume with epochs (there {before.epochs}, asked {config.epochs}): the schedule "
                f"{config.schedule!r} would have had another learning rate in epoch {epoch + 1}"
            )


def _open(
    folder: RunFolder, config: Config, world: World, resume: bool, progress: Progress
) -> checkpoints.Payload | None:
    """Take possession of the folder, and find the checkpoint to go on from."""
    fresh = not resume
    folder.make()
    folder.lock()
    saved = None
    if fresh:
        folder.clear()
    else:
        saved = checkpoints.latest(folder.checkpoints, progress.say)
        if saved is not None:
            _check_epochs(saved, config)
            _check_best(folder, saved, progress)
        checkpoints.sweep(folder.checkpoints)
        (folder.path / "result.json").unlink(missing_ok=True)
    facts = environment.describe(config, world)
    if saved is not None:
        before = _stored_environment(folder, progress)
        facts["resumed"] = [*before.get("resumed", []), facts["started"]]
        facts["started"] = before.get("started", facts["started"])
    folder.write("config.json", config.as_dict())
    folder.write("environment.json", facts)
    folder.write_metrics(saved["history"] if saved is not None else [])
    return saved


def _stored_environment(folder: RunFolder, progress: Progress) -> dict[str, Any]:
    """Empty where it is missing or damaged: no result depends on it."""
    try:
        stored = folder.read("environment.json")
    except RunError as error:
        progress.say(f"lost when the run was started: {error}")
        return {}
    if isinstance(stored, dict) and isinstance(stored.get("resumed", []), list):
        return stored
    return {}


def _check_best(folder: RunFolder, saved: checkpoints.Payload, progress: Progress) -> None:
    """Without the best weights their score is worth nothing: the last or the next epoch is the best then."""
    if saved["best"]["epoch"] is None:
        return
    try:
        checkpoints.load(folder.checkpoints / checkpoints.BEST)
    except checkpoints.Unusable as error:
        progress.say(f"lost the best weights, {folder.checkpoints / checkpoints.BEST}: {error}")
        saved["best"] = {"epoch": None, "validation_accuracy": None}


def _plot(path: Path, progress: Progress) -> None:
    """The run is complete and safe by now: pictures that cannot be drawn are no reason to fail."""
    from wnfused.train.plots import plot_run

    try:
        plot_run(path)
    except (ImportError, OSError) as error:
        progress.say(f"no plots: {error}")


def load_best(run_dir: Path | str) -> nn.Module:
    """The network of a run with the weights of its best epoch, on the CPU, for use."""
    kept: dict[str, Any] = checkpoints.load_best(Path(run_dir) / "checkpoints")
    config = from_mapping(kept["config"], str(run_dir))
    channels, height, width = kept["shape"]
    model = build.bare(config, (channels, height, width), kept["classes"])
    state.load_model(model, kept["model"])
    return model.eval()
