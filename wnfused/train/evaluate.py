"""Loss and accuracy on held-out images."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import wnfused
from wnfused.data import Loader
from wnfused.train.distributed import World, reshard


def evaluate(
    model: nn.Module,
    loader: Loader,
    world: World,
    autocast: Callable[[], AbstractContextManager[Any]],
    *,
    sharded: bool = False,
    between: Callable[[], None] = lambda: None,
) -> tuple[float, float]:
    """(mean loss, share of right answers) over all images and processes; ``between`` is called between batches."""
    world.share_buffers(model)
    was_training = model.training
    model.eval()
    # Each process holds rows of the weights in turns under FSDP: there is nothing to keep folded.
    keep = nullcontext() if sharded else wnfused.frozen(model)
    loss = torch.zeros((), device=world.device, dtype=torch.float32)
    correct = torch.zeros((), device=world.device, dtype=torch.int64)
    try:
        with torch.no_grad(), keep:
            for images, labels in loader.epoch(0):
                with autocast():
                    logits = model(images)
                loss += F.cross_entropy(logits.float(), labels, reduction="sum")
                correct += (logits.argmax(1) == labels).sum()
                between()
    finally:
        if sharded:
            reshard(model)
        model.train(was_training)
    total_loss, total_correct = world.sum(torch.stack([loss.double(), correct.double()]).cpu()).tolist()
    count = sum(loader.global_size(batch) for batch in range(len(loader)))
    return total_loss / count, total_correct / count
