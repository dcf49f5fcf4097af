"""Records a call: what it allocates and launches, as numbers from which ``launch_table.cpp`` repeats calls of its key.

A call that does anything else cannot be repeated: a copy, a product of cuBLAS, a sum by torch. It runs in Python.
"""

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from wnfused.kernels.triton.launch import Launch, consumed_by

_ALLOCATE = {
    torch.ops.aten.empty.memory_format,
    torch.ops.aten.empty_strided.default,
    torch.ops.aten.empty_like.default,
    torch.ops.aten.new_empty.default,
    torch.ops.aten.new_empty_strided.default,
}
_SCALAR_TYPES = {torch.float16: 5, torch.float32: 6, torch.float64: 7, torch.bfloat16: 15}  # as c10 numbers them
_CONSTANT, INPUT, BUFFER, SCRATCH = range(4)
_PACKED = {"i32": "<i", "i64": "<q", "u32": "<I", "u64": "<Q", "fp32": "<f", "fp64": "<d"}
_SCRATCH_ALIGNMENT = 256


class NotRepeatable(Exception):
    """The call cannot be repeated from a recipe; the message says why."""


class Bound(NamedTuple):
    """A compiled kernel: its handle, its size, and its parameters as (position among the arguments, type)."""

    function: int
    threads: int
    shared: int
    parameters: list[tuple[int, str]]
    scratch_pointers: int = 2  # that triton appends; null, because nothing here uses them


def bind_cuda(record: Launch, compiled: Any) -> Bound:
    """As triton's own launcher passes them: constants, None and numbers specialised to 1 are no parameters."""
    facts = compiled.metadata
    for name in ("launch_cooperative_grid", "launch_pdl", "global_scratch_size", "profile_scratch_size"):
        if getattr(facts, name, 0):
            raise NotRepeatable(f"{record.name} uses {name}")
    if facts.num_ctas != 1 or getattr(facts, "tensordesc_meta", None):
        raise NotRepeatable(f"{record.name} uses clusters or tensor descriptors")
    types = compiled.src.signature
    names = record.kernel.arg_names
    parameters = [(i, types[name]) for i, name in enumerate(names) if types[name] != "constexpr"]
    return Bound(compiled.function, 32 * facts.num_warps, facts.shared, parameters)


bind: Callable[[Launch, Any], Bound] = bind_cuda  # tests replace it where triton's interpreter runs the launches


class _Recorder(TorchDispatchMode):
    """Runs a call and keeps its allocations, its launches, and the names of all other operations."""

    def __init__(self) -> None:
        super().__init__()
        self.allocated: dict[int, Tensor] = {}  # by address; kept alive, so that no address is used twice
        self.launches: list[tuple[Launch, Any]] = []
        self.others: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _ALLOCATE:
            self.allocated[result.untyped_storage().data_ptr()] = result
        elif not func.is_view:
            self.others.append(str(func))
        return result

    def consume(self, record: Launch) -> None:
        with _disable_current_modes():  # the interpreter uses torch's operators too
            self.launches.append((record, record.run()))


class Recorded(NamedTuple):
    """A call that ran: its launches with their compiled kernels, and all its tensors."""

    recorder: _Recorder
    inputs: tuple[Any, ...]
    outputs: tuple[Tensor | None, ...]


def run_and_record(operator: Callable[..., Any], inputs: int, args: tuple[Any, ...]) -> Recorded:
    """Run the operator, whose first ``inputs`` arguments are tensors or None."""
    recorder = _Recorder()
    with recorder, consumed_by(recorder.consume):
        outputs = operator(*args)
    return Recorded(recorder, args[:inputs], outputs)


def record(operator: Callable[..., Any], inputs: int, args: tuple[Any, ...]) -> tuple[Any, list[int] | None, str]:
    """Run the operator: (outputs, its recipe or None, why there is none)."""
    recorded = run_and_record(operator, inputs, args)
    try:
        return recorded.outputs, _recipe(recorded), ""
    except NotRepeatable as reason:
        return recorded.outputs, None, str(reason)


