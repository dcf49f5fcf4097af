"""The opcodes of compiled kernels that the tests try one by one."""

from collections.abc import Iterable

FLOAT = [
    *[
        f"{name}.{type}" for type in ("f32", "f64")
        for name in ("add", "sub", "mul", "fma.rn", "div.rn", "sqrt.rn", "neg", "abs", "max", "min", "max.NaN")
    ],
    *[f"{name}.{type}" for type in ("f16", "bf16") for name in ("abs", "neg", "max", "min")], "min.NaN.f32",
]  # fmt: skip
INTEGER = [
    *[f"{name}.{type}" for type in ("s32", "s64") for name in ("add", "sub", "mul.lo", "mad.lo", "div", "rem", "min")],
    "max.s32", "max.s64", "min.u32", "max.u32", "add.s16", "neg.s32", "neg.s64", "abs.s32", "mul.hi.s32", "mul.hi.u32",
    "mul.wide.s32", "mul.wide.u32", "mad.wide.s32",
    "mad.wide.u32", "div.u32", "rem.u32", "mul.lo.s16", "sub.s16", "bfe.s32", "bfe.u32", "prmt.b32",
    *[f"{name}.{bits}" for bits in ("b16", "b32", "b64") for name in ("and", "or", "xor", "mov", "shl")],
    "not.b16", "not.b32", "not.b64", "mov.u16", "mov.u32", "mov.u64", "shr.s16", "shr.s32", "shr.s64", "shr.u16",
    "shr.u32", "shr.u64",
]  # fmt: skip
PREDICATE = ["and.pred", "or.pred", "xor.pred", "not.pred", "mov.pred"]
ORDERED, UNORDERED = ("eq", "ne", "lt", "le", "gt", "ge"), ("equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")
COMPARE = [
    *[f"setp.{name}.{type}" for type in ("s32", "s64", "u32", "u64") for name in ORDERED],
    *[f"setp.{name}.{type}" for type in ("b16", "b32", "b64") for name in ("eq", "ne")],
    *[f"setp.{name}.{type}" for type in ("f16", "f32", "f64") for name in (*ORDERED, *UNORDERED)],
]
SELECT = ["selp.b16", "selp.b32", "selp.b64", "selp.f32", "selp.f64"]
CONVERT = [
    "cvt.f32.bf16", "cvt.f32.f16", "cvt.f64.f32", "cvt.rn.bf16.f32", "cvt.rn.f16.f32", "cvt.rn.f32.f64",
    "cvt.rn.f32.s32", "cvt.rn.f32.u32", "cvt.rn.f64.s32", "cvt.s16.s8", "cvt.s32.s8", "cvt.s32.s16", "cvt.s64.s16",
    "cvt.s64.s32", "cvt.u16.u32", "cvt.u32.u16", "cvt.u32.u64",
    "cvt.u64.u16", "cvt.u64.u32",
]  # fmt: skip
PACKED = ["cvt.rn.bf16x2.f32", "cvt.rn.f16x2.f32", "cvt.rna.tf32.f32", *[f"setp.{name}.f16x2" for name in ORDERED]]
TESTED = {*FLOAT, *INTEGER, *PREDICATE, *COMPARE, *SELECT, *CONVERT, *PACKED, "div.full.f32"}
# Memory, control flow and warps, by the first part of their names: test_ptx_machine.py and test_ptx_warps.py.
OTHERS = {"bar", "bra", "cp", "createpolicy", "ld", "ldmatrix", "mma", "redux", "ret", "shfl", "st"}


def untested(opcodes: Iterable[str]) -> list[str]:
    return sorted(opcode for opcode in opcodes if opcode not in TESTED and opcode.partition(".")[0] not in OTHERS)
