"""The implementations compared: the plain layer, both weight-norm APIs of torch, and wnfused."""

import copy
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

import wnfused

PEERS = ("plain", "torch hook", "torch parametrized", "wnfused")
LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def with_weight_norm(plain: nn.Module, peer: str, dim: int | None = 0) -> nn.Module:
    """A copy of ``plain`` whose Linear and Conv layers are weight-normalized by ``peer``."""
    model = copy.deepcopy(plain)
    if peer == "plain":
        return model
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # the hook API is deprecated, but most models still use it
        normalize = nn.utils.weight_norm if peer == "torch hook" else nn.utils.parametrizations.weight_norm
        for layer in list(model.modules()):
            if isinstance(layer, LAYERS):
                normalize(layer, dim=dim)
    if peer == "wnfused":
        holder = nn.Sequential(model)  # convert replaces layers inside a model, and the model may be a layer
        wnfused.convert(holder)
        return holder[0]
    return model


def training_step(model: nn.Module, x: Tensor) -> Callable[[], None]:
    """Forward and backward with gradients for the input and all parameters, as inside a network."""
    x = x.detach().requires_grad_()
    dy = torch.randn_like(model(x))
    leaves = [x, *model.parameters()]

    def step() -> None:
        for leaf in leaves:
            leaf.grad = None
        model(x).backward(dy)

    return step


def whole_step(model: nn.Module, x: Tensor) -> Callable[[], None]:
    """A classifier's training step: forward, cross entropy, backward and SGD with momentum."""
    targets = torch.arange(len(x)) % model(x).shape[1]
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9)  # too small to change the weights noticeably

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), targets).backward()
        optimizer.step()

    return step


def eikonal_step(model: nn.Module, x: Tensor) -> Callable[[], None]:
    """A step of a signed distance function: the loss holds the gradient's norm, so the backward is differentiated."""
    x = x.detach().requires_grad_()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)

    def step() -> None:
        optimizer.zero_grad()
        distance = model(x)
        (slope,) = torch.autograd.grad(distance.sum(), x, create_graph=True)
        torch.autograd.backward(
            distance.abs().mean() + (slope.norm(dim=1) - 1).square().mean(), inputs=list(model.parameters())
        )
        optimizer.step()

    return step


def inference(model: nn.Module, x: Tensor) -> Callable[[], None]:
    def step() -> None:
        with torch.no_grad():
            model(x)

    return step


class Disagreement(RuntimeError):
    """An implementation gives another result than the others, so its speed means nothing."""


def verify(models: dict[str, nn.Module], x: Tensor, *, gradients: bool = True) -> None:
    """Compare every peer's output and input gradient with the plain one's; raises ``Disagreement``.

    Gradients of deep networks with ReLUs are not compared: one sign that rounding flips changes them visibly.
    """

    def results(model: nn.Module) -> list[Tensor]:
        leaf = x.detach().requires_grad_()
        y = model(leaf)
        return [y.detach(), *(torch.autograd.grad(y.square().mean(), leaf) if gradients else ())]

    expected = results(models["plain"])
    for peer, model in models.items():
        for what, ours, theirs in zip(("output", "gradient"), results(model), expected, strict=False):
            difference = (ours - theirs).abs().max() / theirs.abs().max().clamp_min(1e-30)
            if not difference < 1e-3:
                raise Disagreement(
                    f"{peer}: its {what} differs from the plain layer's by {difference:.1e} of the maximum"
                )
