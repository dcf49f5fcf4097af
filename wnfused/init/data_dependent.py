"""Data-dependent initialization (Salimans & Kingma, 2016): each layer is set by what one batch gives in it.

The forward pass itself visits the layers in the order in which they run, so a hook before each layer's first call sees
an input that all earlier layers, and the other branches of a sum, have already been set for.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from wnfused.init.directions import check_distribution, check_generator, draw
from wnfused.init.layers import Layer, Values, layers_of, listed, write
from wnfused.model_io import arguments, does_not_run, tensors_in
from wnfused.nn.base import WeightNormalized, gain_of
from wnfused.ops.backends import BackendUnavailable

WHERE = "data_dependent_"


class BadBatch(ValueError):
    """The batch does not determine the layers' gains; the message says why."""


def data_dependent_(
    model: nn.Module,
    batch: Any,
    *,
    distribution: str = "orthogonal",
    generator: torch.Generator | None = None,
) -> None:
    """Draw every direction, then set gain and bias so that ``batch`` gives zero mean and unit variance per channel.

    That holds for what each weight-normalized layer gives before its non-linearity, over batch and space (biased
    variance). ``batch`` is the model's input: a tensor, a tuple of positional or a dict of keyword arguments. A layer
    without a bias gets the unit variance only. A layer that runs several times is set at its first call. Where ``dim``
    gives outputs no gain of their own, v takes up what g cannot. The model runs once, in the mode it is in; its
    buffers (running statistics) are put back afterwards.
    """
    layers = layers_of(WHERE, model)
    check_distribution(WHERE, distribution)
    check_generator(WHERE, generator)
    args, kwargs = arguments(batch)
    _check_batch(list(tensors_in((args, kwargs))))
    seen: set[str] = set()

    def set_before_first_call(layer: Layer) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if layer.name not in seen:
                seen.add(layer.name)
                _set(layer, args, kwargs, distribution, generator)

        return hook

    with torch.no_grad(), _restored(model, layers), ExitStack() as hooks:
        for layer in layers:
            hooks.enter_context(layer.module.register_forward_pre_hook(set_before_first_call(layer), with_kwargs=True))
        try:
            model(*args, **kwargs)
        except (BadBatch, BackendUnavailable):
            raise
        except Exception as error:
            raise ValueError(f"{WHERE}: {does_not_run('batch', batch, error)}") from error
        if missed := [layer.name for layer in layers if layer.name not in seen]:
            raise ValueError(f"{WHERE}: model: the forward pass of the batch does not reach {listed(missed)}")


def _set(
    layer: Layer, args: tuple[Any, ...], kwargs: dict[str, Any], distribution: str, generator: torch.Generator | None
) -> None:
    v = draw(layer, distribution, generator).to(layer.v.device)
    unit = layer.to_matrices(v)
    unit = unit / unit.norm(dim=-1, keepdim=True)  # [groups, rows, columns], rows of norm 1
    write([(layer, Values(*_gain_and_direction(layer, unit, v)))])
    mean, std = _statistics(layer, _preactivation(layer, args, kwargs))
    scaled = unit / std.to(unit.dtype).reshape(*unit.shape[:2], 1)
    write([(layer, Values(*_gain_and_direction(layer, scaled, v), bias=-mean / std))])


def _gain_and_direction(layer: Layer, rows: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """A gain and a direction of v's size that make ``rows`` the layer's weight."""
    weight = layer.from_matrices(rows)
    if not layer.gain_per_output:
        v = weight * (v.norm() / weight.norm())
    return gain_of(weight, layer.dim, layer.eps), v


def _preactivation(layer: Layer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """[outputs, everything else]: what the layer gives for this input, without a fused activation."""
    module = layer.module
    if isinstance(module, WeightNormalized):
        activation, module.activation = module.activation, None
        try:
            y = module.forward(*args, **kwargs)
        finally:
            module.activation = activation
    else:
        y = module.forward(*args, **kwargs)
    channel = -1 - (layer.v.ndim - 2) if isinstance(module, _ConvNd) else -1
    return y.movedim(channel, 0).flatten(1).to(torch.promote_types(y.dtype, torch.float32))


def _statistics(layer: Layer, y: Tensor) -> tuple[Tensor, Tensor]:
    if y.shape[1] == 0 or not torch.isfinite(y).all():
        what = "nothing" if y.shape[1] == 0 else "NaN or infinity"
        raise BadBatch(f"{WHERE}: batch: layer {layer.name!r} gives {what} for it")
    variance, mean = torch.var_mean(y, dim=1, correction=0)
    std = variance.sqrt()
    # Rounding alone gives a constant channel a spread of about eps.
    constant = std <= 2 * torch.finfo(layer.v.dtype).eps * y.abs().max()
    if constant.any():
        channels = constant.nonzero().flatten().tolist()
        more = f" (and {len(channels) - 1} more)" if len(channels) > 1 else ""
        raise BadBatch(
            f"{WHERE}: batch: layer {layer.name!r}: channel {channels[0]}{more} is constant over the batch, so no gain "
            "gives it unit variance"
        )
    return mean, std


def _check_batch(tensors: list[Tensor]) -> None:
    if not tensors:
        raise TypeError(f"{WHERE}: batch: expected a tensor, or a tuple or dict of them, got none")
    if tensors[0].ndim < 2 or tensors[0].shape[0] < 2:
        shape = tuple(tensors[0].shape)
        raise BadBatch(f"{WHERE}: batch: expected at least 2 samples along dimension 0, got shape {shape}")
    for x in tensors:
        if x.is_floating_point() and not torch.isfinite(x).all():
            raise BadBatch(f"{WHERE}: batch: expected finite numbers, got NaN or infinity")


@contextmanager
def _restored(model: nn.Module, layers: list[Layer]) -> Iterator[None]:
    """Put the buffers back in the end, and after an error the layers' parameters as well."""
    buffers = [
        (module, name, buffer, buffer.clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    kept = [(layer, Values(layer.g.clone(), layer.v.clone(), _clone(layer.bias))) for layer in layers]
    weights = [(layer.module, layer.module.__dict__.get("weight")) for layer in layers]  # what torch's hook has set
    try:
        yield
    except BaseException:
        write(kept)
        for module, weight in weights:
            if weight is not None:
                module.weight = weight
        raise
    finally:
        for module, name, buffer, value in buffers:
            module._buffers[name] = buffer.copy_(value)


def _clone(bias: nn.Parameter | None) -> Tensor | float:
    return 0.0 if bias is None else bias.clone()
