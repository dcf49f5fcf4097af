"""Repeats recorded calls from Python, where the C++ launch path is not available: AMD GPUs, no C++ compiler.

A repeated call does not check its arguments, plan or bind again: it allocates, fills in the addresses and launches.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from wnfused.kernels.triton.recipe import BUFFER, INPUT, NotRepeatable, Places, Recorded, run_and_record

_MOST = 8192  # dynamic shapes would otherwise fill the memory
_precision: Any = torch._C._get_fp32_precision_getter  # what torch.backends reads
_known: dict[tuple[Any, ...], "Replay | None"] = {}  # None: the call runs its operator, because it is not repeatable


class _Launch(NamedTuple):
    run: Any  # triton's launcher of a compiled kernel
    before: tuple[Any, ...]  # its leading arguments: grid
    after: tuple[Any, ...]  # those after the stream: function, metadata, hooks
    values: list[Any]  # of all parameters; those in ``slots`` are addresses
    slots: list[tuple[int, int, int]]  # position among the values, which tensor, offset in bytes


class Replay:
    def __init__(self, recorded: Recorded) -> None:
        from triton.runtime import driver

        places = Places(recorded)
        self.device = next(t for t in recorded.inputs if t is not None).device
        self.made: list[tuple[Any, Any, torch.dtype]] = []
        self.outputs: list[tuple[int, Any, Any] | None] = []
        for t in recorded.outputs:
            if t is None:
                self.outputs.append(None)
                continue
            whole = recorded.recorder.allocated[t.untyped_storage().data_ptr()]
            if t.dtype != whole.dtype or t.storage_offset() != 0:
                raise NotRepeatable("an output is an interior view")
            same = t.numel() == whole.numel()
            self.outputs.append((len(self.made), None if same else t.shape, t.stride()))
            shape = t if same else whole
            self.made.append((shape.shape, shape.stride(), t.dtype))
        first = {INPUT: 0, BUFFER: len(recorded.inputs)}  # addresses: those of the inputs, the buffers, the scratch
        scratch = len(recorded.inputs) + len(self.made)
        self.launches = []
        for record, compiled in recorded.recorder.launches:
            if compiled is None:
                raise NotRepeatable("triton's interpreter runs it")
            values = [
                *record.arguments,
                *(record.constants[name] for name in record.kernel.arg_names[len(record.arguments) :]),
            ]
            slots = []
            for position, value in enumerate(record.arguments):
                if isinstance(value, Tensor):
                    source, index, offset = places.of(value)
                    slots.append((position, first.get(source, scratch) + index, offset))
                    values[position] = 0
            after = (compiled.function, compiled.packed_metadata, None, None, None)
            self.launches.append(_Launch(compiled.run, (*record.grid, 1, 1)[:3], after, values, slots))
        self.scratch = places.scratch.size
        self.stream = driver.active.get_current_stream

    def __call__(self, inputs: tuple[Any, ...]) -> tuple[Tensor | None, ...]:
        device = self.device
        made = [torch.empty_strided(size, stride, dtype=dtype, device=device) for size, stride, dtype in self.made]
        addresses = [0 if t is None else t.data_ptr() for t in inputs]
        addresses += [t.data_ptr() for t in made]
        if self.scratch:
            scratch = torch.empty(self.scratch, dtype=torch.uint8, device=device)
            addresses.append(scratch.data_ptr())
        stream = self.stream(device.index or 0)
        for run, grid, after, values, slots in self.launches:
            values = values.copy()
            for position, which, offset in slots:
                values[position] = addresses[which] + offset
            run(*grid, stream, *after, *values)
        return tuple(
            None if o is None else made[o[0]] if o[1] is None else made[o[0]].as_strided(o[1], o[2])
            for o in self.outputs
        )


def key_of(name: str, inputs: int, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """All that checks and plans depend on, as ``launch_table.cpp`` builds it."""
    key: list[Any] = [name, _precision("cuda", "matmul"), _precision("cuda", "conv")]
    for t in args[:inputs]:
        if t is None:
            key.append(None)
        else:
            key += (t.dtype, t.get_device(), t.shape, t.stride(), t.data_ptr() % 16 == 0)
    key += [tuple(a) if type(a) is list else a for a in args[inputs:]]
    return tuple(key)


def repeat(key: tuple[Any, ...], inputs: tuple[Any, ...]) -> tuple[Tensor | None, ...] | None:
    """The outputs, or None where the call is not known or not repeatable."""
    known = _known.get(key)
    return None if known is None else known(inputs)


def any_known() -> bool:
    return bool(_known)


def is_known(key: tuple[Any, ...]) -> bool:
    return key in _known


def record(key: tuple[Any, ...], operator: Any, inputs: int, args: tuple[Any, ...]) -> tuple[Tensor | None, ...]:
    """Run the operator, and keep how to repeat it."""
    recorded = run_and_record(operator, inputs, args)
    if len(_known) >= _MOST:
        _known.clear()
    try:
        _known[key] = Replay(recorded)
    except NotRepeatable:
        _known[key] = None
    return recorded.outputs


def forget() -> None:
    """Discard all recorded calls, because something changed that is not part of their keys."""
    _known.clear()
