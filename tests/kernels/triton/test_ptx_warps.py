"""What a warp of the PTX emulator does together, against the PTX manual's rules written out lane by lane."""

import numpy as np
import pytest

from tests.support.ptx import assembly
from tests.support.ptx.assembly import evaluated
from tests.support.ptx.failures import Failure
from tests.support.ptx.lanes import widened

NUMBERS = np.random.default_rng(0)
THREADS = 64


def words(*shape: int) -> np.ndarray:
    return NUMBERS.integers(0, 2**32, shape, np.uint32)


@pytest.mark.parametrize("mask", [1, 2, 4, 8, 16, 31])
def test_butterfly(mask: int) -> None:
    value = words(THREADS)
    found = evaluated("shfl.sync.bfly.b32", [value, mask, 31, -1], 32)
    assert [*found] == [value[lane & ~31 | (lane & 31) ^ mask] for lane in range(THREADS)]


def test_indexed_shuffle() -> None:
    value, source = words(THREADS), NUMBERS.integers(0, 32, THREADS, np.uint32)
    found = evaluated("shfl.sync.idx.b32", [value, source, 31, -1], 32)
    assert [*found] == [value[lane & ~31 | source[lane]] for lane in range(THREADS)]


def test_largest_of_a_warp() -> None:
    value = words(THREADS)
    found = evaluated("redux.sync.max.s32", [value, np.full(THREADS, -1, np.int32)], 32).view(np.int32)
    assert [*found] == [value.view(np.int32)[lane & ~31 : (lane | 31) + 1].max() for lane in range(THREADS)]


def test_a_part_of_a_warp_cannot_shuffle() -> None:
    lines = ["setp.lt.u32 %p1, %r1, 7;", "@%p1 shfl.sync.bfly.b32 %r2, %r1, 1, 31, -1;"]
    with pytest.raises(Failure, match="a part of a warp"):
        assembly.run(lines, {"unused": np.zeros(1)})


def halves(register: np.ndarray, place: int, type: str) -> float:
    half = (register >> np.uint32(16 * place)).astype(np.uint16)
    return float(widened(half[None])[0] if type == "bf16" else half.view(np.float16))


def number(type: str, *shape: int) -> np.ndarray:
    """Random words that hold small numbers of the type."""
    values = NUMBERS.standard_normal((*shape, 2)).astype(np.float32)
    if type == "tf32":
        return values[..., 0].view(np.uint32)
    bits = values.view(np.uint32) >> np.uint32(16) if type == "bf16" else values.astype(np.float16).view(np.uint16)
    return bits[..., 0].astype(np.uint32) | bits[..., 1].astype(np.uint32) << np.uint32(16)


@pytest.mark.parametrize("type", ["bf16", "f16"])
def test_products_of_16_bit_numbers(type: str) -> None:
    """The manual's fragments of mma.m16n8k16, element by element."""
    a, b = number(type, 4, 32), number(type, 2, 32)
    c = NUMBERS.standard_normal((4, 32)).astype(np.float32)
    rows, columns, total = np.zeros((16, 16)), np.zeros((16, 8)), np.zeros((16, 8))
    for lane in range(32):
        group, place = lane >> 2, lane % 4
        for i in range(8):
            row = group if i < 2 or 4 <= i < 6 else group + 8
            rows[row, place * 2 + (i & 1) + (8 if i >= 4 else 0)] = halves(a[i // 2, lane], i % 2, type)
        for i in range(4):
            columns[place * 2 + (i & 1) + (8 if i >= 2 else 0), group] = halves(b[i // 2, lane], i % 2, type)
        for i in range(4):
            total[group if i < 2 else group + 8, place * 2 + (i & 1)] = c[i, lane]
    found = evaluated(f"mma.sync.aligned.m16n8k16.row.col.f32.{type}.{type}.f32", [a, b, c], 32, count=4)
    compare(found.view(np.float32), rows @ columns + total)


def test_products_of_tf32_numbers() -> None:
    """The manual's fragments of mma.m16n8k8; the last 13 bits of operands are not read."""
    a, b = number("tf32", 4, 32), number("tf32", 2, 32)
    c = NUMBERS.standard_normal((4, 32)).astype(np.float32)
    rows, columns, total = np.zeros((16, 8)), np.zeros((8, 8)), np.zeros((16, 8))
    for lane in range(32):
        group, place = lane >> 2, lane % 4
        for i in range(4):
            value = (a[i, lane] & np.uint32(0xFFFFE000)).view(np.float32)
            rows[group if i in (0, 2) else group + 8, place if i < 2 else place + 4] = value
            total[group if i < 2 else group + 8, place * 2 + (i & 1)] = c[i, lane]
        for i in range(2):
            columns[place + 4 * i, group] = (b[i, lane] & np.uint32(0xFFFFE000)).view(np.float32)
    found = evaluated("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32", [a, b, c], 32, count=4)
    compare(found.view(np.float32), rows @ columns + total)


def compare(found: np.ndarray, wanted: np.ndarray) -> None:
    for lane in range(32):
        for i in range(4):
            row, column = (lane >> 2) + (0 if i < 2 else 8), lane % 4 * 2 + (i & 1)
            assert found[i, lane] == np.float32(wanted[row, column])


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("transposed", [False, True])
def test_matrices_from_shared_memory(count: int, transposed: bool) -> None:
    """Lane 8·m + r gives the address of row r of matrix m; rows lie in shared memory in a drawn order."""
    rows, order = NUMBERS.integers(0, 2**16, (32, 8), np.uint16), NUMBERS.permutation(32).astype(np.uint32)
    arrays = {"rows": rows, "order": order, "out": np.zeros((count, 32), np.uint32)}
    registers = [f"%r5{i}" for i in range(count)]
    form = f"m8n8.x{count}{'.trans' if transposed else ''}.shared.b16"
    assembly.run([
        "mad.wide.u32 %rd11, %r1, 16, %rd1;", "mad.wide.u32 %rd12, %r1, 4, %rd2;", "mad.wide.u32 %rd13, %r1, 4, %rd3;",
        "ld.global.v4.b32 {%r20, %r21, %r22, %r23}, [%rd11];", "shl.b32 %r2, %r1, 4;",
        "st.shared.v4.b32 [%r2], {%r20, %r21, %r22, %r23};", "bar.sync 0;",
        "ld.global.b32 %r3, [%rd12];", "shl.b32 %r4, %r3, 4;",
        f"ldmatrix.sync.aligned.{form} {{{', '.join(registers)}}}, [%r4];",
        *[f"st.global.b32 [%rd13+{128 * i}], {register};" for i, register in enumerate(registers)],
    ], arrays, shared=512)  # fmt: skip
    for lane in range(32):
        for i in range(count):
            matrix = rows[order[8 * i : 8 * i + 8]]
            matrix = matrix.T if transposed else matrix
            low, high = (int(x) for x in matrix[lane // 4, 2 * (lane % 4) : 2 * (lane % 4) + 2])
            assert arrays["out"][i, lane] == low | high << 16
