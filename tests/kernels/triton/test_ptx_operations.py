"""Every operation of the PTX emulator on random lanes, against exact arithmetic and the PTX manual's layouts."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from tests.support.ptx import exact
from tests.support.ptx.assembly import evaluated, run
from tests.support.ptx.failures import Failure
from tests.support.ptx.lanes import BITS
from tests.support.ptx.opcodes import COMPARE, CONVERT, FLOAT, INTEGER, ORDERED, PREDICATE, SELECT

LANES = 256


def drawn(type: str, seed: int) -> np.ndarray:
    """Bits of any number, of numbers near 1, and of those where something ends."""
    size = 1 if type == "pred" else int(type.lstrip("bfsu"))
    numbers = np.random.default_rng([seed, size])
    if type == "pred":
        return numbers.random(LANES) < 0.5
    bits = numbers.integers(0, 2**size, LANES, BITS[size])
    if "f" not in type:
        bits[:40] = numbers.integers(0, 100, 40)
        bits[40:60] = numbers.choice(
            np.array([0, 1, 2**size - 1, 2 ** (size - 1), 2 ** (size - 1) - 1], BITS[size]), 20
        )
        return bits
    near_one = torch.from_numpy(numbers.standard_normal(LANES // 2))
    dtype = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64}[type]
    bits[: LANES // 2] = near_one.to(dtype).view(getattr(torch, f"uint{size}")).numpy()
    special = torch.tensor([0.0, -0.0, 1.0, math.inf, -math.inf, math.nan, 1e-40, -3e38]).to(dtype)
    bits[-20:] = numbers.choice(special.view(getattr(torch, f"uint{size}")).numpy(), 20)
    return bits


def value_of(bits: int, type: str) -> float | int:
    return exact.float_of(bits, type) if type in exact.FLOATS else exact.integer_of(bits, type.replace("b", "u"))


def check(opcode: str, sources: list[str], target: str, wanted) -> None:
    operands = [drawn(type, seed) for seed, type in enumerate(sources)]
    if opcode.startswith(("div.s", "div.u", "rem")):
        operands[1] = np.maximum(operands[1], 1)  # by zero there is no result
        operands[0][operands[1] == BITS[8 * operands[1].dtype.itemsize].type(-1 % 2**32)] = 7
    if opcode.startswith(("shl", "shr")):
        operands[1] = operands[1] % np.uint32(80)
    if opcode.startswith("bfe"):
        operands[1:] = [x % np.uint32(33) for x in operands[1:]]
    if opcode.startswith("prmt"):
        operands[2] &= np.uint32(0xFFFF)
    size = 1 if target == "pred" else int(target.lstrip("bfsu"))
    found = evaluated(opcode, operands, size)
    for lane in range(LANES):
        values = [
            bool(o[lane]) if type == "pred" else value_of(int(o[lane]), type)
            for o, type in zip(operands, sources, strict=True)
        ]
        expected, got = wanted(*values), int(found[lane])
        if target in exact.FLOATS:
            number = exact.float_of(got, target)
            assert number == expected or (number != number and expected != expected), (opcode, values, number, expected)
            if number == 0 and opcode.startswith(("max", "min", "neg", "abs", "selp", "cvt")):
                assert math.copysign(1, number) == math.copysign(1, expected), (opcode, values)
        else:
            assert got == int(expected) % 2**size, (opcode, values, got, expected)


@pytest.mark.parametrize("opcode", FLOAT)
def test_float_arithmetic(opcode: str) -> None:
    name, _, type = opcode.rpartition(".")
    count = {"fma.rn": 3, "sqrt.rn": 1, "neg": 1, "abs": 1}.get(name, 2)
    check(opcode, [type] * count, type, lambda *values: exact.FLOAT_OPERATIONS[name](type, *values))


@pytest.mark.parametrize("opcode", INTEGER)
def test_integer_arithmetic(opcode: str) -> None:
    name, _, type = opcode.rpartition(".")
    count = {"neg": 1, "abs": 1, "not": 1, "mov": 1, "mad.lo": 3, "mad.wide": 3, "bfe": 3, "prmt": 3}.get(name, 2)
    sources = [type] * count
    wide = f"{type[0]}{2 * int(type[1:])}"
    if name in ("shl", "shr", "bfe"):
        sources[1:] = ["u32"] * (count - 1)
    if name == "mad.wide":
        sources[2] = wide
    target = wide if name.endswith("wide") else type
    check(opcode, sources, target, lambda *values: exact.INTEGER_OPERATIONS[name](type, *values))


@pytest.mark.parametrize("opcode", PREDICATE)
def test_predicates(opcode: str) -> None:
    name = opcode.removesuffix(".pred")
    count = 1 if name in ("not", "mov") else 2
    check(opcode, ["pred"] * count, "pred", lambda *values: exact.INTEGER_OPERATIONS[name]("pred", *map(int, values)))


@pytest.mark.parametrize("opcode", COMPARE)
def test_comparisons(opcode: str) -> None:
    _, name, type = opcode.split(".")
    check(opcode, [type, type], "pred", exact.COMPARISONS[name])


@pytest.mark.parametrize("opcode", SELECT)
def test_selection(opcode: str) -> None:
    type = opcode.removeprefix("selp.")
    check(opcode, [type, type, "pred"], type, lambda a, b, p: a if p else b)


@pytest.mark.parametrize("opcode", CONVERT)
def test_conversions(opcode: str) -> None:
    target, source = opcode.split(".")[-2:]

    def wanted(value: float) -> float:
        return exact.nearest(Fraction(value), target) if target in exact.FLOATS and math.isfinite(value) else value

    def with_sign(value: float) -> float:
        return math.copysign(wanted(value), value) if target in exact.FLOATS else wanted(value)

    check(opcode, [source], target, with_sign)


@pytest.mark.parametrize("type", ["bf16", "f16"])
def test_packed_conversions(type: str) -> None:
    """The first operand goes into the upper half."""
    high, low = drawn("f32", 1), drawn("f32", 2)
    both = evaluated(f"cvt.rn.{type}x2.f32", [high, low], 32)
    one = [evaluated(f"cvt.rn.{type}.f32", [x], 16).astype(np.uint32) for x in (high, low)]
    np.testing.assert_array_equal(both, one[0] << np.uint32(16) | one[1])


def test_conversion_to_tf32() -> None:
    """The upper 19 bits are the nearest number of 11 digits, ties away from zero; NaN and infinity stay."""
    bits = np.concatenate(
        [drawn("f32", 1)[:-6], np.array([0x3F801000, 0x3F800FFF, 0x7FFFFFFF, 0xFF800000, 0x7F7FFFFF, 1])]
    )
    bits = bits.astype(np.uint32)
    found = (evaluated("cvt.rna.tf32.f32", [bits], 32) & np.uint32(0xFFFFE000)).view(np.float32)
    for number, got in zip(bits.view(np.float32).tolist(), found.tolist(), strict=True):
        if not math.isfinite(number):
            assert got == number or (got != got and number != number)
            continue
        step = Fraction(2) ** (max(math.frexp(number)[1] - 1, -126) - 10)
        away = math.floor(abs(Fraction(number)) / step + Fraction(1, 2)) * step
        assert abs(got) == (math.inf if away >= 2**128 else away) and math.copysign(1, got) == math.copysign(1, number)


@pytest.mark.parametrize("name", ORDERED)
def test_packed_comparisons(name: str) -> None:
    a, b = (
        drawn("f16", seed).astype(np.uint32) | drawn("f16", seed + 9).astype(np.uint32) << np.uint32(16)
        for seed in (1, 2)
    )
    arrays = {"a": a, "b": b, "out": np.zeros((2, LANES), np.uint16)}
    run([
        "mad.wide.u32 %rd11, %r1, 4, %rd1;", "ld.global.b32 %r11, [%rd11];",
        "mad.wide.u32 %rd12, %r1, 4, %rd2;", "ld.global.b32 %r12, [%rd12];",
        f"setp.{name}.f16x2 %p1|%p2, %r11, %r12;", "mad.wide.u32 %rd13, %r1, 2, %rd3;",
        "selp.b16 %rs1, 1, 0, %p1;", "selp.b16 %rs2, 1, 0, %p2;",
        "st.global.b16 [%rd13], %rs1;", f"st.global.b16 [%rd13+{2 * LANES}], %rs2;",
    ], arrays, LANES)  # fmt: skip
    for half in (0, 1):
        parts = [(x >> np.uint32(16 * half)).astype(np.uint16) for x in (a, b)]
        np.testing.assert_array_equal(arrays["out"][half], evaluated(f"setp.{name}.f16", parts, 1))


def test_fast_division_has_the_largest_permitted_error() -> None:
    """``div.full.f32``: up to 2 units of the last place, says the manual; where more than 1, a result shows it."""
    numbers = np.random.default_rng(0)
    a, b = (np.exp(numbers.standard_normal(4096) * 3).astype(np.float32) for _ in range(2))
    found = np.concatenate([
        evaluated("div.full.f32", [a[i : i + LANES], b[i : i + LANES]], 32) for i in range(0, 4096, LANES)
    ]).view(np.float32)  # fmt: skip
    right = a.astype(np.float64) / b
    error = (found - right) / np.spacing(np.abs(right).astype(np.float32)).astype(np.float64)
    assert 1.9 < np.abs(error).max() <= 2
    assert np.abs(error).min() > 0.9 and (error > 0).mean() == pytest.approx(0.5, abs=0.1)


def test_packed_moves() -> None:
    low, high = drawn("b32", 0), drawn("b32", 1)
    both = evaluated("mov.b64", [np.stack([low, high])], 64)
    np.testing.assert_array_equal(both, low.astype(np.uint64) | high.astype(np.uint64) << np.uint64(32))
    np.testing.assert_array_equal(evaluated("mov.b64", [both], 32, count=2), np.stack([low, high]))
    quarters = evaluated("mov.b64", [both], 16, count=4)
    np.testing.assert_array_equal(evaluated("mov.b64", [quarters], 64), both)


@pytest.mark.parametrize("opcode", ["fma.rn.bf16", "add.rz.f32", "rsqrt.approx.f32", "cvt.rz.f16.f32", "lop3.b32"])
def test_an_unknown_operation_fails_with_its_line(opcode: str) -> None:
    with pytest.raises(Failure, match=rf"does not know {opcode}\s+PTX line \d+: {opcode}"):
        evaluated(opcode, [drawn("b32", 0)] * 2, 32)
