"""What an opcode computes from its operands, lane by lane. ``.rn`` is exact; ``div.full`` errs as far as it may."""

import functools
import operator
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .lanes import BITS, TYPES, Lanes, fused_multiply_add, to_bfloat16, widened


class Operation(NamedTuple):
    """``compute`` takes arrays of the types ``sources`` and returns the bits of the result."""

    compute: Callable[..., Lanes]
    sources: tuple[str, ...]


class Unknown(Exception):
    """The emulator has no such operation."""


def _quotient(a: Lanes, b: Lanes) -> Lanes:
    """Of integers, towards zero. What a division by 0 gives is not defined: nothing may depend on it."""
    divisor = np.where(b == 0, 1, b).astype(b.dtype)
    floor = a // divisor
    return np.where(
        b == 0, ~np.zeros_like(a), floor + ((floor * divisor != a) & ((a < 0) != (divisor < 0))).astype(a.dtype)
    )


def _full_range_quotient(a: Lanes, b: Lanes) -> Lanes:
    """Of float32, between one and two units of the last place off, up or down: what the manual allows div.full."""
    exact = a.astype(np.float64) / b
    near = exact.astype(np.float32)
    up = near.view(np.uint32) & np.uint32(1) == 1  # some rule: the same operands always give the same result
    beyond = np.where(up, np.float32(np.inf), np.float32(-np.inf))
    past = np.where((near < exact) == up, near, np.nextafter(near, -beyond))  # on the other side of the exact one
    far = np.nextafter(np.nextafter(past, beyond), beyond)
    return np.where((near == 0) | ~np.isfinite(far), near, far).astype(np.float32)


def _larger(a: Lanes, b: Lanes) -> Lanes:
    """The operand that is not NaN, and +0 before -0."""
    bits = BITS[8 * a.dtype.itemsize]
    return np.where(a == b, (a.view(bits) & b.view(bits)).view(a.dtype), np.fmax(a, b))


def _smaller(a: Lanes, b: Lanes) -> Lanes:
    bits = BITS[8 * a.dtype.itemsize]
    return np.where(a == b, (a.view(bits) | b.view(bits)).view(a.dtype), np.fmin(a, b))


def _shift_left(a: Lanes, b: Lanes) -> Lanes:
    bits = 8 * a.dtype.itemsize
    return np.where(b < bits, a << np.minimum(b, bits - 1).astype(a.dtype), 0).astype(a.dtype)


def _shift_right(a: Lanes, b: Lanes) -> Lanes:
    bits = 8 * a.dtype.itemsize
    shifted = a >> np.minimum(b, bits - 1).astype(a.dtype)
    return shifted if a.dtype.kind == "i" else np.where(b < bits, shifted, 0).astype(a.dtype)


def _extract(a: Lanes, position: Lanes, length: Lanes) -> Lanes:
    """``bfe``: a field of bits, with its sign if a has one."""
    position, length = (x.astype(np.int64) & 0xFF for x in (position, length))
    field = (a.view(np.uint32).astype(np.int64) >> position) & ((1 << length) - 1)
    if a.dtype.kind == "i":
        field = np.where((length > 0) & (field >> np.maximum(length - 1, 0) & 1 == 1), field - (1 << length), field)
    return field.astype(np.uint32)


def _permute(a: Lanes, b: Lanes, selector: Lanes) -> Lanes:
    """``prmt``: four of eight bytes, or their signs."""
    bytes_ = a.astype(np.uint64) | b.astype(np.uint64) << np.uint64(32)
    result = np.zeros_like(bytes_)
    for i in range(4):
        choice = selector.astype(np.uint64) >> np.uint64(4 * i)
        byte = bytes_ >> ((choice & np.uint64(7)) * np.uint64(8)) & np.uint64(0xFF)
        byte = np.where(choice & np.uint64(8), (byte >> np.uint64(7)) * np.uint64(0xFF), byte)
        result |= byte << np.uint64(8 * i)
    return result.astype(np.uint32)


def _high(a: Lanes, b: Lanes) -> Lanes:
    wide = np.dtype(f"{a.dtype.kind}8")
    return (a.astype(wide) * b.astype(wide) >> np.array(32, wide)).astype(a.dtype)


def _wide(a: Lanes, b: Lanes) -> Lanes:
    wide = np.dtype(f"{a.dtype.kind}{2 * a.dtype.itemsize}")
    return a.astype(wide) * b.astype(wide)


