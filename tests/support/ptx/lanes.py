"""Values of many threads at once: a register is an array of bits, one element a lane, viewed as an operation's type."""

import numpy as np
from numpy.typing import NDArray

Lanes = NDArray  # of one register; never changed in place, so that registers may share one
TYPES = {
    **{f"{kind}{bits}": np.dtype(f"u{bits // 8}") for kind in "bu" for bits in (8, 16, 32, 64)},
    **{f"s{bits}": np.dtype(f"i{bits // 8}") for bits in (8, 16, 32, 64)},
    "f16": np.dtype("f2"), "f32": np.dtype("f4"), "f64": np.dtype("f8"), "pred": np.dtype(bool),
}  # fmt: skip
BITS = {1: np.dtype(bool), 8: np.dtype("u1"), 16: np.dtype("u2"), 32: np.dtype("u4"), 64: np.dtype("u8")}


def constant(bits: int, type: str) -> np.generic:
    dtype = TYPES.get(type, BITS[16])  # bf16
    if type == "pred":
        return np.bool_(bits != 0)
    size = 8 * dtype.itemsize
    return np.array(bits & (1 << size) - 1, BITS[size]).view(dtype)[()]


def scatter(data: Lanes, places: Lanes, values: Lanes, backwards: bool) -> bool:
    """Stores in the order of lanes, or backwards; returns whether lanes had different values for one place."""
    step = -1 if backwards else 1
    # Copied, because numpy undoes negative steps and would store in the order of memory.
    data[places[::step].copy()] = values[::step].copy()
    return bool((data[places] != values).any())


def widened(value: Lanes) -> Lanes:
    """bfloat16 bits as float32."""
    return (value.astype(np.uint32) << np.uint32(16)).view(np.float32)


def to_bfloat16(value: Lanes) -> Lanes:
    """float32 rounded to nearest, as bits."""
    bits = value.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(value), np.uint16(0x7FFF), rounded.astype(np.uint16))


def _two_sum(a: Lanes, b: Lanes) -> tuple[Lanes, Lanes]:
    """a + b and what its rounding lost."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _two_product(a: Lanes, b: Lanes) -> tuple[Lanes, Lanes]:
    def halves(x: Lanes) -> tuple[Lanes, Lanes]:
        scaled = x * 134217729.0  # 2**27 + 1
        high = scaled - (scaled - x)
        return high, x - high

    product, (a_high, a_low), (b_high, b_low) = a * b, halves(a), halves(b)
    lost = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return product, np.where(np.isfinite(lost), lost, 0.0)


def _odd(total: Lanes, lost: Lanes) -> Lanes:
    """A sum and what it lost, rounded to odd: rounded again to fewer digits it is as if rounded once."""
    bits = np.ascontiguousarray(total).view(np.int64)
    step = np.where((lost > 0) == (total > 0), 1, -1)
    even = (lost != 0) & np.isfinite(total) & (bits & 1 == 0) & (total != 0)
    return (bits + np.where(even, step, 0)).view(np.float64)


def fused_multiply_add(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    """a·b + c rounded once, of float32 or float64."""
    if a.dtype == np.float64:
        product, low = _two_product(a, b)
        middle, rest = _two_sum(c, low)
        total, lost = _two_sum(product, middle)
        return np.where(np.isfinite(total), total + _odd(*_two_sum(rest, lost)), a * b + c)
    product = a.astype(np.float64) * b  # exact
    total = product + c
    # Rounding twice differs where the first result is a float32's midpoint, or where float32 has fewer digits.
    doubtful = (total.view(np.uint64) & np.uint64(0x1FFFFFFF)) == np.uint64(0x10000000)
    doubtful |= np.abs(total) < 2.0**-125
    if doubtful.any():
        total = np.where(
            doubtful, _odd(*_two_sum(product, np.broadcast_to(c, product.shape).astype(np.float64))), total
        )
    return total.astype(np.float32)
