"""The factor by which padding with zeros shrinks the signal of a convolution, from its geometry and the map's size.

A random convolution acts linearly on the expected energy of its input per position, e_i = E[Σ_c h_c,i²]. With the
gains of ``robust_`` the energy after the activation is A e, where A[o, i] is the number of taps through which output o
reads input i, divided by the number of taps. The energy of gradients is multiplied by Aᵀ. If every tap reads an input,
the row sums r of A are 1 and the energy per position is kept. Otherwise output o keeps the share r_o < 1.

A is a Kronecker product of one matrix per axis, so the factors of the axes multiply. Along an axis the energy has the
factor

    f = Σ_o r_o u_o / Σ_o u_o,    A Aᵀ u = σ² u with the largest σ,

the mean of r weighted by the dominant mode u, the shape that energy takes in a deep stack. For a symmetric A (stride 1,
output of the input's size) f = σ, the largest eigenvalue. If no tap reads zeros, f is exactly 1 at any stride. The
norm's factor is √f. A transposed convolution is the adjoint of a convolution and has the same factor.
docs/initialization.md has the derivation.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.parameter import is_lazy

from wnfused import checks
from wnfused.init.graph import uncompiled
from wnfused.init.layers import Layer, listed
from wnfused.model_io import arguments, does_not_run, tensors_in
from wnfused.ops.backends import BackendUnavailable
from wnfused.unchanged import unchanged

PADDINGS = ("ignored", "aware")
LONGEST = 128  # outputs along an axis for which the mode is calculated; longer maps lose almost nothing
EQUAL = 1 - 1e-10  # eigenvalues this close are one mode: maps that a dilation takes apart have equal parts

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Sizes = Sequence[int]


def padding_factor(layer: nn.Module, size: int | Sequence[int]) -> float:
    """What zero padding leaves of the norm in one convolution of a deep network, on a map of this ``size``.

    ``layer`` is a convolution or transposed convolution, weight-normalized or plain. ``size`` is the spatial size of
    its input, one number for all axes or one for each. The factor is 1.0 where the layer reads no zeros: without
    padding, and with padding modes that repeat the input.
    """
    if not isinstance(layer, _ConvNd):
        raise TypeError(f"padding_factor: layer: expected a convolution, got {type(layer).__name__}")
    sizes = checks.sizes("padding_factor", "size", size, len(layer.kernel_size), least=1)
    outputs = _output_sizes(layer, sizes)
    if min(outputs) < 1:
        raise ValueError(f"padding_factor: size: {size} leaves no output position; pass a size the layer can read")
    return _factor(layer, sizes, outputs)


def check_padding(where: str, padding: Any, example_input: Any) -> None:
    if padding not in PADDINGS:
        raise ValueError(f"{where}: padding: expected one of {', '.join(map(repr, PADDINGS))}, got {padding!r}")
    if padding == "aware" and example_input is None:
        raise ValueError(
            f"{where}: example_input: expected an input of the model, which gives the map sizes that padding='aware' "
            "needs, got None"
        )


def padding_factors(
    where: str, model: nn.Module, example_input: Any, layers: Sequence[Layer], padding: str
) -> dict[str, float]:
    """What to divide each layer's gain by: 1 for all with ``padding="ignored"``.

    "aware" runs the model once on ``example_input``, in eval mode, and leaves it as it was. A layer that reads maps of
    several sizes gets the geometric mean of their factors.
    """
    check_padding(where, padding, example_input)
    factors = {layer.name: 1.0 for layer in layers}
    padded = {layer.name: layer.module for layer in layers if padding == "aware" and _reads_zeros(layer.module)}
    if not padded:
        return factors
    maps = _map_sizes(where, model, example_input, padded)
    if missed := [name for name in padded if not maps[name]]:
        raise ValueError(
            f"{where}: padding: {listed(missed)}: not called when the model runs on example_input in eval mode, so the "
            "map size is unknown; pass an example_input that reaches the layer, or padding='ignored'"
        )
    for name, module in padded.items():
        logs = [math.log(_factor(module, *sizes)) for sizes in maps[name]]
        factors[name] = math.exp(sum(logs) / len(logs))
    return factors


def _reads_zeros(module: nn.Module) -> bool:
    """Whether the layer pads with zeros; a transposed one cuts off as much of its output."""
    if not isinstance(module, _ConvNd) or module.padding_mode != "zeros" or module.padding == "valid":
        return False
    return module.padding == "same" or any(module.padding)


def _map_sizes(
    where: str, model: nn.Module, example_input: Any, layers: dict[str, Any]
) -> dict[str, list[tuple[Sizes, Sizes]]]:
    """The spatial sizes of input and output, in each call of each layer."""
    if lazy := [name for name, parameter in model.named_parameters() if is_lazy(parameter)]:
        raise ValueError(f"{where}: model: {lazy[0]} is not initialized yet; run the model once first")
    maps: dict[str, list[tuple[Sizes, Sizes]]] = {name: [] for name in layers}
    args, kwargs = arguments(example_input)
    with unchanged(model), torch.no_grad(), _watched(layers, maps), uncompiled():
        for module in model.modules():
            if not isinstance(module, torch.jit.ScriptModule):
                module.training = False
        try:
            model(*args, **kwargs)
        except BackendUnavailable:
            raise
        except Exception as error:
            raise ValueError(f"{where}: {does_not_run('example_input', example_input, error)}") from error
    return maps


@contextmanager
def _watched(layers: dict[str, Any], maps: dict[str, list[tuple[Sizes, Sizes]]]) -> Iterator[None]:
    def hook_for(name: str) -> Any:
        def hook(module: Any, args: Any, kwargs: Any, output: Any) -> None:
            axes = len(module.kernel_size)
            x = next(tensors_in((args, kwargs)))
            maps[name].append((tuple(x.shape[-axes:]), tuple(output.shape[-axes:])))

        return hook

    # Run before the user's hooks, which may replace the layer's output.
    handles = [
        module.register_forward_hook(hook_for(name), prepend=True, with_kwargs=True) for name, module in layers.items()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _output_sizes(layer: Any, sizes: Sizes) -> list[int]:
    axes = zip(sizes, layer.kernel_size, layer.stride, layer.dilation, strict=True)
    outputs = []
    for axis, (size, taps, stride, dilation) in enumerate(axes):
        reach = dilation * (taps - 1)
        if isinstance(layer, _ConvTransposeNd):
            around = reach - 2 * layer.padding[axis] + layer.output_padding[axis]
            outputs.append((size - 1) * stride + 1 + around)
        else:
            same, valid = layer.padding == "same", layer.padding == "valid"
            around = reach if same else 0 if valid else 2 * layer.padding[axis]
            outputs.append((size + around - reach - 1) // stride + 1)
    return outputs


def _factor(layer: Any, sizes: Sizes, outputs: Sizes) -> float:
    """The factor of the norm: the square root of the axes' product."""
    if not _reads_zeros(layer):
        return 1.0
    if isinstance(layer, _ConvTransposeNd):
        sizes, outputs = outputs, sizes
    energy = 1.0
    axes = zip(sizes, outputs, layer.kernel_size, layer.stride, layer.dilation, strict=True)
    for axis, (size, count, taps, stride, dilation) in enumerate(axes):
        # torch puts the odd one of "same" behind the map.
        before = dilation * (taps - 1) // 2 if layer.padding == "same" else layer.padding[axis]
        energy *= axis_factor(int(size), int(count), taps, stride, dilation, before)
    return math.sqrt(energy) or 1.0  # at 0 every tap of every output reads zeros, and no gain helps


