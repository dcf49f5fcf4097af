"""All shipped builds of the kernels: tiles, dtypes and modes of each target, and the plain kernel to compare with.

A build has a kernel, the types of its pointers, sample sizes and its constants. Triton specialises on the sizes as in a
launch: 1 becomes a constant, and multiples of 16 are marked. Nothing here needs triton.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from wnfused.kernels.triton.tiles import (
    MOST_REGISTERS,
    NORM_TILES,
    TILES,
    Tile,
    gain_hides,
    single_pass_pays,
    tiles_for,
    with_mask,
)

TARGETS = tuple(TILES)
Constant = int | bool | str | None
Values = tuple[tuple[str, Constant], ...]


class Dtypes(NamedTuple):
    activations: str
    weights: str
    rounded: bool = False  # float32 with products rounded to tf32

    def __str__(self) -> str:
        """As dtypes.py names them."""
        if self.rounded:
            return "tf32"
        return self.activations if self.activations == self.weights else f"{self.activations}/{self.weights}"

    @property
    def element(self) -> int:
        return int(self.activations.strip("bfp")) // 8

    @property
    def statistics(self) -> str:
        return "fp64" if self.weights == "fp64" else "fp32"


BF16, FP16, FP32 = Dtypes("bf16", "bf16"), Dtypes("fp16", "fp16"), Dtypes("fp32", "fp32")
TF32 = Dtypes("fp32", "fp32", rounded=True)
FP64 = Dtypes("fp64", "fp64")  # the vendor computes the matrix products
BF16_MIXED, FP16_MIXED = Dtypes("bf16", "fp32"), Dtypes("fp16", "fp32")
DTYPES = (BF16, FP16, TF32, FP32, BF16_MIXED, FP16_MIXED)


@dataclass(frozen=True)
class Build:
    kernel: str
    module: str  # of wnfused.kernels.triton
    target: str
    dtypes: Dtypes
    mode: str
    tile: Tile | None  # None for kernels without a matrix product
    sizes: Values
    constants: Values  # including pointers that are None
    plain: "Build | None" = None  # the same kernel without the normalization
    pointers: Values = ()  # element types that do not follow from the names
    aligned: bool = True  # sizes and layout allow 16-byte loads of rows

    @property
    def registers(self) -> int | None:
        """The register limit of a thread, if the launch sets one."""
        return None if self.target.startswith("gfx") else MOST_REGISTERS

    @property
    def config(self) -> str:
        return self.mode if self.tile is None else f"{self.mode} {self.tile}"

    @property
    def warps(self) -> int:
        return self.tile.warps if self.tile else 4

    @property
    def stages(self) -> int:
        return self.tile.stages if self.tile else 3

    def __str__(self) -> str:
        return f"{self.kernel} {self.config} {self.dtypes} {self.target}"


MATMUL_KERNELS = {
    "linear_forward": "linear",
    "linear_input_gradient": "linear_backward",
    "linear_weight_gradient": "linear_backward",
    "few_rows_weight_gradient": "few_rows",
    "gather": "conv",
    "scatter": "conv",
    "weight_gradient": "conv",
}
OTHER_KERNELS = {
    "finish_linear": "linear",
    "depthwise_gather": "depthwise",
    "depthwise_scatter": "depthwise",
    "depthwise_weight_gradient": "depthwise",
    "partial_norms": "rows",
    "combine_norms": "rows",
    "write_normalized": "rows",
    "partial_dots": "rows",
    "project": "rows",
    "prepare_gradient": "prepare",
    "finish_weight": "finish",
    "scale_channels": "affine",
    "write_model_weights": "model_weights",
    "project_model_weights": "model_weights",
}
_FLOAT64_MODULES = ("rows", "affine", "model_weights")
KERNELS = {**MATMUL_KERNELS, **OTHER_KERNELS}

# A 3×3 convolution of 256 channels, padding 1, on 56×56 images in channels-last memory.
_WALK = {
    "batch": 32, "C": 256, "N": 256, "D2": 1, "D1": 56, "D0": 56, "O2": 1, "O1": 56, "O0": 56,
    "stride2": 1, "stride1": 1, "stride0": 1, "padding2": 0, "padding1": 1, "padding0": 1,
    "dilation2": 1, "dilation1": 1, "dilation0": 1, "divisor2": 1, "divisor1": 1, "divisor0": 1,
    "inverse2": 0, "inverse1": 0, "inverse0": 0, "gain_step": 1, "gain_group": 256,
}  # fmt: skip
_STRIDES = {"batch": 56 * 56 * 256, "channel": 1, "2": 0, "1": 56 * 256, "0": 256}
_SIZES = {
    **_WALK,
    **{f"{t}_{name}" if len(name) > 1 else f"{t}{name}": step for t in "sonf" for name, step in _STRIDES.items()},
    "v_first": 9 * 256, "v_second": 1, "v2": 0, "v1": 3 * 256, "v0": 256,
    "elements": 9 * 256 * 256, "rows": 256, "pixels_per_split": 4096, "splits": 1,
}  # fmt: skip
_CONTIGUOUS = {
    **{f"{t}_channel": 56 * 56 for t in "sonf"}, **{f"{t}1": 56 for t in "sonf"}, **{f"{t}0": 1 for t in "sonf"},
    "v_second": 9, "v1": 3, "v0": 1,
}  # fmt: skip
_LINEAR_SIZES = {
    **dict.fromkeys(("M", "N", "K", "x_stride", "v_stride", "y_stride", "dy_stride", "dx_stride"), 4096),
    "gain_step": 1, "k_per_split": 1024, "m_per_split": 1024, "rows_per_part": 1024, "splits": 4,
}  # fmt: skip
_ROW_SIZES = {
    "rows": 4096, "inner": 4096, "length": 4096, "per_split": 4096, "splits": 4, "parts": 32, "sum_parts": 4,
}  # fmt: skip
_PIXEL_SIZES = {
    "elements": 4096 * 4096, "channels": 4096, "batch": 4096, "pixels": 1, "gain_step": 1, "gain_period": 4096,
    **{f"{t}_{name}": size for t in ("dy", "t") for name, size in (("batch", 4096), ("channel", 1), ("pixel", 1))},
}  # fmt: skip
_BYTES = {"fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2}
_TABLES = {"programs": "i64", "weights": "i64", "addresses": "i64", "eps": "fp64"}


class Mode(NamedTuple):
    name: str
    constants: dict[str, Constant]
    has_twin: bool = True
    sizes: Values = ()
    pointers: Values = ()


def builds(targets: tuple[str, ...] = TARGETS, kernels: tuple[str, ...] = tuple(KERNELS)) -> Iterator[Build]:
    for target in targets:
        for kernel in kernels:
            yield from (_matmuls if kernel in MATMUL_KERNELS else _others)(kernel, target)


_RULE_NAMES = {
    "linear_forward": "linear",
    "linear_input_gradient": "linear_dx",
    "linear_weight_gradient": "linear_dw",
    "few_rows_weight_gradient": "few_rows",
}  # what the rule calls a kernel


def _matmuls(kernel: str, target: str) -> Iterator[Build]:
    for dtypes in DTYPES:
        name = _RULE_NAMES.get(kernel, kernel)
        for i, tile in enumerate(tiles_for(name, target, str(dtypes))):
            plain = None
            if kernel in PLAIN:
                plain = _matmul(kernel, target, dtypes, tile, Mode("plain", {}), None)
                yield plain
            for mode in _modes(kernel, target, dtypes, tile):
                yield _matmul(kernel, target, dtypes, tile, mode, plain if mode.has_twin else None)
            if i == 0 and kernel in ("linear_forward", "gather"):  # the largest: others have more room
                yield _with(kernel, target, dtypes, tile, "fused ReLU", {"RELU": True})
        for tile in tiles_for(name, target, str(dtypes), aligned=False):
            for mode in _modes(kernel, target, dtypes, tile):
                yield _unaligned(_matmul(kernel, target, dtypes, tile, mode, None))
            yield _with(kernel, target, dtypes, tile, "64-bit addresses", {"INDEX64": True})


def _with(kernel: str, target: str, dtypes: Dtypes, tile: Tile, what: str, constants: dict[str, Constant]) -> Build:
    first = _modes(kernel, target, dtypes, tile)[0]
    mode = Mode(f"{first.name}, {what}", {**first.constants, **constants}, False)
    return _matmul(kernel, target, dtypes, tile, mode, None)


def _unaligned(build: Build) -> Build:
    """A linear layer of odd sizes, a convolution of contiguous images by a contiguous weight."""
    sizes, constants = dict(build.sizes), dict(build.constants)
    if build.module == "conv":
        sizes |= _CONTIGUOUS
    else:
        sizes |= {name: 4095 for name, size in sizes.items() if size == 4096}
        constants |= {"EVEN": False, "LANES": 1}
    mode = f"{build.mode}, unaligned"
    return replace(build, mode=mode, sizes=_items(sizes), constants=_items(constants), aligned=False)


PLAIN: dict[str, dict[str, Constant]] = {
    "linear_forward": {"GAIN": "none", "SINGLE_PASS": False, "SPLIT": False, "partial": None, "squares_out": None},
    "linear_input_gradient": {"GAIN": "none", "y": None, "factor": None},
    "linear_weight_gradient": {
        "ONE_PASS": False, "SPLIT": False, "PREPARE": False,
        "dots": None, "y": None, "scaled": None, "factor": None, "sums": None,
    },
    "gather": {"GAIN": "none", "mask_source": None},
    "scatter": {"GAIN": "none", "mask_source": None, "bias": None},
    "weight_gradient": {"dots": None, "mask_near": None, "mask_far": None, "sums": None},
}  # fmt: skip
_FEW_ROWS: dict[str, Constant] = {"y": None}
_POINTER = "a pointer"  # replaces a constant None of PLAIN


def _modes(kernel: str, target: str, dtypes: Dtypes, tile: Tile) -> list[Mode]:
    """The modes for a norm per output, with g/n where the launches apply it. Variants have no plain twin."""
    if kernel == "linear_forward":
        return _forward_modes(target, dtypes, tile)
    if kernel == "linear_input_gradient":
        return _input_gradient_modes(target, dtypes, tile)
    if kernel == "linear_weight_gradient":
        return _weight_gradient_modes(dtypes, tile)
    narrow, mixed = dtypes.activations == "fp16", dtypes == FP16_MIXED
    masked: dict[str, Constant] = {"mask_source": _POINTER}
    if kernel == "few_rows_weight_gradient":
        return [Mode("few rows", {}, False), Mode("few rows, ReLU", {"y": _POINTER}, False)]
    if kernel == "gather":
        gain: dict[str, Constant] = {"GAIN": "weight" if mixed else "output"}
        return [Mode("norms first", gain), Mode("norms first, ReLU", {**gain, **masked}, False)]
    if kernel == "scatter":
        gain = {"GAIN": "weight" if narrow else "input", "norms": None}
        return [Mode("gain", gain), Mode("gain, ReLU", {**gain, **masked}, False)]
    two: dict[str, Constant] = {"dots": _POINTER, "sums": _POINTER}
    relu = [Mode("two steps, ReLU", {**two, "mask_near": _POINTER}, False)]
    split = Mode("split", {"sums": _POINTER}, False, (("splits", 4),), (("dw", "fp32"),))
    return [Mode("two steps", two), *(relu if tile == with_mask(tile) else []), split]


def _forward_modes(target: str, dtypes: Dtypes, tile: Tile) -> list[Mode]:
    output: dict[str, Constant] = {"GAIN": "output"}
    split: dict[str, Constant] = {"SPLIT": True, "partial": _POINTER}
    if dtypes == FP16_MIXED:
        return [Mode("norms first", {"GAIN": "weight"}), Mode("norms first, split", {"GAIN": "weight", **split}, False)]
    modes = [Mode("norms first", output), Mode("norms first, split", {**output, **split}, False)]
    if dtypes.activations != "fp16":
        modes.append(Mode("gain per input", {"GAIN": "input"}, False))
    if single_pass_pays(tile, target, str(dtypes)):
        single: dict[str, Constant] = {**output, "SINGLE_PASS": True}
        modes += [
            Mode("single pass", single),
            Mode("single pass, split", {**single, **split, "squares_out": _POINTER}, False),
        ]
    return modes


def _input_gradient_modes(target: str, dtypes: Dtypes, tile: Tile) -> list[Mode]:
    """g/n in registers if that is hidden, else a dy scaled before (the plain loop) or, in float16, guarded."""
    narrow = dtypes.activations == "fp16"
    modes = []
    if gain_hides(target, tile, str(dtypes)):  # the weight gradient's kernels have left g/n where g is read
        modes.append(Mode("gain", {"GAIN": "weight" if narrow else "output", "norms": None}))
    if not narrow:
        return [*modes, Mode("scaled first", {})]
    return [*modes, Mode("guarded", {"GAIN": "guarded", "factor": _POINTER})]


def _weight_gradient_modes(dtypes: Dtypes, tile: Tile) -> list[Mode]:
    prepare: dict[str, Constant] = {"PREPARE": True, "scaled": _POINTER, "sums": _POINTER}
    if dtypes.activations == "fp16":
        prepare["factor"] = _POINTER
    two: dict[str, Constant] = {**prepare, "dots": _POINTER}
    modes = [
        Mode("two steps", two),
        *([Mode("two steps, ReLU", {**two, "y": _POINTER}, False)] if tile == with_mask(tile) else []),
        Mode("split", {**prepare, "SPLIT": True}, False, pointers=(("dw", "fp32"),)),
    ]
    if dtypes.activations != "fp16":
        modes.append(Mode("one pass", {"ONE_PASS": True, "dots": _POINTER}))
    return modes


def _matmul(kernel: str, target: str, dtypes: Dtypes, tile: Tile, mode: Mode, plain: Build | None) -> Build:
    module = MATMUL_KERNELS[kernel]
    constants: dict[str, Constant] = {
        "EVEN": True, "RELU": False, "GROUP": 8, "INDEX64": False, "PRECISION": _precision(target, dtypes),
        "MIXED": dtypes.activations != dtypes.weights, "SUM_FAR": False, "BLOCK_P": 64, "BLOCK_C": 32,
        "LANES": 128 // int(dtypes.weights.strip("bfp")),
        **({"K2": 1, "K1": 3, "K0": 3} if module == "conv" else {}),
        **PLAIN.get(kernel, _FEW_ROWS), **mode.constants,
        "BLOCK_M": tile.m, "BLOCK_N": tile.n, "BLOCK_K": tile.k,
    }  # fmt: skip
    constants = {name: value for name, value in constants.items() if value != _POINTER}
    sizes = {**(_SIZES if module == "conv" else _LINEAR_SIZES), **dict(mode.sizes)}
    if kernel == "few_rows_weight_gradient":
        sizes["M"] = 8
    names, values = _items(sizes), _items(constants)
    return Build(kernel, module, target, dtypes, mode.name, tile, names, values, plain, mode.pointers)


def _precision(target: str, dtypes: Dtypes) -> str:
    """As dtypes.precision does."""
    return ("xf32" if target.startswith("gfx") else "tf32") if dtypes.rounded else "ieee"


_ACROSS = Mode("rows side by side", {"OUTER_IS_ONE": False, "BLOCK_R": 64, "BLOCK_E": 32})
_WHOLE_ROWS: dict[str, Constant] = {"scales": None, "squares": None}
_RELU: dict[str, Constant] = {"mask_source": _POINTER, "mask_near": _POINTER, "mask_far": _POINTER}
_MASTERS = "16-bit weights of float32 masters"
_OTHER_MODES = {
    "finish_linear": (Mode("single pass", {}), Mode("norms first", {"SINGLE_PASS": False, "squares": None})),
    "partial_norms": (
        Mode("whole rows", {**_WHOLE_ROWS, "g": None, "w": None}),
        Mode("whole rows, weight", _WHOLE_ROWS),
        Mode("split rows", {"norms": None, "g": None, "w": None}),
        _ACROSS._replace(constants={**_ACROSS.constants, **_WHOLE_ROWS}),
    ),
    **dict.fromkeys(("write_normalized", "partial_dots"), (Mode("rows along memory", {}), _ACROSS)),
    "project": (
        Mode("rows along memory", {}),
        Mode("whole rows", {"dots": None}),
        _ACROSS._replace(constants={**_ACROSS.constants, "dots": None}),
    ),
    "finish_weight": (
        Mode("in place", {}),
        Mode("from splits", {"FROM_SPLITS": True, "dots": None, "scales": None}, pointers=(("dw", "fp32"),)),
    ),
    "prepare_gradient": (
        Mode("two steps", {"dots": None, "dg": None}),
        Mode("one pass", {"sums": None}),
        Mode("guarded", {"dots": None, "dg": None, "factor": _POINTER, "MIXED": True}),
    ),
    **dict.fromkeys(
        ("write_model_weights", "project_model_weights"),
        (Mode("", {}), Mode(_MASTERS, {"W": "bf16", "LANES": 8})),
    ),
    **dict.fromkeys(
        ("depthwise_gather", "depthwise_scatter", "depthwise_weight_gradient"), (Mode("", {}), Mode("ReLU", _RELU))
    ),
}


def _others(kernel: str, target: str) -> Iterator[Build]:
    for dtypes in (BF16, FP16, FP32, *((FP64,) if OTHER_KERNELS[kernel] in _FLOAT64_MODULES else ())):
        for mode in _OTHER_MODES.get(kernel, (Mode("", {}),)):
            if dtypes == {"guarded": FP16, _MASTERS: FP32}.get(mode.name, dtypes):
                yield _other(kernel, target, dtypes, mode)


def _other(kernel: str, target: str, dtypes: Dtypes, mode: Mode) -> Build:
    constants: dict[str, Constant] = {
        "GAIN": "output", "SINGLE_PASS": True, "RELU": True, "INDEX64": False, "OUTER_IS_ONE": True,
        "STATISTICS": dtypes.statistics, "K2": 1, "K1": 3, "K0": 3, "FROM_SPLITS": False, "SUM_FAR": False,
        **NORM_TILES, **dict.fromkeys("VGW", dtypes.weights), "LANES": 16 // _BYTES[dtypes.weights], "MIXED": False,
        "BLOCK_R": 128 if kernel == "combine_norms" else 1, "BLOCK_E": 2048,
        **({"BLOCK_M": 16, "BLOCK_N": 64} if kernel == "finish_linear" else {}),
        "BLOCK_P": 64, "BLOCK_C": {"scale_channels": 64, "finish_weight": 128}.get(kernel, 32),
        **({"factor": None} if kernel == "prepare_gradient" else {}),
    }  # fmt: skip
    if kernel.startswith("depthwise"):
        constants.update(mask_source=None, mask_near=None, mask_far=None)
        sizes = _SIZES
    else:
        sizes = {**_LINEAR_SIZES, **_ROW_SIZES, **_PIXEL_SIZES}
    constants = {name: value for name, value in {**constants, **mode.constants}.items() if value != _POINTER}
    pointers = _items(_TABLES) if OTHER_KERNELS[kernel] == "model_weights" else mode.pointers
    module, name = OTHER_KERNELS[kernel], mode.name or "as shipped"
    return Build(kernel, module, target, dtypes, name, None, _items(sizes), _items(constants), pointers=pointers)


def _items(values: dict) -> Values:
    return tuple(values.items())
