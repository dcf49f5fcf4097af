"""What PTX instructions compute, in Python's integers and fractions, one lane at a time: the emulator's reference.

Numbers of a float type come as Python floats, which hold those of all narrower types exactly.
"""

import math
import struct
from collections.abc import Callable
from fractions import Fraction

FLOATS = {"f16": (11, -14), "bf16": (8, -126), "f32": (24, -126), "f64": (53, -1022)}  # digits, least exponent


def nearest(value: Fraction, type: str) -> float:
    """Rounded to the nearest number of a float type, ties to even; past the largest one infinity."""
    if value == 0:
        return 0.0
    digits, least = FLOATS[type]
    exponent = abs(value.numerator).bit_length() - value.denominator.bit_length()
    if Fraction(2) ** exponent > abs(value):
        exponent -= 1
    step = Fraction(2) ** (max(exponent, least) - digits + 1)
    rounded = round(value / step) * step
    if abs(rounded) >= Fraction(2) ** (2 - least):
        return math.inf if value > 0 else -math.inf
    return float(rounded)


def float_of(bits: int, type: str) -> float:
    if type == "bf16":
        bits, type = bits << 16, "f32"
    code, size = {"f16": ("e", 2), "f32": ("f", 4), "f64": ("d", 8)}[type]
    return struct.unpack(code, bits.to_bytes(size, "little"))[0]


def integer_of(bits: int, type: str) -> int:
    size = int(type[1:])
    return bits - (1 << size) if type[0] == "s" and bits >> size - 1 else bits


def _rounded(exact: Callable[..., Fraction], special: Callable[..., float]) -> Callable[..., float]:
    """An operation of finite numbers, rounded; ``special`` serves where an operand is infinite or NaN."""

    def compute(type: str, *values: float) -> float:
        if not all(map(math.isfinite, values)):
            return special(*values)
        return nearest(exact(*map(Fraction, values)), type)

    return compute


def _quotient(type: str, a: float, b: float) -> float:
    if math.isnan(a) or math.isnan(b) or (a == 0 and b == 0) or (math.isinf(a) and math.isinf(b)):
        return math.nan
    sign = math.copysign(1, a) * math.copysign(1, b)
    if math.isinf(a) or b == 0:
        return sign * math.inf
    return sign * 0.0 if math.isinf(b) else nearest(Fraction(a) / Fraction(b), type)


def _root(type: str, a: float) -> float:
    if not a > 0 or math.isinf(a):
        return a if a == 0 or a > 0 else math.nan
    shift = 2 * 600  # digits enough that no root of a number that is not a square looks like a tie
    root = math.isqrt(int(Fraction(a) * 2 ** (2 * shift)))
    exact = Fraction(root, 2**shift)
    return nearest(exact if exact * exact == Fraction(a) else exact + Fraction(1, 2 ** (shift + 1)), type)


def _larger(type: str, a: float, b: float) -> float:
    if math.isnan(a) or math.isnan(b):
        return b if math.isnan(a) else a
    return max(a, b, key=lambda x: (x, math.copysign(1, x)))


def _smaller(type: str, a: float, b: float) -> float:
    if math.isnan(a) or math.isnan(b):
        return b if math.isnan(a) else a
    return min(a, b, key=lambda x: (x, math.copysign(1, x)))


FLOAT_OPERATIONS: dict[str, Callable[..., float]] = {
    "add": _rounded(lambda a, b: a + b, lambda a, b: a + b),
    "sub": _rounded(lambda a, b: a - b, lambda a, b: a - b),
    "mul": _rounded(lambda a, b: a * b, lambda a, b: a * b),
    "fma.rn": _rounded(
        lambda a, b, c: a * b + c, lambda a, b, c: (0 if math.isfinite(a) and math.isfinite(b) else a * b) + c
    ),
    "div.rn": _quotient,
    "sqrt.rn": _root,
    "neg": lambda type, a: -a,
    "abs": lambda type, a: abs(a),
    "max": _larger,
    "min": _smaller,
    "max.NaN": lambda type, a, b: math.nan if a != a or b != b else _larger(type, a, b),
    "min.NaN": lambda type, a, b: math.nan if a != a or b != b else _smaller(type, a, b),
}


def _truncated(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _field(type: str, a: int, position: int, length: int) -> int:
    position, length = position & 255, length & 255
    field = ((a & 0xFFFFFFFF) >> position) & ((1 << length) - 1)
    negative = type[0] == "s" and length > 0 and field >> length - 1 & 1
    return field - (1 << length) if negative else field


def _bytes(type: str, a: int, b: int, selector: int) -> int:
    source, result = a.to_bytes(4, "little") + b.to_bytes(4, "little"), 0
    for i in range(4):
        choice = selector >> 4 * i & 15
        byte = source[choice & 7]
        result |= (byte if choice < 8 else 255 * (byte >> 7)) << 8 * i
    return result


INTEGER_OPERATIONS: dict[str, Callable[..., int]] = {
    "add": lambda type, a, b: a + b,
    "sub": lambda type, a, b: a - b,
    "mul.lo": lambda type, a, b: a * b,
    "mul.hi": lambda type, a, b: a * b >> 32,
    "mul.wide": lambda type, a, b: a * b,
    "mad.lo": lambda type, a, b, c: a * b + c,
    "mad.wide": lambda type, a, b, c: a * b + c,
    "div": lambda type, a, b: _truncated(a, b),
    "rem": lambda type, a, b: a - _truncated(a, b) * b,
    "min": lambda type, a, b: min(a, b),
    "max": lambda type, a, b: max(a, b),
    "neg": lambda type, a: -a,
    "abs": lambda type, a: abs(a),
    "and": lambda type, a, b: a & b,
    "or": lambda type, a, b: a | b,
    "xor": lambda type, a, b: a ^ b,
    "not": lambda type, a: ~a,
    "mov": lambda type, a: a,
    "shl": lambda type, a, b: a << b if b < 64 else 0,
    "shr": lambda type, a, b: a >> b,
    "bfe": _field,
    "prmt": _bytes,
}
COMPARISONS: dict[str, Callable[..., bool]] = {
    "eq": lambda a, b: a == b, "lt": lambda a, b: a < b, "le": lambda a, b: a <= b,
    "ne": lambda a, b: a < b or a > b, "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
    **{
        f"{name}u": lambda a, b, name=name: a != a or b != b or COMPARISONS[name](a, b)
        for name in ("eq", "ne", "lt", "le", "gt", "ge")
    },
    "num": lambda a, b: a == a and b == b, "nan": lambda a, b: a != a or b != b,
}  # fmt: skip
