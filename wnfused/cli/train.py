"""``wnfused train``: one training run, or the showcase without arguments. Its options are the fields of Config."""

import argparse
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wnfused.cli.commands import command, exit_code, fail
from wnfused.cli.flags import in_flags

if TYPE_CHECKING:
    from wnfused.train import RunError


def _train_arguments(parser: argparse.ArgumentParser) -> None:
    from wnfused.train.config import FIELDS, value_type
    from wnfused.train.presets import PRESETS

    run = parser.add_argument_group("run")
    run.add_argument("--preset", metavar="NAME", help=f"start from a preset: {', '.join(PRESETS)}")
    run.add_argument("--config", metavar="FILE", help="read settings from a .toml or .yaml file, with the names below")
    run.add_argument("--run-dir", metavar="DIR", help="run directory (default: a new one in runs/)")
    run.add_argument("--resume", action="store_true", help="resume from the last checkpoint in --run-dir")
    run.add_argument("--force", action="store_true", help="remove an earlier run in --run-dir first")
    run.add_argument("--quiet", action="store_true", help="print only the result")
    settings = parser.add_argument_group("settings (override --config and --preset)")
    for name, entry in FIELDS.items():
        kind, _ = value_type(entry)
        usual = "" if entry.default is None or kind is bool else f" (default: {entry.default})"
        options: dict[str, Any] = {"dest": f"setting_{name}", "default": argparse.SUPPRESS}
        options["help"] = entry.metadata["help"].replace("%", "%%") + usual
        if kind is bool:
            options["action"] = argparse.BooleanOptionalAction
        else:
            choices = entry.metadata["choices"]
            options["metavar"] = "|".join(choices) if choices and len(choices) < 4 else name.upper()
        settings.add_argument(f"--{name.replace('_', '-')}", **options)


@command("train", "train a network; without arguments, compare three initializations", _train_arguments)
def train(args: argparse.Namespace) -> int:
    from wnfused.train import Progress, RunError
    from wnfused.train import train as run
    from wnfused.train.progress import choose

    given = _given(args)
    if not given and not any((args.preset, args.config, args.run_dir, args.resume, args.force, args.quiet)):
        return _showcase()
    is_rank_0 = int(os.environ.get("RANK", "0")) == 0  # rank 0 prints
    # torchrun runs the command again after a worker has died: resume, even without --resume.
    restarted = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    resume = args.resume or restarted
    try:
        config = _config(args, given, resume)
        directory = _run_dir(args, config)
        result = run(
            config,
            directory,
            resume=resume,
            force=args.force and not restarted,
            progress=Progress() if args.quiet else choose(),
        )
    except RunError as error:
        return _fail(error) if is_rank_0 else error.code
    if is_rank_0:
        print(_summary(result, directory))
    return exit_code(result.stopped_by) if result.status == "interrupted" else 0


def _fail(error: "RunError") -> int:
    from wnfused.train.config import FIELDS

    return fail(f"train: {in_flags(str(error), [*FIELDS, 'preset', 'run_dir', 'resume', 'force'])}", code=error.code)


def _given(args: argparse.Namespace) -> dict[str, Any]:
    return {key.removeprefix("setting_"): value for key, value in vars(args).items() if key.startswith("setting_")}


def _config(args: argparse.Namespace, given: dict[str, Any], resume: bool) -> Any:
    """Options override the file, the file overrides the preset; ``--resume`` starts from the stored configuration."""
    from wnfused.train import presets, stored_config
    from wnfused.train.config import Config, from_mapping, read_settings
    from wnfused.train.result import RunError

    try:
        file = read_settings(Path(args.config)) if args.config else {}
    except RunError as error:
        raise RunError(f"--config: {error}") from None
    name = args.preset or file.pop("preset", None)
    file.pop("preset", None)
    if args.resume and not args.run_dir:
        raise RunError("--resume: expected --run-dir, the directory of the run to resume")
    if resume and args.run_dir and name is None and not file and (Path(args.run_dir) / "config.json").exists():
        return from_mapping({**stored_config(Path(args.run_dir)).as_dict(), **_read(given)}, "options")
    if args.resume and name is None and not file and not given:
        raise RunError(f"--resume: there is no run in {args.run_dir}")
    base = presets.settings(str(name)) if name is not None else {}
    config: Config = from_mapping({**base, **file, **_read(given)}, args.config or "options")
    return config


def _read(given: dict[str, Any]) -> dict[str, Any]:
    """The options, converted to the types of their fields."""
    from wnfused.train.config import FIELDS, WORDS, value_type
    from wnfused.train.result import RunError

    values: dict[str, Any] = {}
    for name, text in given.items():
        kind, _ = value_type(FIELDS[name])
        try:
            values[name] = text if kind is bool else kind(text)
        except ValueError:
            raise RunError(f"--{name.replace('_', '-')}: expected {WORDS[kind]}, got {text!r}") from None
    return values


def _run_dir(args: argparse.Namespace, config: Any) -> Path:
    from wnfused.train.result import RunError

    if args.run_dir:
        return Path(args.run_dir)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise RunError("--run-dir: required with several processes")
    name = args.preset or f"{config.model}-{config.data}"
    return Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"


def _summary(result: Any, directory: Path) -> str:
    from wnfused.formatting import duration

    if result.status == "interrupted":
        return f"interrupted at step {result.steps}; resume with: wnfused train --run-dir {directory} --resume"
    if result.status == "diverged":
        return f"diverged: {result.reason}; the run is in {directory}"
    validation = result.best_validation_accuracy
    chosen = f" (epoch {result.best_epoch}, validation accuracy {validation:.2%})" if validation is not None else ""
    test = f"test accuracy {result.test_accuracy:.2%}{chosen}"
    return f"{test} after {duration(result.seconds)}; the run is in {directory}"


def _showcase() -> int:
    from wnfused.cli import terminal
    from wnfused.experiments import showcase
    from wnfused.report import ReportError
    from wnfused.train import RunError
    from wnfused.train.progress import choose

    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        return fail("train: the comparison runs in one process; pass --preset and --run-dir to use several", code=2)
    try:
        showcase.run(progress=choose, say=terminal.paragraph, table=terminal.table)
    except RunError as error:
        return _fail(error)
    except ReportError as error:
        return fail(f"train: {error}", code=2)
    return 0