_INTEGER = {
    "add": operator.add, "sub": operator.sub, "mul.lo": operator.mul, "mul.wide": _wide, "mul.hi": _high,
    "mad.lo": lambda a, b, c: a * b + c, "mad.wide": lambda a, b, c: _wide(a, b) + c,
    "div": _quotient, "rem": lambda a, b: a - _quotient(a, b) * b, "min": np.minimum, "max": np.maximum,
    "neg": operator.neg, "abs": np.abs, "shr": _shift_right, "bfe": _extract,
}  # fmt: skip
_BITWISE = {
    "and": operator.and_, "or": operator.or_, "xor": operator.xor, "not": operator.invert, "shl": _shift_left,
    "mov": lambda a: a, "prmt": _permute,
}  # fmt: skip
_FLOAT = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div.rn": operator.truediv, "sqrt.rn": np.sqrt,
    "fma.rn": fused_multiply_add, "neg": operator.neg, "abs": np.abs, "max": _larger, "min": _smaller,
    "max.NaN": np.maximum, "min.NaN": np.minimum,
}  # fmt: skip
_COMPARE: dict[str, Callable[..., Lanes]] = {
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
    "equ": lambda a, b: ~((a < b) | (a > b)), "neu": operator.ne, "ltu": lambda a, b: ~(a >= b),
    "leu": lambda a, b: ~(a > b), "gtu": lambda a, b: ~(a <= b), "geu": lambda a, b: ~(a < b),
    "num": lambda a, b: (a == a) & (b == b), "nan": lambda a, b: (a != a) | (b != b),
}  # fmt: skip
_COUNT = {
    "mad": 3, "fma": 3, "bfe": 3, "prmt": 3, "neg": 1, "abs": 1, "not": 1, "mov": 1, "sqrt": 1,
}  # fmt: skip


@functools.cache
def operation(opcode: str) -> Operation:
    """Of an opcode that reads and writes registers only."""
    name, _, type = opcode.rpartition(".")
    base = name.partition(".")[0]
    if base == "cvt":
        return _conversion(*name.split(".")[1:], type)
    if base == "selp":
        return Operation(lambda a, b, p: np.where(p, a, b), (type, type, "pred"))
    if base == "setp":
        compare = _COMPARE[name.partition(".")[2]]
        # eq and ne of floats are ordered, "ne" as PTX means it is not numpy's
        if name == "setp.ne" and type.startswith("f"):
            compare = lambda a, b: (a < b) | (a > b)  # noqa: E731
        return Operation(compare, (type, type))
    if opcode == "div.full.f32":
        return Operation(_full_range_quotient, ("f32", "f32"))
    if type == "bf16":
        return _by_float32(name)
    table = _FLOAT if type in ("f16", "f32", "f64") else _BITWISE if type[0] == "b" or type == "pred" else _INTEGER
    table = _BITWISE if base == "mov" else table
    if name not in table or (type == "f16" and base == "fma"):
        raise Unknown
    sources = [type] * _COUNT.get(base, 2)
    if base in ("shl", "shr", "bfe"):
        sources[1:] = ["u32"] * (len(sources) - 1)
    if name == "mad.wide":
        sources[2] = f"{type[0]}{2 * int(type[1:])}"
    return Operation(table[name], tuple(sources))


def _by_float32(name: str) -> Operation:
    """bfloat16 operations whose result float32 holds exactly."""
    if name not in ("abs", "neg", "max", "min"):
        raise Unknown
    count = _COUNT.get(name, 2)
    return Operation(lambda *values: to_bfloat16(_FLOAT[name](*map(widened, values))), ("bf16",) * count)


def _to_tf32(a: Lanes) -> Lanes:
    """The nearest in the upper 19 bits, ties away from zero. What the lower 13 hold is not said: here, rubbish."""
    bits = a.view(np.uint32)
    return np.where(np.isnan(a), bits | np.uint32(0x1FFF), (bits + np.uint32(0x1000)) | np.uint32(0x1FFF))


def _conversion(*parts: str) -> Operation:
    *rounding, target, source = parts
    if rounding == ["rn"] and source == "f32" and target in ("bf16x2", "f16x2"):
        half = _conversion("rn", target[:-2], "f32").compute

        def both(high: Lanes, low: Lanes) -> Lanes:
            return half(high).view(np.uint16).astype(np.uint32) << np.uint32(16) | half(low).view(np.uint16)

        return Operation(both, ("f32", "f32"))
    if (rounding, target, source) == (["rna"], "tf32", "f32"):
        return Operation(_to_tf32, ("f32",))
    if (rounding, target, source) == (["rn"], "bf16", "f32"):
        return Operation(to_bfloat16, ("f32",))
    if (rounding, target, source) == ([], "f32", "bf16"):
        return Operation(widened, ("bf16",))
    if target not in TYPES or source not in TYPES:
        raise Unknown
    to, of = TYPES[target], TYPES[source]
    widens = to.itemsize > of.itemsize or of.kind != "f"
    if rounding not in ([], ["rn"]) or (rounding == []) != (widens and (to.kind == "f") == (of.kind == "f")):
        raise Unknown
    return Operation(lambda a: a.astype(to), (source,))
