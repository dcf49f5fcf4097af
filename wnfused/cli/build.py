"""``wnfused build``: compile the native CPU kernels ahead of first use."""

import argparse
import time

from wnfused.cli.commands import command, fail


@command("build", "build the native CPU kernels ahead of first use")
def build(args: argparse.Namespace) -> int:
    from wnfused.kernels.cpu.build import BuildError
    from wnfused.ops.backends import native

    ready = native.is_built()
    start = time.perf_counter()
    try:
        library = native.build()
    except BuildError as error:
        return fail(str(error))
    how = "already built" if ready else f"built in {time.perf_counter() - start:.0f} s"
    print(f"native CPU kernels: {library} ({how})")
    return 0
