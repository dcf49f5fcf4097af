"""The network of a Config, initialized: every process of a run builds the same one from the seed."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import wnfused
from wnfused import init, models
from wnfused.train.config import Config
from wnfused.train.errors import RunError

Shape = tuple[int, int, int]  # channels, height, width
FORMS = "resnetN[-basic|-bottleneck], wrn-N-k[-stem2], mlp-LAYERS-WIDTH or cnn-LAYERS[-CHANNELS]"


BASELINES: dict[str, Callable[..., None]] = {
    "he": init.he_,
    "torch_default": init.torch_default_,
    "norm_gain": init.norm_gain_,
    "norm_gain_he": partial(init.norm_gain_, directions="he"),
}


def network(config: Config, shape: Shape, classes: int, batch: Callable[[], Tensor]) -> nn.Module:
    """``batch()`` gives the first training batch, [B, C, H, W], for the initializations that look at data."""
    torch.manual_seed(config.seed)
    generator = torch.Generator().manual_seed(config.seed)
    folded = config.norm == "none" and config.init == "robust"
    model = architecture(config.model, "weight" if folded else config.norm, shape, classes)
    try:
        _initialize(model, config.init or "", shape, generator, batch)
    except ValueError as error:
        raise RunError(f"init {config.init!r} of {config.model}: {error}") from None
    if folded:
        wnfused.fold(model)
    if config.impl == "torch":
        wnfused.to_torch(model)
    return model


def bare(config: Config, shape: Shape, classes: int) -> nn.Module:
    """The same network, for weights that are there already."""
    model = architecture(config.model, config.norm, shape, classes)
    if config.impl == "torch":
        wnfused.to_torch(model)
    return model


def architecture(name: str, norm: str, shape: Shape, classes: int) -> nn.Module:
    channels, height, width = shape
    images: dict[str, Any] = {"classes": classes, "in_channels": channels, "norm": norm}
    pixels: dict[str, Any] = {"classes": classes, "inputs": channels * height * width, "norm": norm}
    known: dict[str, Callable[..., nn.Module]] = {
        r"resnet-?(\d+)": lambda depth: models.ResNet(depth, **images),
        r"resnet-?(\d+)-basic": lambda depth: models.ResNet(depth, bottleneck=False, **images),
        r"resnet-?(\d+)-bottleneck": lambda depth: models.ResNet(depth, bottleneck=True, **images),
        r"wrn-?(\d+)-(\d+)": lambda depth, k: models.WRN(depth, k, **images),
        r"wrn-?(\d+)-(\d+)-stem2": lambda depth, k: models.WRN(depth, k, stem_stride=2, **images),
        r"mlp-(\d+)-(\d+)": lambda depth, size: models.MLP(depth, size, **pixels),
        r"cnn-(\d+)": lambda n: models.CNN(n, **images),
        r"cnn-(\d+)-(\d+)": lambda n, size: models.CNN(n, channels=size, **images),
    }
    for form, make in known.items():
        if match := re.fullmatch(form, name):
            try:
                return make(*map(int, match.groups()))
            except ValueError as error:
                raise RunError(f"model {name!r}: {error}") from None
    raise RunError(f"model: unknown {name!r}, expected {FORMS}")


def _initialize(
    model: nn.Module, scheme: str, shape: Shape, generator: torch.Generator, batch: Callable[[], Tensor]
) -> None:
    example = torch.zeros(2, *shape)
    normalized = any(isinstance(module, wnfused.WNLinear | wnfused.WNConv2d) for module in model.modules())
    if scheme in ("robust", "robust_he"):
        distribution = "he" if scheme == "robust_he" else "orthogonal"
        init.robust_(model, example, distribution=distribution, generator=generator)
    elif scheme == "hanin":
        init.hanin_(model, example, generator=generator)
    elif scheme == "data_dependent":
        init.data_dependent_(model, batch(), generator=generator)
    elif normalized:
        BASELINES[scheme](model, generator=generator)
    elif scheme != "torch_default":  # which a new layer has
        _initialize_plain(model, scheme, generator)


def _initialize_plain(model: nn.Module, scheme: str, generator: torch.Generator) -> None:
    """He's normal weights, or orthogonal rows, in every layer but the last; biases 0."""
    layers = [module for module in model.modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    for layer in layers[:-1]:
        if scheme == "he":
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu", generator=generator)
        else:
            nn.init.orthogonal_(layer.weight, generator=generator)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
