"""``wnfused experiment``: the paper's figures and tables, each by one command."""

import argparse
from pathlib import Path

from wnfused.cli.commands import command, fail
from wnfused.cli.flags import in_flags

ARGUMENTS = ("scale", "out", "data_dir", "ray", "force")


def _experiment_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="an experiment, or 'list' for their names")
    parser.add_argument("--scale", default="smoke", metavar="SCALE", help="smoke (a minute, default), small or paper")
    parser.add_argument(
        "--out", type=Path, default=Path("results"), metavar="DIR", help="results go to DIR/NAME (results)"
    )
    parser.add_argument(
        "--data-dir", metavar="DIR", help="directory with the data set's files, or with a directory of its name"
    )
    parser.add_argument("--workers", type=int, metavar="N", help="worker processes (default: one per core)")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="threads of each worker (1)")
    parser.add_argument("--ray", metavar="ADDRESS", help="run on this Ray cluster instead of worker processes")
    parser.add_argument("--gpus", type=float, default=0.0, metavar="N", help="GPUs of each task, with --ray (0)")
    parser.add_argument("--force", action="store_true", help="write the page of a finished experiment again")


@command("experiment", "reproduce a figure or table of the paper", _experiment_arguments)
def experiment(args: argparse.Namespace) -> int:
    from wnfused import experiments
    from wnfused.experiments.executors import Executor, Local, Ray
    from wnfused.train import RunError

    if args.name == "list":
        return _list()
    for option in ("workers", "threads"):
        if (value := getattr(args, option)) is not None and value < 1:
            return fail(f"experiment: --{option}: expected at least 1, got {value}", code=2)
    if args.gpus < 0 or (args.gpus and not args.ray):
        wanted = "expected at least 0" if args.gpus < 0 else "is for tasks of a Ray cluster; pass --ray too"
        return fail(f"experiment: --gpus: {wanted}, got {args.gpus:g}", code=2)
    try:
        experiments.check(args.name, scale=args.scale, out=args.out, force=args.force)
        executor: Executor
        if args.ray:
            executor = Ray(args.ray, threads=args.threads, gpus=args.gpus, data_dir=args.data_dir)
            if executor.short:
                print(f"ray: {executor.short}: waiting for more", flush=True)
        else:
            executor = Local(args.workers, args.threads, args.data_dir)
        page = experiments.run(
            args.name,
            scale=args.scale,
            out=args.out,
            executor=executor,
            force=args.force,
            command=f"wnfused experiment {args.name} --scale {args.scale}",
            say=lambda line: print(line, flush=True),
        )
    except RunError as error:
        return fail(f"experiment: {in_flags(str(error), ARGUMENTS)}", code=2)
    print(page)
    return 0


def _list() -> int:
    from wnfused.experiments import NAMES, catalog

    width = max(map(len, NAMES))
    for name in NAMES:
        print(f"{name:<{width}}  {catalog.get(name).shows}")
    return 0