@lru_cache(maxsize=1024)
def axis_factor(size: int, outputs: int, taps: int, stride: int, dilation: int, before: int) -> float:
    """f of one axis: output o reads the inputs o · stride - before + t · dilation, t < taps, that are in [0, size).

    Outputs that are ``dilation / gcd(stride, dilation)`` apart read separate sets of inputs, each ``dilation``
    apart: each such class of outputs is a convolution without dilation. The dominant mode is that of the class, or of
    the equal classes, with the largest σ.
    """
    common = math.gcd(stride, dilation)
    classes, step = dilation // common, stride // common
    kinds: Counter[tuple[int, int, int]] = Counter()
    for first in range(min(classes, outputs)):
        start = first * stride - before
        low, high = max(0, -(start // dilation)), (size - 1 - start) // dilation  # the lattice's first and last input
        kinds[(outputs - first - 1) // classes + 1, low, high] += 1
    modes = [(*_mode(*kind, taps, step), times) for kind, times in kinds.items()]
    largest = max(value for value, *_ in modes)
    if largest == 0:
        return 0.0
    dominant = [(kept * times, weight * times) for value, kept, weight, times in modes if value >= largest * EQUAL]
    kept, weight = map(sum, zip(*dominant, strict=True))
    return float(kept / weight)


def _mode(count: int, low: int, high: int, taps: int, step: int) -> tuple[float, float, float]:
    """σ², Σ r u and Σ u of ``count`` outputs, where output j reads j · step + t for t < taps, from low to high."""
    position = np.arange(count, dtype=np.int64) * step
    start, end = np.maximum(position, low), np.minimum(position + taps, high + 1)
    inside = end > start  # the mode is 0 where an output reads zeros alone
    start, end = start[inside], end[inside]
    if not len(start):
        return 0.0, 0.0, 1.0
    limit, length, rest = max(LONGEST, 8 * taps // step), len(start), 1.0
    if length > limit:
        # Join both borders without the middle. The loss is proportional to 1/length²: the mode is a half sine, so its
        # share at a border is. It would reach 0 about a sixth of the kernel beyond each border.
        beyond = taps / step / 3
        rest = ((limit + beyond) / (length + beyond)) ** 2
        half, cut = limit // 2, length - limit
        start, end = (np.concatenate([side[:half], side[half + cut :] - cut * step]) for side in (start, end))
    value, u = (_by_decomposition if len(start) <= LONGEST else _by_iteration)(start, end)
    weight = float(u.sum())
    lost = float((taps - end + start) @ u) / taps
    return value / taps**2, weight - rest * lost, weight


def _by_decomposition(start: Integers, end: Integers) -> tuple[float, Floats]:
    """σ² · taps² and the mode: the dominant eigenvalue of A Aᵀ, and the even map's component there."""
    shared = np.minimum(end[:, None], end) - np.maximum(start[:, None], start)  # inputs that two outputs read
    values, vectors = np.linalg.eigh(np.maximum(shared, 0).astype(np.float64))
    vectors = vectors[:, values >= values[-1] * EQUAL]
    return float(values[-1]), np.asarray(vectors @ vectors.sum(0))


def _by_iteration(start: Integers, end: Integers) -> tuple[float, Floats]:
    """The same for long kernels, where a decomposition is slow and power iteration converges fast."""
    u, value = np.ones(len(start)), 0.0
    for _ in range(300):
        spread = np.zeros(end.max() + 1)
        np.add.at(spread, start, u)
        np.subtract.at(spread, end, u)
        total = np.concatenate([[0.0], np.cumsum(np.cumsum(spread))])
        new = total[end] - total[start]
        value = float(np.linalg.norm(new) / np.linalg.norm(u))
        u = new / np.linalg.norm(new)
    return value, u
