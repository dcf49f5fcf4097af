"""Tile shapes of the matmul-like kernels, which the audit compiles and the tuner measures."""

import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Tile(NamedTuple):
    """The tile of one program: m × n results, summed k at a time, with its number of warps and pipeline stages."""

    m: int
    n: int
    k: int
    warps: int
    stages: int

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k} w{self.warps} s{self.stages}"


def products_of(dtypes: str) -> str:
    """The key of TILES. Weights are rounded to the activations' dtype; both 16-bit dtypes share their tiles."""
    activations = dtypes.partition("/")[0]
    return "16-bit" if activations in ("bf16", "fp16") else activations


# Replacements of tiles, by kernel, target family and products: if a kernel's addresses or epilogue leave too few
# registers for the usual tile, or another number of warps reads shared memory less often.
_INSTEAD = {
    # four warps read each element fewer times than eight: that leaves room for a single pass's squares
    ("linear", "sm_80", "tf32", Tile(128, 128, 32, 8, 3)): Tile(128, 128, 16, 4, 4),
    ("gather", "sm_80", "tf32", Tile(128, 128, 32, 8, 3)): Tile(128, 64, 32, 8, 3),
    ("gather", "sm_80", "16-bit", Tile(64, 128, 32, 4, 4)): Tile(64, 128, 32, 8, 4),
    ("scatter", "sm_80", "16-bit", Tile(64, 128, 32, 4, 4)): Tile(64, 128, 32, 8, 4),
    ("scatter", "sm_80", "16-bit", Tile(128, 128, 32, 4, 3)): Tile(128, 128, 16, 4, 4),
    ("gather", "sm_100", "16-bit", Tile(128, 128, 64, 8, 3)): Tile(128, 64, 64, 8, 3),
    ("scatter", "sm_100", "16-bit", Tile(128, 128, 64, 8, 3)): Tile(128, 64, 64, 8, 3),
    # rounding the operands to tf32 takes registers
    ("linear_dw", "sm_80", "tf32", Tile(128, 128, 32, 8, 3)): Tile(128, 64, 32, 8, 3),
    ("weight_gradient", "sm_90", "tf32", Tile(128, 128, 32, 8, 3)): Tile(128, 64, 32, 8, 3),
    ("linear_dw", "sm_90", "16-bit", Tile(64, 128, 64, 4, 4)): Tile(64, 128, 64, 8, 4),
    ("linear_dw", "sm_100", "tf32", Tile(128, 128, 32, 8, 3)): Tile(128, 64, 32, 8, 3),
    ("weight_gradient", "sm_80", "tf32", Tile(128, 128, 32, 8, 3)): Tile(128, 64, 32, 8, 3),
    ("weight_gradient", "sm_100", "tf32", Tile(128, 128, 32, 8, 3)): Tile(128, 64, 32, 8, 3),
    ("weight_gradient", "sm_90", "16-bit", Tile(64, 128, 64, 4, 4)): Tile(64, 128, 64, 8, 4),
    ("gather", "sm_100", "fp32", Tile(64, 64, 16, 4, 3)): Tile(64, 32, 16, 4, 3),
    ("scatter", "sm_100", "fp32", Tile(64, 64, 16, 4, 3)): Tile(64, 32, 16, 4, 3),
    ("gather", "sm_80", "fp32", Tile(16, 64, 32, 1, 5)): Tile(16, 64, 16, 2, 5),
    ("gather", "sm_90", "fp32", Tile(16, 64, 32, 1, 5)): Tile(16, 64, 16, 2, 5),
    ("gather", "sm_100", "fp32", Tile(16, 64, 32, 1, 5)): Tile(16, 64, 16, 2, 5),
    ("scatter", "sm_100", "fp32", Tile(16, 64, 32, 1, 5)): Tile(16, 64, 16, 2, 5),
    ("weight_gradient", "sm_80", "fp32", Tile(16, 64, 32, 1, 5)): Tile(16, 64, 16, 2, 5),
    ("weight_gradient", "sm_90", "fp32", Tile(16, 64, 32, 1, 5)): Tile(16, 64, 16, 2, 5),
    ("weight_gradient", "sm_100", "fp32", Tile(16, 64, 32, 1, 5)): Tile(16, 64, 16, 2, 5),
}
# The register limit of a thread. With this limit NVIDIA's assembler uses as many as it needs; by default it aims for
# more resident threads and sometimes spills a value to get there.
MOST_REGISTERS = 255
WEIGHT_GRADIENTS = ("linear_dw", "weight_gradient")  # the kernels whose epilogue reads v beside a full accumulator
# Rows × elements that a program of the multi-tensor norms reduces at a time, for contiguous and for interleaved rows.
NORM_TILES = {"ALONG_R": 4, "ALONG_E": 256, "ACROSS_R": 64, "ACROSS_E": 16}
KERNELS = ("linear", "linear_dx", "linear_dw", "few_rows", "gather", "scatter", "weight_gradient")
FEW_ROWS = 16  # batch rows up to which the weight gradient is computed without dW in memory
# For batches of a few rows on machines of many processors: half as wide, so that twice as many programs read weights.
# Two warps read x from shared memory fewer times than four, which counts where DRAM is fastest.
_NARROW = {
    "sm_90": {"16-bit": Tile(16, 32, 64, 4, 5), "tf32": Tile(16, 32, 32, 4, 5)},
    "sm_100": {"16-bit": Tile(16, 32, 128, 2, 4), "tf32": Tile(16, 32, 64, 2, 4)},
    "gfx942": {"16-bit": Tile(16, 32, 64, 4, 5), "tf32": Tile(16, 32, 32, 4, 5)},
}


