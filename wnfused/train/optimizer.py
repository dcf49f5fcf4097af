"""SGD as the paper uses it: weight decay on gains, directions and biases alike, or on the weights only."""

from typing import Any

from torch import nn
from torch.optim import SGD

from wnfused.train.config import Config


def sgd(model: nn.Module, config: Config) -> SGD:
    decayed: list[nn.Parameter] = []
    spared: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        (decayed if config.decay_all or is_weight(name, parameter) else spared).append(parameter)
    groups: list[dict[str, Any]] = [{"params": decayed}, {"params": spared, "weight_decay": 0.0}]
    return SGD(
        [group for group in groups if group["params"]],
        lr=config.lr,
        momentum=config.momentum,
        nesterov=config.nesterov,
        weight_decay=config.weight_decay,
        foreach=True,  # a few launches for all parameters, not a few for each
    )


def is_weight(name: str, parameter: nn.Parameter) -> bool:
    """Whether it is a weight or a direction, and not a gain, a bias or batch norm's scale or shift."""
    gain = name.endswith(("weight_g", "parametrizations.weight.original0"))
    return parameter.ndim > 1 and not gain
