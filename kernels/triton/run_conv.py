"""Launches of the convolution kernels: forward and backward of plain and transposed layers, from tensors and a plan."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from wnfused.kernels.triton import conv, depthwise, run_vendor, tune
from wnfused.kernels.triton.dtypes import convolution_dtypes, precision
from wnfused.kernels.triton.launch import launch
from wnfused.kernels.triton.rules import Plan, Problem, cdiv
from wnfused.kernels.triton.run_finish import Gradients, added, finish_rows, new_scales
from wnfused.kernels.triton.run_linear import supported
from wnfused.kernels.triton.run_rows import Dim, in_memory_order, index64, normalized, project, row_norms
from wnfused.kernels.triton.tiles import with_mask

Triple = tuple[int, int, int]


class Walk(NamedTuple):
    """A layer's geometry in three dimensions, with the groups."""

    stride: Triple
    padding: Triple
    dilation: Triple
    kernel: Triple
    groups: int


def _triple(values: list[int], fill: int) -> Triple:
    return (*(fill,) * (3 - len(values)), *values)  # type: ignore[return-value]


def walk_of(v: Tensor, stride: list[int], padding: list[int], dilation: list[int], groups: int) -> Walk:
    return Walk(_triple(stride, 1), _triple(padding, 0), _triple(dilation, 1), _triple(list(v.shape[2:]), 1), groups)


def sizes_of(t: Tensor) -> Triple:
    return _triple(list(t.shape[2:]), 1)


def strides_of(t: Tensor) -> tuple[int, ...]:
    """(batch, channel, depth, height, width)."""
    return (t.stride(0), t.stride(1), *_triple(list(t.stride()[2:]), 0))


def channels_last(t: Tensor) -> torch.memory_format | None:
    """The channels-last format t is in, if it is not contiguous."""
    format = {4: torch.channels_last, 5: torch.channels_last_3d}.get(t.ndim)
    return format if format and t.is_contiguous(memory_format=format) and not t.is_contiguous() else None


def is_depthwise(v: Tensor, x: Tensor, groups: int) -> bool:
    return groups > 1 and groups == v.shape[0] == x.shape[1] and v.shape[1] == 1


def place_of_gain(kernel: str, source: Tensor, v: Tensor, dim: Dim) -> str | None:
    """Where g/n enters gather or scatter; None where w has to be written (a norm per tap, or float16's small range)."""
    if dim is not None and dim > 1:
        return None
    narrow, mixed = source.dtype == torch.float16, v.dtype == torch.float32
    on_result = dim is None or (dim == 0) == (kernel == "gather")
    if narrow and (mixed or not on_result):
        first_dim = dim in (0, None)  # the kernels can scale v's tile along its first dimension
        return "weight" if first_dim else None
    return "output" if on_result else "input"


class _Gain(NamedTuple):
    place: str
    weight: Tensor  # v, or w where it has to be written
    g: Tensor
    norms: Tensor | None  # None where g holds g/n
    step: int
    group: int


def _gain(
    kernel: str, source: Tensor, v: Tensor, g: Tensor, norms: Tensor, scales: Tensor | None, dim: Dim, groups: int
) -> _Gain:
    place = place_of_gain(kernel, source, v, dim)
    weight = v if place else normalized(v, g, norms, dim, source.dtype)
    group, step = v.shape[0] // groups if dim == 0 else 0, 0 if dim is None else 1
    if scales is not None:
        return _Gain(place or "none", weight, scales, None, step, group)
    return _Gain(place or "none", weight, g.contiguous(), norms, step, group)


def _channels_innermost(*tensors: Tensor) -> bool:
    return all(t.stride(1) == 1 or t.shape[1] == 1 for t in tensors)


