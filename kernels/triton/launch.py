"""A launch as data, and the one place that runs it.

The functions of ``run_*.py`` describe each launch with a call of ``launch``. By default it runs at once. Inside
``consumed_by`` another consumer receives the record instead: the audit counts bytes, the recorder of ``recipe.py`` runs
the launch and keeps what the C++ launch path needs to repeat it, and tests run its programs in another order.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton.runtime.errors import OutOfResources

from wnfused.kernels.triton.tiles import MOST_REGISTERS, Tile

Argument = Tensor | int | float | None


class Launch(NamedTuple):
    kernel: Any  # the function under triton.jit
    grid: tuple[int, ...]
    arguments: tuple[Argument, ...]  # of the leading parameters, in order; None is no tensor
    constants: dict[str, Any]  # of the constexpr parameters, by name
    options: dict[str, int]  # of the compiler: warps, stages, registers

    @property
    def name(self) -> str:
        return str(self.kernel.fn.__name__)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors by parameter name, which is their role in the kernel."""
        named = zip(self.kernel.arg_names, self.arguments, strict=False)
        return {name: value for name, value in named if isinstance(value, Tensor)}

    @property
    def tile(self) -> Tile | None:
        """The tile of a matmul kernel: BLOCK_M × BLOCK_N results, summed BLOCK_K at a time."""
        if "BLOCK_K" not in self.constants:
            return None
        blocks = (self.constants[f"BLOCK_{axis}"] for axis in "MNK")
        return Tile(*blocks, self.options["num_warps"], self.options["num_stages"])

    def run(self) -> Any:
        """Launch on the current stream. Returns triton's compiled kernel; None in the interpreter."""
        try:
            return self.kernel[self.grid](*self.arguments, **self.constants, **self.options)
        except OutOfResources as error:
            raise DoesNotFit(self) from error


class DoesNotFit(Exception):
    """This device has too little shared memory or too few registers for the launch's tile."""

    def __init__(self, launch: Launch) -> None:
        super().__init__(f"{launch.name} does not fit this device")
        self.launch = launch


Consumer = Callable[[Launch], Any]
_state = threading.local()


@contextmanager
def consumed_by(consumer: Consumer) -> Iterator[None]:
    """A context in which this thread's launches go to ``consumer`` instead of being run."""
    previous = getattr(_state, "consumer", None)
    _state.consumer = consumer
    try:
        yield
    finally:
        _state.consumer = previous


def has_consumer() -> bool:
    """Whether this thread's launches go to another consumer, which repeated calls would bypass."""
    return getattr(_state, "consumer", None) is not None


def launch_options(warps: int = 4, stages: int = 3) -> dict[str, int]:
    """As the audit compiles with them (tiles.MOST_REGISTERS)."""
    options = {"num_warps": warps, "num_stages": stages}
    return options if torch.version.hip is not None else {**options, "maxnreg": MOST_REGISTERS}


def launch(
    kernel: Any, grid: tuple[int, ...], *arguments: Argument, warps: int = 4, stages: int = 3, **constants: Any
) -> None:
    record = Launch(kernel, grid, arguments, constants, launch_options(warps, stages))
    consumer = getattr(_state, "consumer", None)
    if consumer is None:
        record.run()
    else:
        consumer(record)
