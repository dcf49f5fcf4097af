"""Triton's interpreter, taught what tensor cores do with float32 operands: it would multiply all of their digits.

NVIDIA's tensor cores read 19 of a float32 number's 32 bits: sign, exponent and 10 bits after the first digit. The other
13 are cut off, not rounded. Kernels that want them rounded have to do it themselves, and only with this can a test in
the interpreter tell those that do from those that do not.
"""

from typing import Any

import numpy as np
from triton._C.libtriton import ir
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

_exact = InterpreterBuilder.create_dot


def truncated(numbers: np.ndarray) -> np.ndarray:
    """float32 numbers without their last 13 bits."""
    return (np.ascontiguousarray(numbers).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def _dot(builder: InterpreterBuilder, a: Any, b: Any, d: Any, input_precision: Any, *rest: Any) -> Any:
    if input_precision == ir.INPUT_PRECISION.TF32 and a.data.dtype == b.data.dtype == np.float32:
        a, b = (TensorHandle(truncated(t.data), t.dtype) for t in (a, b))
    return _exact(builder, a, b, d, input_precision, *rest)


def install() -> None:
    InterpreterBuilder.create_dot = _dot
