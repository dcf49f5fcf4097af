"""Small PTX kernels to try the emulator on: one instruction on the lanes of a few warps, or lines written by hand."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from .lanes import BITS
from .launch import Conditions, Launch, program_of

_PREFIXES = {1: "%p", 8: "%r", 16: "%rs", 32: "%r", 64: "%rd"}


def launch(
    lines: Sequence[str], arrays: Mapping[str, np.ndarray], threads: int, ctas: int = 1, shared: int = 0
) -> Launch:
    """A kernel with a pointer to each array, in %rd1, %rd2, ...; %r1 holds the thread."""
    parameters = ",\n".join(f".param .u64 .ptr .global .align 1 {name}" for name in arrays)
    start = [f"ld.param.b64 %rd{i}, [{name}];" for i, name in enumerate(arrays, 1)]
    body = "\n".join(["mov.u32 %r1, %tid.x;", *start, *lines, "ret;"])
    text = f".entry sample(\n{parameters}\n)\n.reqntid {threads}\n{{\n{body}\n}}\n"
    arguments = {name: (f"*{array.dtype}", torch.from_numpy(array)) for name, array in arrays.items()}
    return Launch(program_of(text), (ctas, 1, 1), arguments, shared)


def run(
    lines: Sequence[str], arrays: Mapping[str, np.ndarray], threads: int = 32, ctas: int = 1, shared: int = 0,
    conditions: Conditions | None = None,
) -> set[int]:  # fmt: skip
    """Runs the lines on the arrays, in place; returns the lines of ambiguous stores."""
    return launch(lines, arrays, threads, ctas, shared).run(conditions or Conditions())


def evaluated(opcode: str, operands: Sequence[np.ndarray | int], bits: int, count: int | None = None) -> np.ndarray:
    """An instruction's result, as bits [lanes], or [count, lanes] of so many registers.

    Operands are [lanes], [registers, lanes], or a constant. Predicates are arrays of bool.
    """
    arrays, lines, names = {}, [], []
    for i, operand in enumerate(operands):
        if isinstance(operand, int):
            names.append(str(operand))
            continue
        registers = []
        for j, lanes in enumerate(np.atleast_2d(operand)):
            arrays[f"in_{i}_{j}"] = _as_bits(lanes)
            registers.append(_loaded(lines, len(arrays), f"{i + 1}{j}", _as_bits(lanes), lanes.dtype == bool))
        names.append(registers[0] if operand.ndim == 1 else "{" + ", ".join(registers) + "}")
    threads = max(array.size for array in arrays.values())
    width = max(bits, 16)
    results = [f"{_PREFIXES[bits]}9{j}" for j in range(count or 1)]
    lines.append(f"{opcode} {results[0] if count is None else '{' + ', '.join(results) + '}'}, {', '.join(names)};")
    for j, register in enumerate(results):
        arrays[f"out_{j}"] = np.zeros(threads, BITS[width])
        lines.append(f"mad.wide.u32 %rd8{j}, %r1, {width // 8}, %rd{len(arrays)};")
        if bits == 1:
            lines.append(f"selp.b16 %rs9{j}, 1, 0, {register};")
            register = f"%rs9{j}"
        lines.append(f"st.global.b{width} [%rd8{j}], {register};")
    run(lines, arrays, threads)
    found = np.stack([arrays[f"out_{j}"] for j in range(count or 1)])
    return found[0] if count is None else found


def _as_bits(lanes: np.ndarray) -> np.ndarray:
    if lanes.dtype == bool:
        return lanes.astype(np.uint16)
    return np.ascontiguousarray(lanes).view(BITS[8 * lanes.dtype.itemsize])


def _loaded(lines: list[str], pointer: int, name: str, lanes: np.ndarray, predicate: bool) -> str:
    """The register that the lines load an array's elements into, one a thread."""
    bits = 8 * lanes.dtype.itemsize
    register = f"{_PREFIXES[bits]}7{name}"
    lines.append(f"mad.wide.u32 %rd6{name}, %r1, {bits // 8}, %rd{pointer};")
    lines.append(f"ld.global.b{bits} {register}, [%rd6{name}];")
    if predicate:
        lines.append(f"setp.ne.b16 %p7{name}, {register}, 0;")
        return f"%p7{name}"
    return register
