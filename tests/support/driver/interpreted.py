"""Executes the launches of the C++ launch path in triton's interpreter, from the addresses and numbers they pass."""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

import wnfused
from wnfused.kernels.triton import recipe, table
from wnfused.kernels.triton.launch import Launch
from wnfused.ops.backends import native
from wnfused.ops.backends import triton as triton_backend

Callback = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_size_t,
    *[ctypes.c_uint] * 7,
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_void_p,
)  # cuLaunchKernel
_NUMBERS = {"i64": ctypes.c_int64, "fp64": ctypes.c_double}


class _Function(NamedTuple):
    record: Launch  # as it was recorded: its grid and its arguments must not be used again
    parameters: list[tuple[int, str]]
    dtypes: dict[int, torch.dtype]


class Interpreter:
    """A driver whose functions are kernels in triton's interpreter."""

    def __init__(self) -> None:
        self.functions: list[_Function] = []
        self.launched: list[str] = []
        self.error: BaseException | None = None  # ctypes would only print it
        self.callback = Callback(self._launch)

    @property
    def driver(self) -> table.Driver:
        return table.Driver(ctypes.cast(self.callback, ctypes.c_void_p).value or 0)

    def bind(self, record: Launch, compiled: Any) -> recipe.Bound:
        parameters, dtypes = [], {}
        for i, value in enumerate(record.arguments):
            if isinstance(value, Tensor):
                dtypes[i] = value.dtype
                parameters.append((i, "pointer"))
            elif value is not None:
                parameters.append((i, "fp64" if isinstance(value, float) else "i64"))
        clean = record._replace(
            arguments=tuple(None if isinstance(a, Tensor) else a for a in record.arguments), grid=()
        )
        self.functions.append(_Function(clean, parameters, dtypes))
        return recipe.Bound(len(self.functions), 32 * record.options["num_warps"], 0, parameters, 2)

    def _launch(self, function: int, *rest: Any) -> int:
        gx, gy, gz, threads, by, bz, _, _, params, _ = rest
        try:
            found = self.functions[function - 1]
            assert (threads, by, bz) == (32 * found.record.options["num_warps"], 1, 1)
            arguments: list[Any] = [None] * len(found.record.arguments)
            for place, (i, kind) in enumerate(found.parameters):
                if kind == "pointer":
                    address = ctypes.c_uint64.from_address(params[place]).value
                    arguments[i] = _tensor_at(address, found.dtypes[i])
                else:
                    arguments[i] = _NUMBERS[kind].from_address(params[place]).value
            with triton_backend._interpreter:
                found.record._replace(grid=(gx, gy, gz), arguments=tuple(arguments)).run()
            self.launched.append(found.record.name)
            return 0
        except BaseException as error:
            self.error = error
            return 1


def _tensor_at(address: int, dtype: torch.dtype) -> Tensor:
    """One element: the interpreter computes addresses from the first, as a GPU does."""
    return torch.frombuffer((ctypes.c_char * dtype.itemsize).from_address(address), dtype=dtype)


def _record_and_repeat(operator: Callable[..., Any], inputs: int, args: tuple[Any, ...]) -> Any:
    """Also a recorded call returns what the C++ launch path computes, so that a test need not call twice."""
    outputs, recorded, reason = _record(operator, inputs, args)
    if recorded is not None:
        table.install(recorded)
        before = table.misses()
        with torch._C._AutoDispatchBelowADInplaceOrView():
            outputs = getattr(torch.ops.wnfused, operator.__name__).default(*args)
        assert table.misses() == before
    return outputs, recorded, reason


_record = recipe.record


@contextmanager
def interpreted() -> Iterator[Interpreter]:
    """A context in which the ``triton`` backend's calls on CPU tensors go through the C++ launch path."""
    assert native.load() is None
    interpreter, bind = Interpreter(), recipe.bind
    table.use_driver(interpreter.driver)
    with wnfused.backend("triton"):
        recipe.bind, recipe.record = interpreter.bind, _record_and_repeat
        table.forget()
        table.activate("cpu")
        try:
            yield interpreter
            if interpreter.error is not None:
                raise interpreter.error
        finally:
            table.activate(None)
            table.forget()
            recipe.bind, recipe.record = bind, _record
