"""The implementations compared: the plain layer, both weight-norm APIs of torch, and wnfused."""

import copy
import warnings
from collections.abc import Callable

import torch
from torch import nn

import wnfused

PEERS = ("plain", "torch hook", "torch parametrized", "wnfused")


def with_weight_norm(plain: nn.Module, peer: str) -> nn.Module:
    """A copy of ``plain`` whose Linear and Conv layers are weight-normalized by ``peer``."""
    model = copy.deepcopy(plain)
    if peer == "plain":
        return model
    if peer == "wnfused":
        wnfused.apply(model)
        return model
    normalize = nn.utils.weight_norm if peer == "torch hook" else nn.utils.parametrizations.weight_norm
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # the hook API is deprecated, but most models still use it
        for layer in list(model.modules()):
            if isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d | nn.ConvTranspose1d):
                normalize(layer)
    return model


def training_step(model: nn.Module, x: torch.Tensor) -> Callable[[], None]:
    """Forward and backward with gradients for the input and all parameters, as inside a network."""
    x = x.detach().requires_grad_()
    dy = torch.randn_like(model(x))
    leaves = [x, *model.parameters()]

    def step() -> None:
        for leaf in leaves:
            leaf.grad = None
        model(x).backward(dy)

    return step


def whole_step(model: nn.Module, x: torch.Tensor) -> Callable[[], None]:
    """A classifier's training step: forward, cross entropy, backward and SGD with momentum."""
    targets = torch.arange(len(x)) % model(x).shape[1]
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9)  # too small to change the weights noticeably

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), targets).backward()
        optimizer.step()

    return step


def inference(model: nn.Module, x: torch.Tensor) -> Callable[[], None]:
    def step() -> None:
        with torch.no_grad():
            model(x)

    return step
