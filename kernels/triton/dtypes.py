"""The name of a layer's dtypes: the key for tiles, tuned plans and audit entries.

The names are "bf16" and "fp16"; "fp32", or "tf32" if torch's flags allow float32 products to be rounded; and
"bf16/fp32" and "fp16/fp32" for float32 weights under 16-bit activations.
"""

from typing import Any

import torch
from torch import Tensor

_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


def linear_dtypes(x: Tensor, v: Tensor) -> str:
    return _name(x, v, torch.backends.cuda.matmul)


def convolution_dtypes(x: Tensor, v: Tensor) -> str:
    return _name(x, v, torch.backends.cudnn.conv)  # type: ignore[attr-defined]


def _name(x: Tensor, v: Tensor, flags: Any) -> str:
    if x.dtype != v.dtype:
        return f"{_NAMES[x.dtype]}/{_NAMES[v.dtype]}"
    # torch's older flag, allow_tf32, cannot be read once a user has set one of the newer ones
    rounded = x.dtype == torch.float32 and flags.fp32_precision == "tf32"
    return "tf32" if rounded else _NAMES[x.dtype]


def precision(dtypes: str) -> str:
    """What language.dot does with float32 numbers: "ieee", or rounds them as NVIDIA's "tf32" or AMD's "xf32"."""
    rounded = "tf32" if torch.version.hip is None else "xf32"
    return rounded if dtypes == "tf32" else "ieee"