def _alignment(images: tuple[Tensor, Tensor], v: Tensor, walk: Walk) -> dict[str, bool]:
    """Of a problem. Rows of 16 bytes need channels innermost, in numbers that triton's launcher knows as multiples."""
    last = _channels_innermost(*images)
    sizes = (v.shape[0] // walk.groups, v.shape[1], *(t.data_ptr() for t in (v, *images)))
    aligned = last and v.stride(1) == 1 and all(size % 16 == 0 for size in sizes) and not index64(v, *images)
    return {"channels_last": last, "aligned": aligned}


def gather_problem(source: Tensor, out: Tensor, v: Tensor, walk: Walk) -> Problem:
    pixels, taps = out.shape[0] * math.prod(sizes_of(out)), math.prod(walk.kernel)
    dtypes, n = convolution_dtypes(source, v), v.shape[0] // walk.groups
    alignment = _alignment((source, out), v, walk)
    return Problem("gather", pixels, n, v.shape[1] * taps, dtypes, walk.groups, **alignment)


def scatter_problem(source: Tensor, out: Tensor, v: Tensor, walk: Walk) -> Problem:
    pixels = out.shape[0] * math.prod(cdiv(o, s) for o, s in zip(sizes_of(out), walk.stride, strict=True))
    taps = math.prod(cdiv(k, s) for k, s in zip(walk.kernel, walk.stride, strict=True))
    c, repeats = v.shape[0] // walk.groups, walk.groups * math.prod(walk.stride)
    dtypes, alignment = convolution_dtypes(source, v), _alignment((source, out), v, walk)
    return Problem("scatter", pixels, v.shape[1], c * taps, dtypes, repeats, **alignment)


def weight_problem(near: Tensor, far: Tensor, v: Tensor, walk: Walk) -> Problem:
    pixels, n = near.shape[0] * math.prod(sizes_of(near)), v.shape[0] // walk.groups
    dtypes, alignment = convolution_dtypes(near, v), _alignment((near, far), v, walk)
    return Problem("weight_gradient", n, v.shape[1], pixels, dtypes, walk.groups * math.prod(walk.kernel), **alignment)


def _blocks(plan: Plan) -> dict[str, int]:
    tile = plan.tile
    blocks = {"BLOCK_M": tile.m, "BLOCK_N": tile.n, "BLOCK_K": tile.k}
    return {**blocks, "warps": tile.warps, "stages": tile.stages}


def _kernel_sizes(walk: Walk) -> dict[str, int]:
    return dict(zip(("K2", "K1", "K0"), walk.kernel, strict=True))


def gather(
    source: Tensor, mask: Tensor | None, v: Tensor, g: Tensor, norms: Tensor, bias: Tensor | None, out: Tensor,
    walk: Walk, dim: Dim, relu: bool, plan: Plan, scales: Tensor | None = None,
) -> None:  # fmt: skip
    groups = walk.groups
    batch, sizes, out_sizes = source.shape[0], sizes_of(source), sizes_of(out)
    geometry = (*walk.stride, *walk.padding, *walk.dilation)
    pixels = batch * math.prod(out_sizes)
    if is_depthwise(v, source, groups):
        weight, place, gains, step = _depthwise_gain(v, g, norms, dim, source)
        launch(
            depthwise.depthwise_gather, (cdiv(pixels, 64) * cdiv(groups, 32),),
            source, mask, weight, gains, norms, bias, out, batch, groups, *sizes, *out_sizes, *geometry,
            *strides_of(source), weight.stride(0), *strides_of(weight)[2:], *strides_of(out), step,
            **_kernel_sizes(walk), GAIN=place, RELU=relu, INDEX64=index64(source, out), BLOCK_P=64, BLOCK_C=32,
        )  # fmt: skip
        return
    n, c = v.shape[0] // groups, v.shape[1]
    gain = _gain("gather", source, v, g, norms, scales, dim, groups)
    launch(
        conv.gather, (cdiv(pixels, plan.tile.m) * cdiv(n, plan.tile.n), groups),
        source, mask, gain.weight, gain.g, gain.norms, bias, out, batch, c, n, *sizes, *out_sizes, *geometry,
        *strides_of(source), *strides_of(gain.weight), *strides_of(out), gain.step, gain.group,
        **_kernel_sizes(walk), GAIN=gain.place, RELU=relu, EVEN=c % plan.tile.k == 0,
        PRECISION=precision(convolution_dtypes(source, v)), INDEX64=index64(source, out, gain.weight),
        GROUP=8, **_blocks(plan),
    )  # fmt: skip


def _depthwise_gain(v: Tensor, g: Tensor, norms: Tensor, dim: Dim, like: Tensor) -> tuple[Tensor, str, Tensor, int]:
    if dim is not None and dim > 1:
        return normalized(v, g, norms, dim, like.dtype), "none", g, 0
    return v, "output", g.contiguous(), 1 if dim == 0 else 0


def _modular(stride: Triple, dilation: Triple) -> tuple[int, ...]:
    """gcd(dilation, stride) of each dimension, then the inverses that taps_of_phase needs."""
    divisors = [math.gcd(d, s) for d, s in zip(dilation, stride, strict=True)]
    steps = [s // d for s, d in zip(stride, divisors, strict=True)]
    inverses = [pow(d // q, -1, t) if t > 1 else 0 for d, q, t in zip(dilation, divisors, steps, strict=True)]
    return (*divisors, *inverses)


def scatter(
    source: Tensor, mask: Tensor | None, v: Tensor, g: Tensor, norms: Tensor, bias: Tensor | None, out: Tensor,
    walk: Walk, dim: Dim, relu: bool, plan: Plan, scales: Tensor | None = None,
) -> None:  # fmt: skip
    groups = walk.groups
    batch, sizes, out_sizes = source.shape[0], sizes_of(source), sizes_of(out)
    geometry = (*walk.stride, *walk.padding, *walk.dilation, *_modular(walk.stride, walk.dilation))
    phases = math.prod(walk.stride)
    pixels = batch * math.prod(cdiv(o, s) for o, s in zip(out_sizes, walk.stride, strict=True))
    if is_depthwise(v, source, groups):
        weight, place, gains, step = _depthwise_gain(v, g, norms, dim, source)
        launch(
            depthwise.depthwise_scatter, (cdiv(pixels, 64) * cdiv(groups, 32), phases),
            source, mask, weight, gains, norms, bias, out, batch, groups, *sizes, *out_sizes, *geometry,
            *strides_of(source), weight.stride(0), *strides_of(weight)[2:], *strides_of(out), step,
            **_kernel_sizes(walk), GAIN=place, RELU=relu, INDEX64=index64(source, out), BLOCK_P=64, BLOCK_C=32,
        )  # fmt: skip
        return
    c, n = v.shape[0] // groups, v.shape[1]
    gain = _gain("scatter", source, v, g, norms, scales, dim, groups)
    launch(
        conv.scatter, (cdiv(pixels, plan.tile.m) * cdiv(n, plan.tile.n), groups * phases),
        source, mask, gain.weight, gain.g, gain.norms, bias, out, batch, c, n, *sizes, *out_sizes, *geometry,
        *strides_of(source), *strides_of(gain.weight), *strides_of(out), gain.step, gain.group,
        **_kernel_sizes(walk), GAIN=gain.place, RELU=relu, EVEN=c % plan.tile.k == 0,
        PRECISION=precision(convolution_dtypes(source, v)), INDEX64=index64(source, out, gain.weight),
        GROUP=8, **_blocks(plan),
    )  # fmt: skip


_GRID_LIMIT = 65535  # of programs along a grid's second axis


def _takes(x: Tensor, v: Tensor, out: Tensor, geometry: tuple) -> bool:
    """Whether the kernels support these tensors; otherwise the vendor path is used."""
    stride, *_, groups = geometry
    empty = x.numel() == 0 or v.numel() == 0 or out.numel() == 0
    pixels = max(t.shape[0] * math.prod(sizes_of(t)) for t in (x, out))  # counted in 32 bits
    fits = groups * max(math.prod(stride), 32) <= _GRID_LIMIT and pixels < 2**31 - 2**16
    return supported(x, v) and not empty and fits


def forward(
    x: Tensor, v: Tensor, g: Tensor, bias: Tensor | None, geometry: tuple, dim: Dim, eps: float, relu: bool,
    norms: Tensor | None = None, plan: Plan | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """geometry is aten's: stride, padding, dilation, transposed, output_padding, groups."""
    stride, padding, dilation, transposed, _, groups = geometry
    y = empty_output(x, v, geometry)
    if not _takes(x, v, y, geometry):
        return run_vendor.convolution(x, v, g, bias, geometry, dim, eps, relu, norms)
    walk = walk_of(v, stride, padding, dilation, groups)
    plan = plan or tune.plan((scatter_problem if transposed else gather_problem)(x, y, v, walk), x.device)
    if plan.mode == "vendor":
        return run_vendor.convolution(x, v, g, bias, geometry, dim, eps, relu, norms)
    norms = row_norms(v, g, dim, eps) if norms is None else norms
    bias = None if bias is None else bias.contiguous()
    (scatter if transposed else gather)(x, None, v, g, norms, bias, y, walk, dim, relu, plan)
    return y, norms


def empty_output(x: Tensor, v: Tensor, geometry: tuple) -> Tensor:
    stride, padding, dilation, transposed, output_padding, groups = geometry
    shape = [x.shape[0], v.shape[1] * groups if transposed else v.shape[0]]
    for i, (size, k) in enumerate(zip(x.shape[2:], v.shape[2:], strict=True)):
        reach = dilation[i] * (k - 1) + 1
        if transposed:
            shape.append((size - 1) * stride[i] - 2 * padding[i] + reach + output_padding[i])
        else:
            shape.append((size + 2 * padding[i] - reach) // stride[i] + 1)
    format = output_format(x, v, geometry)
    if x.ndim == 3 and format == torch.channels_last:  # a signal is an image one row high
        _, channels, length = shape
        return x.new_empty_strided(shape, (channels * length, 1, channels))
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=format)


def output_format(x: Tensor, v: Tensor, geometry: tuple) -> torch.memory_format:
    """The memory order of torch's own convolution on this device: a compiled graph is laid out by it."""
    if x.is_contiguous() and v.is_contiguous():
        return torch.contiguous_format
    w = v if v.dtype == x.dtype else torch.empty_like(v, dtype=x.dtype)
    stride, padding, dilation, transposed, output_padding, groups = geometry
    backend = torch._C._select_conv_backend(
        x, w, None, stride, padding, dilation, transposed, output_padding, groups, None
    )
    if x.ndim == 3:
        x, w = x.new_empty(x.shape).unsqueeze(2), w.unsqueeze(2)
    return torch._C._conv_determine_backend_memory_format(x, w, backend)


def backward(
    dy: Tensor, x: Tensor, v: Tensor, g: Tensor, norms: Tensor, y: Tensor | None, geometry: tuple, dim: Dim,
    mask: list[bool], plans: tuple[Plan, Plan] | None = None,
) -> Gradients:  # fmt: skip
    stride, padding, dilation, transposed, _, groups = geometry
    if not _takes(x, v, dy, geometry):
        return run_vendor.convolution_backward(dy, x, v, g, norms, y, geometry, dim, mask)
    dy = dy.to(x.dtype)
    format = channels_last(y if y is not None else dy) or torch.contiguous_format
    dy = dy.contiguous(memory_format=format)  # one layout for dy and y, whose pixels are evenly spaced
    y = None if y is None else y.contiguous(memory_format=format)
    walk = walk_of(v, stride, padding, dilation, groups)
    plans = plans or backward_plans(dy, x, v, walk, transposed)
    return run_vendor.side_by_side(
        mask, plans,
        vendor=lambda asked: run_vendor.convolution_backward(dy, x, v, g, norms, y, geometry, dim, asked),
        kernels=lambda asked: _by_kernels(dy, x, v, g, norms, y, walk, transposed, dim, asked, *plans),
    )  # fmt: skip


def _by_kernels(
    dy: Tensor, x: Tensor, v: Tensor, g: Tensor, norms: Tensor, y: Tensor | None, walk: Walk, transposed: bool,
    dim: Dim, mask: list[bool], dx_plan: Plan, dw_plan: Plan,
) -> Gradients:  # fmt: skip
    dx = dv = dg = db = scales = None
    if mask[1] or mask[2]:
        near, far = ((x, None), (dy, y)) if transposed else ((dy, y), (x, None))
        scales = new_scales(norms, mask, dim)
        dv, dg, db = _weight_gradient(near, far, v, g, norms, walk, dim, mask, transposed, scales, dw_plan)
    elif mask[3]:
        db = run_vendor.bias_gradient(dy, y)
    if mask[0]:
        dx = torch.empty_like(x)
        (gather if transposed else scatter)(dy, y, v, g, norms, None, dx, walk, dim, False, dx_plan, scales)
    return dx, dv, dg, db


def backward_plans(dy: Tensor, x: Tensor, v: Tensor, walk: Walk, transposed: bool) -> tuple[Plan, Plan]:
    near, far = (x, dy) if transposed else (dy, x)
    dx = (gather_problem if transposed else scatter_problem)(dy, x, v, walk)
    return tune.plan(dx, x.device), tune.plan(weight_problem(near, far, v, walk), x.device)


def _weight_gradient(
    near: tuple[Tensor, Tensor | None], far: tuple[Tensor, Tensor | None], v_any: Tensor, g: Tensor, norms: Tensor,
    walk: Walk, dim: Dim, mask: list[bool], transposed: bool, scales: Tensor | None, plan: Plan,
) -> Gradients:  # fmt: skip
    v, groups, taps = in_memory_order(v_any, dim), walk.groups, math.prod(walk.kernel)
    n, c = v.shape[0] // groups, v.shape[1]
    pixels = near[0].shape[0] * math.prod(sizes_of(near[0]))
    alone = is_depthwise(v, near[0], groups)
    # finish_weight supports only a norm per row; a depthwise gradient is always in float32 parts.
    splits = min(cdiv(pixels, 4096), 1024) if alone else plan.splits
    splits = splits if dim == 0 else 1
    block = 64 if alone else plan.tile.k
    per_split = cdiv(cdiv(pixels, splits), block) * block
    splits = cdiv(pixels, per_split)
    shared = splits > 1 or (alone and dim == 0)
    dw = torch.empty((splits, v.numel()), dtype=torch.float32 if shared or alone else v.dtype, device=v.device)
    (a, mask_a), (b, mask_b) = near, far
    sums = norms.new_empty((splits, (b if transposed else a).shape[1])) if mask[3] else None
    sizes = (*sizes_of(b), *sizes_of(a), *walk.stride, *walk.padding, *walk.dilation, *strides_of(a), *strides_of(b))
    if alone:
        launch(
            depthwise.depthwise_weight_gradient, (cdiv(groups, 32) * taps, splits),
            a, b, mask_a, mask_b, dw, sums, a.shape[0], groups, *sizes, v.stride(0), *strides_of(v)[2:],
            v.numel(), per_split,
            **_kernel_sizes(walk), SUM_FAR=transposed, INDEX64=index64(a, b, dw), BLOCK_P=64, BLOCK_C=32,
        )  # fmt: skip
        dots, columns = None, 0
    else:
        tile = plan.tile if mask_a is None and mask_b is None else with_mask(plan.tile)
        columns = taps * cdiv(c, tile.n)
        dots = norms.new_empty((columns, v.shape[0])) if dim == 0 and not shared else None
        launch(
            conv.weight_gradient, (cdiv(n, tile.m) * columns, groups * splits),
            a, b, mask_a, mask_b, v, norms, dw, dots, sums, a.shape[0], c, n, *sizes, *strides_of(v),
            v.numel(), v.shape[0], per_split, splits,
            **_kernel_sizes(walk), SUM_FAR=transposed, PRECISION=precision(convolution_dtypes(a, v)),
            INDEX64=index64(a, b, dw), BLOCK_M=tile.m, BLOCK_N=tile.n, BLOCK_K=tile.k,
            warps=tile.warps, stages=tile.stages,
        )  # fmt: skip
    if dim == 0:
        dg = torch.empty(g.shape, dtype=g.dtype, device=g.device) if mask[2] else None
        return finish_rows(dw, v, g.contiguous(), norms, dots, dg, scales, sums, mask[1], columns)
    whole = dw[0].as_strided(v.shape, v.stride())
    return *project(whole, v, g, norms, dim, mask[1], mask[2]), added(sums)
