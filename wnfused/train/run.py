"""``train``: from a Config and a directory to a Result. Arguments are checked before any file is written."""

from pathlib import Path

from torch import nn

from wnfused.ops import backends
from wnfused.train import checkpoints, curves, data, distributed
from wnfused.train.config import Config, from_mapping
from wnfused.train.distributed import World
from wnfused.train.loop import Trainer
from wnfused.train.model import network, uninitialized
from wnfused.train.progress import Progress
from wnfused.train.result import Result, RunError
from wnfused.train.resume import claim, find_result
from wnfused.train.run_directory import RunDirectory


def train(
    config: Config, run_dir: Path | str, *, resume: bool = False, force: bool = False, progress: Progress | None = None
) -> Result:
    """Train the network of ``config`` and store the run in ``run_dir`` (docs/training.md lists the files).

    ``resume=True`` continues from the last checkpoint in ``run_dir``, or starts if there is none. ``force=True``
    removes an earlier run first. Invalid arguments raise RunError before anything is written. A run that diverges, or
    is interrupted by Ctrl-C or SIGTERM, returns a Result.
    """
    with distributed.joined(config.device) as world, RunDirectory(Path(run_dir)) as directory:
        shown = progress if progress is not None and world.is_rank_0 else Progress()
        if config.tensorboard:
            curves.require_tensorboard()
        result = world.on_rank_0(lambda: find_result(directory, config, resume, force, shown))
        if result is not None:
            shown.say(f"the run in {directory.path} has already {result.status}")
            return result

        images = data.load(config, world)
        prepare_backend(config, world)
        model = network(config, images.shape, images.classes, lambda: images.first_batch)
        saved = world.on_rank_0(lambda: claim(directory, config, world, resume, shown))
        trainer = Trainer(config, model, images, directory, world, shown, saved)

        logged = config.tensorboard and world.is_rank_0
        with curves.open_board(directory.path / "tensorboard", trainer.step, wanted=logged) as trainer.board:
            shown.begin(_describe(trainer))
            try:
                result = trainer.fit()
                _store(result, directory, world, shown)
            finally:
                shown.end(result)
        return result


def prepare(config: Config) -> None:
    """Load the data set and the backend of a run, downloading and building them if needed; raises RunError."""
    with distributed.joined(config.device) as world:
        if config.tensorboard:
            curves.require_tensorboard()
        data.load(config, world)
        prepare_backend(config, world)


def prepare_backend(config: Config, world: World) -> None:
    """Build the native kernels if the run needs them; raises RunError if the device cannot run it."""
    if config.amp == "fp16" and world.device.type == "cpu":
        raise RunError("amp: 'fp16' needs a GPU; pass 'bf16' or 'none'")
    try:
        backends.resolve(world.device)
    except backends.BackendUnavailable as error:
        raise RunError(str(error)) from None


def load_best(run_dir: Path | str) -> nn.Module:
    """The network of a run with the weights of its best epoch, on the CPU, in eval mode."""
    if not Path(run_dir).is_dir():
        raise RunError(f"run_dir: there is no directory {run_dir}; pass the directory of a run")
    if not (Path(run_dir) / "checkpoints" / checkpoints.BEST).exists():
        raise RunError(f"run_dir: {run_dir} has no best weights; pass the directory of a run with a finished epoch")
    best = checkpoints.load_best(Path(run_dir) / "checkpoints")
    config = from_mapping(best["config"], str(run_dir))
    channels, height, width = best["shape"]
    model = uninitialized(config, (channels, height, width), best["classes"])
    checkpoints.load_model(model, best["model"])
    return model.eval()


def _store(result: Result, directory: RunDirectory, world: World, progress: Progress) -> None:
    """Write result.json and the plots; an interrupted run has neither."""
    if result.status == "interrupted":
        return
    world.on_rank_0(lambda: directory.write("result.json", result.as_dict()))
    if world.is_rank_0:
        _plot(directory.path, progress)


def _plot(path: Path, progress: Progress) -> None:
    """The result is already stored, so a plot that cannot be drawn is not an error."""
    try:
        curves.plot_run(path)
    except (ImportError, OSError) as error:
        progress.say(f"no plots: {error}")


def _describe(trainer: Trainer) -> str:
    config, world, train_images = trainer.config, trainer.world, trainer.images.train
    count = sum(parameter.numel() for parameter in trainer.parameters)
    how = f"norm {config.norm}, init {config.init}" + (", torch's weight_norm" if config.impl == "torch" else "")
    where = f"{world.size} processes, {config.sharding}" if world.size > 1 else str(world.device)
    since = f"; resumed at step {trainer.step}" if trainer.step else ""
    return (
        f"{config.model} ({how}; {count:,} parameters) on {config.data}: {config.epochs} × {len(train_images)} "
        f"steps of {config.batch_size} images, {where}, in {trainer.directory.path}{since}"
    )
