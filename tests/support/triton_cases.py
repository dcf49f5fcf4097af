"""Shared by the tests of the Triton kernels: the device, the tiles, and the comparison with float64.

Without a GPU they run in triton's interpreter on CPU tensors; `make test-gpu` runs the same tests on one, once with
exact float32 products and once, with WNFUSED_TEST_TF32=1, with products that torch's flags allow to be rounded to tf32.
"""

import torch
from torch import Tensor

from tests.support.reference import assert_close
from wnfused.kernels.triton import support
from wnfused.kernels.triton.tiles import KERNELS, TILES, Tile, shipped_tiles
from wnfused.ops import reference as formulas

DEVICE = torch.device("cpu" if support.interpreted() else "cuda")
ON_GPU = DEVICE.type == "cuda"

# (activations, weights)
DTYPES = [
    (torch.float32, torch.float32),
    (torch.bfloat16, torch.bfloat16),
    (torch.float16, torch.float16),
    (torch.bfloat16, torch.float32),
    (torch.float16, torch.float32),
]
DTYPE_IDS = ["fp32", "bf16", "fp16", "bf16-fp32", "fp16-fp32"]


def tiles(dtype: torch.dtype) -> list[Tile]:
    """All shipped tiles for activations of that dtype, of every target; on a GPU only those of its target.

    The interpreter knows no warps and stages: there, one of the tiles that differ in nothing else is enough.
    """
    families = [support.target_of(DEVICE).family] if ON_GPU else list(TILES)
    kernels = [kernel for kernel in KERNELS if kernel != "few_rows"]
    shipped = sorted(shipped_tiles(kernels, families, ["tf32", "fp32"] if dtype == torch.float32 else ["16-bit"]))
    return shipped if ON_GPU else list({(tile.m, tile.n, tile.k): tile for tile in shipped}.values())


def tensors(*shapes_and_dtypes: tuple[tuple[int, ...], torch.dtype]) -> list[Tensor]:
    return [torch.randn(shape).to(DEVICE, dtype) for shape, dtype in shapes_and_dtypes]


def gains(v: Tensor, dim: int | None) -> Tensor:
    return (torch.rand(formulas.gain_shape(tuple(v.shape), dim)) + 0.5).to(DEVICE, v.dtype)


def wide(*values: Tensor | None) -> list[Tensor | None]:
    return [None if t is None else t.detach().double().cpu() for t in values]


def assert_all_close(own: tuple[Tensor | None, ...], wanted: tuple[Tensor | None, ...], rounded: torch.dtype) -> None:
    """Compare with the tolerance of the result's dtype, or of the products' dtype if that is larger (dv in float32)."""
    for name, a, b in zip(["dx", "dv", "dg", "db"], own, wanted, strict=True):
        assert (a is None) == (b is None), name
        if a is not None and b is not None:
            narrow = a.cpu().to(rounded) if a.dtype == torch.float32 else a.cpu()
            assert_close(narrow if name != "db" else a.cpu(), b, what=name)