class Places:
    """Where each launch of a call finds its tensors: an input, an output's buffer, or scratch memory."""

    def __init__(self, recorded: Recorded) -> None:
        recorder, inputs, outputs = recorded
        if recorder.others:
            raise NotRepeatable(f"it calls {recorder.others[0]}")
        self._inputs = {t.data_ptr(): i for i, t in enumerate(inputs) if t is not None}
        if len(self._inputs) < sum(t is not None for t in inputs):
            raise NotRepeatable("two of its tensors start at the same address")
        self.kept = [t.untyped_storage().data_ptr() for t in outputs if t is not None]
        if any(address not in recorder.allocated for address in self.kept) or len(set(self.kept)) < len(self.kept):
            raise NotRepeatable("an output is not a tensor of its own")
        self.scratch = _Scratch(recorder, {address: i for i, address in enumerate(self.kept)})

    def of(self, t: Tensor) -> tuple[int, int, int]:
        """(source, index, offset in bytes)."""
        known = self._inputs.get(t.data_ptr())
        return self.scratch.place(t) if known is None else (INPUT, known, 0)


def _recipe(recorded: Recorded) -> list[int]:
    places = Places(recorded)
    buffers, described = _outputs(recorded.recorder, recorded.outputs)
    launches: list[int] = [len(recorded.recorder.launches)]
    for launch, compiled in recorded.recorder.launches:
        launches += _launch(launch, bind(launch, compiled), places)
    return [len(places.kept), *buffers, places.scratch.size, len(recorded.outputs), *described, *launches]


def _outputs(recorder: _Recorder, outputs: tuple[Tensor | None, ...]) -> tuple[list[int], list[int]]:
    """The buffers of the outputs, and the outputs: a buffer has its output's shape where that is all of its memory."""
    buffers: list[int] = []
    described: list[int] = []
    count = 0
    for t in outputs:
        if t is None:
            described += [-1, -1]
            continue
        whole = recorder.allocated[t.untyped_storage().data_ptr()]
        same = t.dtype == whole.dtype and t.numel() == whole.numel() and t.storage_offset() == 0
        shape = t if same else whole
        if t.dtype != whole.dtype or t.storage_offset() != 0:
            raise NotRepeatable("an output is an interior view")
        buffers += [_SCALAR_TYPES[whole.dtype], shape.ndim, *shape.shape, *shape.stride()]
        described += [count, -1] if same else [count, t.ndim, *t.shape, *t.stride()]
        count += 1
    return buffers, described


class _Scratch:
    """Places the temporaries in one allocation, in the order in which the launches use them."""

    def __init__(self, recorder: _Recorder, outputs: dict[int, int]) -> None:
        self.recorder, self.outputs, self.size = recorder, outputs, 0
        self.offsets: dict[int, int] = {}

    def place(self, t: Tensor) -> tuple[int, int, int]:
        storage = t.untyped_storage()
        start = storage.data_ptr()
        if start not in self.recorder.allocated:
            raise NotRepeatable("a launch uses a tensor that is neither an argument nor allocated by the call")
        inside = t.data_ptr() - start
        if start in self.outputs:
            return BUFFER, self.outputs[start], inside
        if start not in self.offsets:
            self.offsets[start] = self.size
            self.size += -(-storage.nbytes() // _SCRATCH_ALIGNMENT) * _SCRATCH_ALIGNMENT
        return SCRATCH, 0, self.offsets[start] + inside


def _launch(launch: Launch, bound: Bound, places: Places) -> list[int]:
    arguments: list[int] = []
    for position, kind in bound.parameters:
        value = launch.arguments[position]
        if isinstance(value, Tensor):
            arguments += places.of(value)
        else:
            arguments += (_CONSTANT, 0, _bits(value, kind))
    arguments += [_CONSTANT, 0, 0] * bound.scratch_pointers
    count = len(bound.parameters) + bound.scratch_pointers
    return [bound.function, *(*launch.grid, 1, 1)[:3], bound.threads, bound.shared, count, *arguments]


def _bits(value: Any, kind: str) -> int:
    """The bytes of a number as a kernel's parameter, as an int64."""
    return int(struct.unpack("<q", struct.pack(_PACKED[kind], value).ljust(8, b"\0"))[0])