# wgmma reads its operands from shared memory: a larger tile reads less for each product (98% of the tensor peak by the
# audit's model, where 128×128 has 78%). float32 weights do not fit beside it. The weight gradient of a convolution is
# larger in its outputs: the inputs' addresses cost more.
_WIDE = Tile(128, 256, 64, 8, 3)
_LARGEST = {
    "sm_90": {"linear": _WIDE, "linear_dx": _WIDE, "linear_dw": _WIDE, "weight_gradient": Tile(256, 128, 64, 8, 3)}
}


def with_mask(tile: Tile) -> Tile:
    """The tile of a weight gradient that applies a ReLU's mask to dy, which passes it through registers."""
    return tile._replace(m=min(tile.m, 128), n=min(tile.n, 128))


# If rows cannot be read 16 bytes at a time (contiguous images, sizes that are not multiples of 16), every element needs
# its own address, and beyond 2³¹ elements addresses take twice the registers: small tiles, shared by many threads.
_UNALIGNED: tuple[Tile, ...] = (Tile(64, 64, 32, 8, 2), Tile(16, 64, 32, 4, 2))


def _unaligned(kernel: str, family: str, products: str) -> tuple[Tile, ...]:
    """gfx942 has as many threads in half as many wavefronts, and scalar registers for fewer addresses of pixels."""
    tiles = _UNALIGNED
    if family == "gfx942":
        tiles = tuple(tile._replace(warps=4) for tile in tiles)
        if kernel == "weight_gradient":
            tiles = tuple(tile._replace(m=min(tile.m, 32)) for tile in tiles)
    return tuple(tile._replace(k=16) for tile in tiles) if products == "fp32" else tiles


def tiles_for(kernel: str, family: str, dtypes: str, aligned: bool = True) -> tuple[Tile, ...]:
    """The tiles a kernel is shipped with, for a target family and a layer's dtypes; largest first."""
    products = products_of(dtypes)
    if kernel == "few_rows":
        if not aligned:
            few = Tile(FEW_ROWS, 16, 64 if products == "16-bit" else 32, 4, 3)
            return (few._replace(warps=2) if family == "gfx942" else few,)
        return (Tile(FEW_ROWS, 32, 128, 4, 3) if products == "16-bit" else Tile(FEW_ROWS, 16, 64, 4, 3),)
    if not aligned:
        return _unaligned(kernel, family, products)
    tiles = TILES[family][products]
    if kernel in _LARGEST.get(family, {}) and products == "16-bit" and "/" not in dtypes:
        tiles = (_LARGEST[family][kernel], *tiles)
    if kernel in ("linear", "linear_dx") and products in _NARROW.get(family, {}):
        tiles = (*tiles, _NARROW[family][products])
    if kernel in WEIGHT_GRADIENTS:  # with four warps the epilogue of 128×128 results does not fit in registers
        tiles = tuple(t._replace(warps=8) if t.m * t.n > 64 * 128 else t for t in tiles)
    return tuple(_INSTEAD.get((kernel, family, products, tile), tile) for tile in tiles)


