"""``wnfused build``: compile the native CPU kernels ahead of first use."""

import argparse
import time
from pathlib import Path

from wnfused.cli.commands import command, fail


def _build_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--wheel",
        type=Path,
        metavar="FILE",
        help="write a wheel with the kernels beside this pure wheel, built for each vector extension of the CPU family",
    )


@command("build", "build the native CPU kernels ahead of first use", _build_arguments)
def build(args: argparse.Namespace) -> int:
    from wnfused.kernels.cpu.build import BuildError
    from wnfused.ops.backends import native

    try:
        if args.wheel is not None:
            if not args.wheel.is_file():
                return fail(f"build: --wheel: there is no file {args.wheel}", code=2)
            print(f"wheel with the native CPU kernels: {native.add_to_wheel(args.wheel)}")
            return 0
        ready = native.is_built()
        start = time.perf_counter()
        library = native.build()
    except BuildError as error:
        return fail(str(error))
    how = "already built" if ready else f"built in {time.perf_counter() - start:.0f} s"
    print(f"native CPU kernels: {library} ({how})")
    return 0
