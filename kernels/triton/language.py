"""Functions missing from Triton's language: correct rounding in its interpreter (for tests) and on NVIDIA GPUs."""

import triton
import triton.language as tl

from wnfused.kernels.triton import support

INTERPRETED = tl.constexpr(support.interpreted())


@triton.jit
def dot(a, b, acc, PRECISION: tl.constexpr):
    """acc + a · b, of one element type. PRECISION is dtypes.precision's: what becomes of float32 numbers."""
    if PRECISION != "ieee":
        a, b = rounded_to_tf32(a, PRECISION), rounded_to_tf32(b, PRECISION)
    if INTERPRETED:  # the interpreter would multiply the bits of bfloat16 numbers
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, acc, input_precision="ieee" if PRECISION == "ieee" else "tf32")


@triton.jit
def rounded_to_tf32(value, PRECISION: tl.constexpr):
    """float32 numbers rounded to the 11 digits of tf32, to nearest: tensor cores cut the others off.

    A product of truncated operands is too small by 7e-4 on average. NaN and infinity stay what they are.
    """
    if PRECISION == "tf32" and not INTERPRETED:
        return tl.inline_asm_elementwise("cvt.rna.tf32.f32 $0, $1;", "=r,r", [value], tl.float32, True, 1)
    # The same on AMD GPUs and in the interpreter: add half a unit of the last place, then cut.
    power = (value.to(tl.uint32, bitcast=True) & 0xFF800000).to(tl.float32, bitcast=True)
    return ((value + power * 0.00048828125).to(tl.uint32, bitcast=True) & 0xFFFFE000).to(tl.float32, bitcast=True)


@triton.jit
def narrowed(value, DTYPE: tl.constexpr):
    """value in DTYPE, rounded to nearest."""
    if INTERPRETED and tl.bfloat16 == DTYPE:  # the interpreter would cut the digits off
        bits = value.to(tl.float32).to(tl.uint32, bitcast=True)
        value = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).to(tl.float32, bitcast=True)
    return value.to(DTYPE)


@triton.jit
def product(a, b):
    """a·b of equal shapes and float32, rounded before it is added to anything.

    For sums across threads. The compiler fuses a product with the addition that follows it: two threads that exchange
    their products and add would each round the other's alone, and the sums that both hold differ in the last bit.
    """
    return tl.fma(a, b, tl.zeros_like(a))


@triton.jit
def root(x):
    """√x, rounded to nearest: NVIDIA's quick root of float32 numbers is not."""
    return tl.sqrt(x) if x.dtype == tl.float64 else tl.sqrt_rn(x)


@triton.jit
def quotient(a, b, QUICK: tl.constexpr = False):
    """a / b, rounded to nearest; NVIDIA's quick quotient of float32 numbers may be two units of the last place off."""
    return a / b if QUICK or b.dtype == tl.float64 else tl.div_rn(a, b)