def gain_hides(family: str, tile: Tile, dtypes: str) -> bool:
    """Whether dx can multiply dy's tile by g/n in its loop at no cost; otherwise dy is scaled before.

    It can if tensor cores are fed from registers (sm_80), if the tensor cores wait for shared memory anyway (the
    128×128 tile of sm_90; the 128×256 tile would fall from 98% of their peak to 86%), and for float32, which NVIDIA's
    tensor cores do not compute.
    """
    busy = {"sm_80": True, "sm_90": dtypes in ("bf16", "tf32", "fp32"), "sm_100": dtypes == "fp32", "gfx942": False}
    return tile.m * tile.n == 128 * 128 and busy[family]


def single_pass_pays(tile: Tile, family: str, dtypes: str) -> bool:
    """Whether summing squares is hidden: by the tensor cores in the largest tile, by the loads of v in small tiles.

    In between, the loop waits for shared memory, from which it reads v's tile twice. So does the 128×128 tile of sm_80
    if v is float32 under 16-bit activations. The 128×256 tile of sm_90 has no registers for the squares.
    """
    if dtypes == "fp32" and family != "gfx942":  # one more multiply-add among those of the products
        return tile.m >= 64 or family != "sm_100"
    waits = family == "sm_80" and "/" in dtypes
    return tile.m <= 32 or (tile.m * tile.n == 128 * 128 and not waits)


# By target family, then by what is multiplied; largest first.
# sm_80 multiplies from registers, so k stays short; wgmma and tcgen05 read shared memory and want k of 128 bytes.
# gfx942 has 64 kB of shared memory and wavefronts of 64.
TILES: dict[str, dict[str, tuple[Tile, ...]]] = {
    "sm_80": {
        "16-bit": (Tile(128, 128, 32, 4, 3), Tile(64, 128, 32, 4, 4), Tile(64, 64, 64, 4, 4), Tile(16, 64, 64, 4, 5)),
        "tf32": (Tile(128, 128, 32, 8, 3), Tile(64, 64, 32, 4, 4), Tile(16, 64, 32, 4, 5)),
        "fp32": (Tile(128, 128, 16, 8, 3), Tile(64, 64, 16, 4, 3), Tile(16, 64, 32, 1, 5)),
    },
    "sm_90": {
        "16-bit": (Tile(128, 128, 64, 8, 3), Tile(64, 128, 64, 4, 4), Tile(64, 64, 64, 4, 4), Tile(16, 64, 64, 4, 5)),
        "tf32": (Tile(128, 128, 32, 8, 3), Tile(64, 64, 32, 4, 4), Tile(16, 64, 32, 4, 5)),
        "fp32": (Tile(128, 128, 16, 8, 3), Tile(64, 64, 16, 4, 3), Tile(16, 64, 32, 1, 5)),
    },
    "sm_100": {
        "16-bit": (Tile(128, 128, 64, 8, 3), Tile(64, 128, 64, 4, 4), Tile(64, 64, 64, 4, 4), Tile(16, 64, 64, 4, 5)),
        "tf32": (Tile(128, 128, 32, 8, 3), Tile(64, 64, 32, 4, 4), Tile(16, 64, 32, 4, 5)),
        "fp32": (Tile(128, 128, 16, 8, 3), Tile(64, 64, 16, 4, 3), Tile(16, 64, 32, 1, 5)),
    },
    "gfx942": {
        "16-bit": (Tile(128, 128, 32, 4, 2), Tile(64, 64, 64, 4, 2), Tile(16, 64, 64, 4, 2)),
        "tf32": (Tile(128, 64, 32, 4, 2), Tile(64, 64, 32, 4, 2), Tile(16, 64, 32, 4, 2)),
        "fp32": (Tile(128, 64, 32, 4, 2), Tile(64, 64, 32, 4, 2), Tile(16, 64, 32, 4, 2)),
    },
}


def shipped_tiles(
    kernels: Sequence[str] = KERNELS, families: Iterable[str] = TILES, kinds: Sequence[str] = ("16-bit", "tf32", "fp32")
) -> set[Tile]:
    cases = itertools.product(kernels, families, kinds, (True, False))
    return {tile for case in cases for tile in tiles_for(*case)}
