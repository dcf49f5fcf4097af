"""The state of a run between two steps, as plain tensors and numbers: any number of processes can take it up."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import SGD

from wnfused.train.metrics import Meter
from wnfused.train.sharded import local, part_like, whole

if TYPE_CHECKING:
    from wnfused.train.loop import Trainer

State = dict[str, Any]


def capture(run: Trainer) -> State:
    """All that a checkpoint holds. Every process has to ask; the schedule follows from the step."""
    return {
        "config": run.config.as_dict(),
        "model": model_state(run.model),
        "optimizer": optimizer_state(run.model, run.optimizer),
        "ema": run.ema.state() if run.ema is not None else None,
        "scaler": run.scaler.state_dict(),
        "position": {"epoch": run.epoch, "batch": run.batch, "step": run.step, "seconds": run.seconds},
        "meter": run.meter.state(),
        "history": run.history,
        "best": run.best,
        "random": random_state(),
    }


def restore(run: Trainer, saved: State) -> None:
    """Take up everything but the model's weights, which are in place before the processes share them out."""
    load_optimizer(run.model, run.optimizer, saved["optimizer"])
    if run.ema is not None:
        run.ema.load(saved["ema"])
    if run.scaler.is_enabled():
        run.scaler.load_state_dict(saved["scaler"])
    position = saved["position"]
    run.epoch, run.batch, run.step = position["epoch"], position["batch"], position["step"]
    run.seconds, run.history, run.best = position["seconds"], saved["history"], saved["best"]
    run.meter = Meter(**saved["meter"])
    load_random(saved["random"])


def model_state(model: nn.Module) -> dict[str, Tensor]:
    return {name: whole(tensor) for name, tensor in model.state_dict().items()}


def load_model(model: nn.Module, state: dict[str, Tensor]) -> None:
    """In place, also where the processes hold parts."""
    own = model.state_dict()
    with torch.no_grad():
        for name, tensor in own.items():
            local(tensor).copy_(local(part_like(state[name], tensor)))


def optimizer_state(model: nn.Module, optimizer: SGD) -> dict[str, Tensor]:
    """Momentum by the parameter's name; the learning rate follows from the step."""
    state = {name: optimizer.state[parameter] for name, parameter in model.named_parameters()}
    return {
        name: whole(entry["momentum_buffer"])
        for name, entry in state.items()
        if entry.get("momentum_buffer") is not None
    }


def load_optimizer(model: nn.Module, optimizer: SGD, state: dict[str, Tensor]) -> None:
    for name, parameter in model.named_parameters():
        if name in state:
            optimizer.state[parameter]["momentum_buffer"] = part_like(state[name], parameter).clone()


def random_state() -> State:
    """Nothing in the loop draws from these; a network of the user's might (dropout)."""
    version, words, gauss = random.getstate()
    return {
        "python": [version, torch.tensor(words), gauss],  # 625 numbers by themselves are slow to write
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def load_random(state: State) -> None:
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words.tolist()), gauss))
    torch.set_rng_state(state["torch"])
    if torch.cuda.is_available() and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])
