"""Shared memory of several CTAs, with a detector of races.

Every access leaves its threads, its time and its line on the bytes it touches. Two accesses race if threads differ, one
of them writes, and no barrier lies between. Bytes that a ``cp.async`` in flight will write belong to nobody: any access
races with it until its thread has waited for its group. The marks are kept for units of the kernel's narrowest access:
accesses are aligned to their width, so this loses nothing against bytes.
"""

from collections.abc import Sequence

import numpy as np

from .failures import Failure, Race
from .lanes import BITS, Lanes, scatter
from .parser import Instruction

IN_FLIGHT = np.int64(2**62)
BARRIER = 16  # a time is (barriers of the CTA << BARRIER) + barriers of the warp since


class Marks:
    """Of each unit: the first and last thread that touched it since a barrier, when, and in which instruction."""

    def __init__(self, units: int) -> None:
        self.first, self.last = np.full(units, -1, np.int32), np.full(units, -1, np.int32)
        self.time = np.full(units, -1, np.int64)
        self.instruction = np.zeros(units, np.int32)

    def conflicts(self, at: Lanes, lane: Lanes, now: Lanes, collective: bool) -> Lanes | None:
        """Where another thread's access is not ordered before one of ``lane`` at ``now``; None for nowhere."""
        time = self.time[at]
        late = time >> BARRIER >= now >> BARRIER
        if not late.any():
            return None
        first, last = self.first[at], self.last[at]
        own = (first == lane) & (last == lane) & (not collective)
        warp = (first >> 5 == lane >> 5) & (last >> 5 == lane >> 5)
        bad = late & ((time == IN_FLIGHT) | ~(own | (warp & (time < now))))
        return bad if bad.any() else None

    def add(self, at: Lanes, first: Lanes, last: Lanes, now: Lanes, instruction: int) -> None:
        """``first`` and ``last`` are in ascending order along lanes: of those at one unit the last assignment stays."""
        time = self.time[at]
        known = time >> BARRIER == now >> BARRIER
        if known.any():
            before, after = self.first[at], self.last[at]
            passed = (before >> 5 == first >> 5) & (after >> 5 == first >> 5) & (time < now)  # a barrier of the warp
            known &= ~passed
            first = np.where(known, np.minimum(before, first), first)
            last = np.where(known, np.maximum(after, last), last)
        self.first[at[::-1]] = np.broadcast_to(first, at.shape)[::-1]
        self.last[at] = last
        self.time[at] = now
        self.instruction[at] = instruction

    def complete(self, at: Lanes, lane: Lanes, now: Lanes) -> None:
        self.first[at], self.last[at], self.time[at] = lane, lane, now


class SharedMemory:
    def __init__(
        self, ctas: int, threads: int, size: int, unit: int, poison: int, instructions: Sequence[Instruction]
    ) -> None:
        self.threads, self.size, self.unit = threads, size, unit
        self.step = -(-size // 16) * 16
        self.data = np.full(ctas * self.step, poison & 0xFF, np.uint8)
        self.reads, self.writes = (Marks(len(self.data) // unit) for _ in range(2))
        self.time = np.zeros(ctas * threads, np.int64)  # of each thread
        self.instructions = instructions

    def pass_barrier(self, lanes: Lanes) -> None:
        self.time[lanes] = (self.time[lanes] >> BARRIER) + 1 << BARRIER

    def pass_warp_barrier(self, lanes: Lanes) -> None:
        self.time[lanes] += 1

    def load(
        self, lanes: Lanes, address: Lanes, element: int, count: int, instruction: int, collective: bool = False
    ) -> Lanes:
        """[lanes, count] elements. A collective load's data go to the whole warp."""
        at = self._place(lanes, address, element * count, instruction)
        units, now, lane = self._units(at, element * count), self.time[lanes][:, None], lanes[:, None]
        self._check(self.writes, units, lane, now, instruction, collective)
        first, last = (lane & ~31, lane | 31) if collective else (lane, lane)
        self.reads.add(units, first, last, now, instruction)
        return self.data.view(BITS[8 * element])[self._elements(at, element, count)]

    def store(self, lanes: Lanes, address: Lanes, values: Lanes, instruction: int, backwards: bool) -> bool:
        """``values`` [lanes, count]; returns whether lanes stored different values to one place."""
        element, count = values.dtype.itemsize, values.shape[1]
        at = self.claim(lanes, address, element * count, instruction, self.time[lanes][:, None])
        return scatter(self.data.view(values.dtype), self._elements(at, element, count), values, backwards)

    def claim(self, lanes: Lanes, address: Lanes, width: int, instruction: int, time: Lanes) -> Lanes:
        """Bytes that are written now, or (IN_FLIGHT) some time before a wait."""
        at = self._place(lanes, address, width, instruction)
        units, now, lane = self._units(at, width), self.time[lanes][:, None], lanes[:, None]
        for marks in (self.writes, self.reads):
            self._check(marks, units, lane, now, instruction, False)
        self.writes.add(units, lane, lane, np.broadcast_to(time, now.shape), instruction)
        return at

    def land(self, lanes: Lanes, at: Lanes, values: Lanes) -> None:
        """What an asynchronous copy has brought: ``values`` [lanes, bytes]."""
        self.data[at[:, None] + np.arange(values.shape[1])] = values
        self.writes.complete(self._units(at, values.shape[1]), lanes[:, None], self.time[lanes][:, None])

    def _place(self, lanes: Lanes, address: Lanes, width: int, instruction: int) -> Lanes:
        place = address.astype(np.int64)
        if (outside := place + width > self.size).any():
            raise Failure(
                f"shared address {place[outside][0]} is past the CTA's {self.size} bytes",
                self.instructions[instruction],
            )
        if (crooked := place & (width - 1) != 0).any():
            raise Failure(
                f"shared address {place[crooked][0]} is no multiple of {width}", self.instructions[instruction]
            )
        return lanes // self.threads * self.step + place

    def _units(self, at: Lanes, width: int) -> Lanes:
        return (at // self.unit)[:, None] + np.arange(max(1, width // self.unit))

    @staticmethod
    def _elements(at: Lanes, element: int, count: int) -> Lanes:
        return (at // element)[:, None] + np.arange(count)

    def _check(self, marks: Marks, units: Lanes, lane: Lanes, now: Lanes, instruction: int, collective: bool) -> None:
        bad = marks.conflicts(units, lane, now, collective)
        if bad is None:
            return
        row, column = np.argwhere(bad)[0]
        unit = units[row, column]
        byte, thread = unit * self.unit % self.step, lane[row, 0] % self.threads
        state = "in flight" if marks.time[unit] == IN_FLIGHT else "with no barrier between"
        first, second = (self.instructions[i] for i in (marks.instruction[unit], instruction))
        raise Race(f"shared byte {byte}, thread {thread}, {state}", first, second)
