"""What the emulator reports, always with the lines of PTX that are to blame."""

from .parser import Instruction


class Failure(AssertionError):
    def __init__(self, message: str, *instructions: Instruction) -> None:
        super().__init__("\n  ".join([message, *map(str, instructions)]))
        self.instructions = instructions


class Race(Failure):
    """Two accesses to one byte of shared memory whose order nothing fixes."""


class OutOfBounds(Failure):
    """An access to memory that belongs to no argument of the kernel, or at an address it must not have."""
