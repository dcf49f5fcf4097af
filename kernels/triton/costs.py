"""The written cost model of the rule: the Triton kernel, or one row kernel that writes the weight and then the vendor.

All figures are models or assumptions; nothing here was measured, because no GPU has run this code. ``wnfused tune``
replaces them by measurements. Sources of the constants:

- peaks and bandwidths: the data sheets named in audit/processors.py (copied: the rule must not import the audit);
- MODELLED: the audit's ``tensor_peak`` of the largest tile of a kernel (docs/gpu.md, "% of tensor peak"); of unaligned
  rows, read element by element with a 64×64 tile, an estimate for sm_90 (14%, weight gradients 4%) is taken for all;
- ACHIEVED: assumed. A loop with enough warps comes close to its busiest unit; cuBLAS and cuDNN are said to reach 70 to
  85% of the nominal peaks, and contiguous images are reordered first;
- LAUNCH: assumed, the gap between two dependent launches on a stream.
"""

from typing import NamedTuple


class Machine(NamedTuple):
    flops: float  # 16-bit, per second
    bytes: float  # of DRAM, per second
    float32: float  # flops of the multiply-adds outside tensor cores


MACHINES = {
    "sm_80": Machine(312e12, 2.04e12, 19.5e12),
    "sm_90": Machine(989e12, 3.35e12, 61.9e12),
    "sm_100": Machine(2250e12, 7.7e12, 70.5e12),
    "gfx942": Machine(1307e12, 5.3e12, 81.7e12),
}
LAUNCH = 3e-6  # seconds
ACHIEVED = {"triton": 0.9, "vendor": 0.8}
# The fraction of tensor peak of the largest aligned tile: (16-bit, float32 weights under 16-bit, tf32).
MODELLED = {
    "linear": {"sm_80": (1.0, 0.88, 1.0), "sm_90": (0.98, 0.44, 0.56), "sm_100": (0.48, 0.25, 0.28)},
    "linear_dx": {"sm_80": (1.0, 0.88, 0.98), "sm_90": (0.98, 0.44, 0.56), "sm_100": (0.48, 0.25, 0.28)},
    "linear_dw": {"sm_80": (0.97, 0.97, 0.71), "sm_90": (0.98, 0.78, 0.56), "sm_100": (0.43, 0.43, 0.2)},
    "gather": {"sm_80": (1.0, 0.88, 0.71), "sm_90": (0.78, 0.44, 0.56), "sm_100": (0.29, 0.18, 0.26)},
    "weight_gradient": {"sm_80": (0.88, 0.88, 0.32), "sm_90": (0.81, 0.72, 0.18), "sm_100": (0.39, 0.39, 0.18)},
}
UNALIGNED = {"linear": 0.14, "linear_dx": 0.14, "linear_dw": 0.04, "gather": 0.14, "weight_gradient": 0.04}
_LIKE = {"scatter": "gather"}


def fraction(kernel: str, family: str, dtypes: str, aligned: bool) -> float:
    """Of the peak that the products run at, by the model of the Triton kernel's loop."""
    kernel = _LIKE.get(kernel, kernel)
    if not aligned:
        return UNALIGNED[kernel]
    kind = 2 if dtypes == "tf32" else 1 if "/" in dtypes else 0
    # gfx942 has no wgmma: its loops are like sm_80's, with less shared memory
    return MODELLED[kernel].get(family, MODELLED[kernel]["sm_80"])[kind]


def vendor_wins(
    kernel: str, products: int, weight: int, images: int, dtypes: str, family: str, aligned: bool, channels_last: bool
) -> bool:
    """Whether the vendor is expected to be faster, from multiply-adds and the elements of the weight and the images.

    Both read and write the same operands; the vendor's weight is written and read once more, in the compute dtype.
    float32 products without tensor cores run at similar rates: there the Triton kernel keeps aligned layers.
    """
    machine = MACHINES[family]
    element = 4 if dtypes in ("fp32", "tf32") else 2
    peak = machine.float32 if dtypes == "fp32" else machine.flops / (2 if dtypes == "tf32" else 1)
    own = 0.95 if dtypes == "fp32" and aligned else fraction(kernel, family, dtypes, aligned)
    moved = (weight + images) * element / machine.bytes
    triton = max(2 * products / (peak * own * ACHIEVED["triton"]), moved)
    vendor = max(2 * products / (peak * ACHIEVED["vendor"]), moved)
    vendor += LAUNCH + 2 * weight * element / machine.bytes
    if not channels_last:
        vendor += 2 * images * element / machine.bytes
    return vendor < triton
