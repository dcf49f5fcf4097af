"""Global memory: host tensors, each in an address range of its own, so that no access strays from one into another."""

import ctypes
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .failures import OutOfBounds
from .lanes import BITS, Lanes, scatter
from .parser import Instruction

_WINDOW = 48  # bits of an address inside a tensor's range; host addresses have no others
_MIDDLE = 1 << _WINDOW - 1


@dataclass
class Region:
    """A tensor's bytes. ``holes`` marks those between its elements, where strides leave some."""

    name: str
    start: int  # of the addresses that are meant for it
    base: int  # the address of its first byte
    size: int
    data: np.ndarray  # from ``lead`` bytes before its first, so that elements of any width can be seen
    lead: int
    holes: np.ndarray | None


def _region(name: str, tensor: Tensor, start: int | None) -> Region:
    pointer, item = tensor.data_ptr(), tensor.element_size()
    steps = [(size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True)]
    size = (sum(steps) + 1) * item if tensor.numel() else 0
    lead = pointer % 16
    whole = lead + size + (-(lead + size)) % 16
    data = np.frombuffer((ctypes.c_uint8 * whole).from_address(pointer - lead), np.uint8)
    holes = None
    if size > tensor.numel() * item:
        inside = torch.zeros(size // item, dtype=torch.bool)
        inside.as_strided(tensor.shape, tensor.stride()).fill_(True)
        holes = ~np.repeat(inside.numpy(), item)
    base = pointer if start is None else start + _MIDDLE + pointer % 4096  # as much aligned as on the host
    return Region(name, pointer if start is None else start, base, size, data, lead, holes)


class GlobalMemory:
    def __init__(self) -> None:
        self.regions: list[Region] = []
        self._starts = np.zeros(0, np.uint64)

    def add(self, name: str, tensor: Tensor) -> int:
        """The address that the kernel is given for a tensor."""
        fake = sum(region.start >> _WINDOW > 0 for region in self.regions)
        return self._insert(_region(name, tensor, fake + 1 << _WINDOW))

    def lend(self, name: str, tensor: Tensor) -> None:
        """A tensor whose address on the host the kernel finds in a table."""
        self._insert(_region(name, tensor, None))

    def _insert(self, region: Region) -> int:
        self.regions = sorted([*self.regions, region], key=lambda r: r.start)
        self._starts = np.array([r.start for r in self.regions], np.uint64)
        return region.base

    def load(self, address: Lanes, element: int, count: int, instruction: Instruction) -> Lanes:
        """[lanes, count] elements of so many bytes."""
        result = np.empty((len(address), count), BITS[8 * element])
        for region, lanes, offset in self._parts(address, element * count, instruction):
            places = ((offset + region.lead) // element)[:, None] + np.arange(count)
            result[lanes] = region.data.view(result.dtype)[places]
        return result

    def store(self, address: Lanes, values: Lanes, instruction: Instruction, backwards: bool) -> bool:
        """``values`` [lanes, count]; returns whether lanes stored different values to one place."""
        element, count = values.dtype.itemsize, values.shape[1]
        differ = False
        for region, lanes, offset in self._parts(address, element * count, instruction):
            places = ((offset + region.lead) // element)[:, None] + np.arange(count)
            differ |= scatter(region.data.view(values.dtype), places, values[lanes], backwards)
        return differ

    def _parts(self, address: Lanes, width: int, instruction: Instruction) -> list[tuple[Region, Lanes | slice, Lanes]]:
        """The lanes of each region with their offsets in it, checked."""
        which = np.searchsorted(self._starts, address, "right") - 1
        if not len(which):
            return []
        if (which == which[0]).all():
            parts: list[tuple[int, Lanes | slice]] = [(int(which[0]), slice(None))]
        else:
            parts = [(int(i), np.flatnonzero(which == i)) for i in np.unique(which)]
        return [self._checked(i, lanes, address[lanes], width, instruction) for i, lanes in parts]

    def _checked(
        self, index: int, lanes: Lanes | slice, address: Lanes, width: int, instruction: Instruction
    ) -> tuple[Region, Lanes | slice, Lanes]:
        if index < 0:
            raise OutOfBounds(f"address {address[0]:#x} belongs to no tensor", instruction)
        region = self.regions[index]
        offset = (address - np.uint64(region.base)).view(np.int64)
        bad = (offset < 0) | (offset + width > region.size)
        if region.holes is not None and not bad.any():
            bad = region.holes[offset[:, None] + np.arange(width)].any(1)
        if bad.any():
            where = f"{width} bytes at offset {offset[bad][0]}"
            raise OutOfBounds(f"{region.name}: {where}, outside its {region.size} bytes", instruction)
        if (crooked := address & np.uint64(width - 1) != 0).any():
            where = f"{width} bytes at offset {offset[crooked][0]}"
            raise OutOfBounds(f"{region.name}: {where}, not aligned to {width}", instruction)
        return region, lanes, offset
