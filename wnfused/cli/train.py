"""``wnfused train``: one training run, or without arguments the showcase. The options are the fields of its Config."""

import argparse
import os
import time
from pathlib import Path
from typing import Any

from wnfused.cli.commands import command, exit_code, fail


def _train_arguments(parser: argparse.ArgumentParser) -> None:
    from wnfused.train.config import FIELDS, value_type
    from wnfused.train.presets import PRESETS

    run = parser.add_argument_group("run")
    run.add_argument("--preset", metavar="NAME", help=f"start from a preset: {', '.join(PRESETS)}")
    run.add_argument("--config", metavar="FILE", help="settings from a .toml or .yaml file, by the names below")
    run.add_argument("--run-dir", metavar="DIR", help="folder of the run (default: a new one in runs/)")
    run.add_argument(
        "--resume", action="store_true", help="go on from the last checkpoint in --run-dir, if there is one"
    )
    run.add_argument("--force", action="store_true", help="remove an earlier run in --run-dir first")
    run.add_argument("--quiet", action="store_true", help="show the result only")
    settings = parser.add_argument_group("settings, which win over those of --config and --preset")
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


@command("train", "train a network; without arguments, the comparison that makes the point", _train_arguments)
def train(args: argparse.Namespace) -> int:
    from wnfused.train import Progress, RunError
    from wnfused.train import train as run
    from wnfused.train.progress import choose

    given = _given(args)
    if not given and not any((args.preset, args.config, args.run_dir, args.resume, args.force, args.quiet)):
        return _showcase()
    alone = int(os.environ.get("RANK", "0")) == 0  # of several processes the first talks
    # torchrun starts the command again after a process died: that is a resumption, whatever the first start was.
    restarted = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    resume = args.resume or restarted
    try:
        config = _config(args, given, resume)
        folder = _run_dir(args, config)
        result = run(
            config,
            folder,
            resume=resume,
            force=args.force and not restarted,
            progress=Progress() if args.quiet else choose(),
        )
    except RunError as error:
        return fail(f"train: {error}", code=error.code) if alone else error.code
    if alone:
        print(_summary(result, folder))
    return exit_code(result.stopped_by) if result.status == "interrupted" else 0


def _given(args: argparse.Namespace) -> dict[str, Any]:
    return {key.removeprefix("setting_"): value for key, value in vars(args).items() if key.startswith("setting_")}


def _config(args: argparse.Namespace, given: dict[str, Any], resume: bool) -> Any:
    """Preset, then file, then options; a resumption starts from the configuration that lies in the run's folder."""
    from wnfused.train import presets, stored_config
    from wnfused.train.config import Config, from_mapping
    from wnfused.train.config_file import read
    from wnfused.train.errors import RunError

    file = read(Path(args.config)) if args.config else {}
    name = args.preset or file.pop("preset", None)
    file.pop("preset", None)
    if args.resume and not args.run_dir:
        raise RunError("--resume: expected --run-dir, the folder of the run to go on with")
    if resume and args.run_dir and name is None and not file and (Path(args.run_dir) / "config.json").exists():
        return from_mapping({**stored_config(Path(args.run_dir)).as_dict(), **_read(given)}, "options")
    if args.resume and name is None and not file and not given:
        raise RunError(f"--resume: nothing to resume in {args.run_dir}")
    base = presets.settings(str(name)) if name is not None else {}
    config: Config = from_mapping({**base, **file, **_read(given)}, args.config or "options")
    return config


def _read(given: dict[str, Any]) -> dict[str, Any]:
    """The options' texts as the types of their fields."""
    from wnfused.train.config import FIELDS, WORDS, value_type
    from wnfused.train.errors import RunError

    values: dict[str, Any] = {}
    for name, text in given.items():
        kind, _ = value_type(FIELDS[name])
        try:
            values[name] = text if kind is bool else kind(text)
        except ValueError:
            raise RunError(f"--{name.replace('_', '-')}: expected {WORDS[kind]}, got {text!r}") from None
    return values


def _run_dir(args: argparse.Namespace, config: Any) -> Path:
    from wnfused.train.errors import RunError

    if args.run_dir:
        return Path(args.run_dir)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise RunError("--run-dir: several processes need a folder by name")
    name = args.preset or f"{config.model}-{config.data}"
    return Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"


def _summary(result: Any, folder: Path) -> str:
    from wnfused.train.progress import duration

    if result.status == "interrupted":
        return f"interrupted at step {result.steps}; go on with: wnfused train --run-dir {folder} --resume"
    if result.status == "diverged":
        return f"diverged: {result.reason}; the run is in {folder}"
    validation = result.best_validation_accuracy
    chosen = f" (epoch {result.best_epoch}, validation accuracy {validation:.2%})" if validation is not None else ""
    return f"test accuracy {result.test_accuracy:.2%}{chosen} after {duration(result.seconds)}; the run is in {folder}"


def _showcase() -> int:
    from wnfused.cli import terminal
    from wnfused.experiments import showcase
    from wnfused.report import ReportError
    from wnfused.train import RunError
    from wnfused.train.progress import choose

    try:
        showcase.run(progress=choose, say=terminal.paragraph, table=terminal.table)
    except RunError as error:
        return fail(f"train: {error}", code=error.code)
    except ReportError as error:
        return fail(f"train: {error}", code=2)
    return 0
