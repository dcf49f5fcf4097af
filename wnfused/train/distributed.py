"""The processes of a run: one alone, or those that torchrun started (DDP or FSDP2; gloo on CPUs, NCCL on GPUs)."""

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from wnfused.models.residual import Block
from wnfused.train.errors import RunError

T = TypeVar("T")


@dataclass(frozen=True)
class World:
    rank: int
    size: int
    device: torch.device
    control: Any = None  # a gloo group: decisions and sums are exchanged between CPUs, without waiting for a GPU

    @property
    def first(self) -> bool:
        """Whether this process writes and talks."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """Element by element over all processes; ``values`` is on the CPU."""
        if self.size > 1:
            dist.all_reduce(values, group=self.control)
        return values

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """For each flag whether some process raised it, so that all decide alike."""
        if self.size == 1:
            return flags
        raised = torch.tensor(flags, dtype=torch.uint8)
        dist.all_reduce(raised, dist.ReduceOp.MAX, group=self.control)
        return tuple(bool(flag) for flag in raised.tolist())

    def from_first(self, work: Callable[[], T]) -> T:
        """Do it in the first process; all get what it returns, and all raise where it refuses."""
        if self.size == 1:
            return work()
        answer: list[Any] = [None, None]
        if self.first:
            try:
                answer[0] = work()
            except RunError as error:
                answer[1] = (type(error), str(error))
        dist.broadcast_object_list(answer, src=0, group=self.control)
        if answer[1] is not None:
            kind, message = answer[1]
            raise kind(message)
        return answer[0]

    def share_buffers(self, model: nn.Module) -> None:
        """Each process has seen other images: all take the first one's batch norm statistics, which are also saved."""
        if self.size > 1:
            for buffer in model.buffers():
                dist.broadcast(buffer, src=0)

    def spread(self, model: nn.Module, sharding: str) -> nn.Module:
        """The module to call in training. With fsdp ``model`` itself becomes sharded, in place."""
        if self.size == 1:
            return model
        for tensor in [*model.parameters(), *model.buffers()]:
            dist.broadcast(tensor.detach(), src=0)
        if sharding == "fsdp":
            return _shard(model, self)
        ids = [self.device] if self.device.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=ids, gradient_as_bucket_view=True)


def _shard(model: nn.Module, world: World) -> nn.Module:
    """Block by block, so that only one block at a time is whole."""
    mesh = init_device_mesh(world.device.type, (world.size,))
    for module in model.modules():
        if isinstance(module, Block):
            fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def accumulating(runner: nn.Module, last: bool) -> AbstractContextManager[Any]:
    """Processes exchange gradients after the last part of a batch only."""
    if isinstance(runner, DistributedDataParallel):
        return nullcontext() if last else runner.no_sync()
    if isinstance(runner, FSDPModule):
        runner.set_requires_gradient_sync(last)
    return nullcontext()


def reshard(model: nn.Module) -> None:
    """After a forward without backward FSDP still holds whole weights: let go of them, so that the parts are seen."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


@contextmanager
def joined(device: str) -> Iterator[World]:
    """The world this process belongs to, left again in the end if it was entered here."""
    started_by_torchrun = int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ
    if not dist.is_available() or not (dist.is_initialized() or started_by_torchrun):
        yield World(0, 1, _device(device, 0))
        return
    place = _device(device, int(os.environ.get("LOCAL_RANK", "0")))
    if place.type == "cuda":
        torch.cuda.set_device(place)
    enter = not dist.is_initialized()
    if enter:
        _enter("nccl" if place.type == "cuda" else "gloo")
    try:
        size = dist.get_world_size()
        control = dist.new_group(backend="gloo") if size > 1 and dist.get_backend() != "gloo" else None
        yield World(dist.get_rank(), size, place, control)
    finally:
        if enter:
            gc.collect()  # a DDP module that outlives its group hangs, now and then, when it goes
            dist.destroy_process_group()


def _enter(backend: str) -> None:
    """As ``init_process_group(backend)``, but a restart by torchrun does not find its dead predecessor's addresses.

    On one machine the agent's store outlives the workers (torch 2.13), and gloo would connect to ports that nobody
    listens to any more.
    """
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT")
    if attempt is None or os.environ.get("GROUP_WORLD_SIZE") != "1":
        dist.init_process_group(backend)
        return
    store, rank, size = next(rendezvous("env://"))
    own = dist.PrefixStore(f"wnfused/attempt_{attempt}", store)  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=own, rank=rank, world_size=size)


def _device(name: str, local_rank: int) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise RunError(f"device: expected auto, cpu, cuda or cuda:N, got {name!r}") from None
    if device.type not in ("cpu", "cuda"):
        raise RunError(f"device: expected auto, cpu, cuda or cuda:N, got {name!r}")
    if device.type == "cuda":
        index = local_rank if device.index is None else device.index
        if index >= torch.cuda.device_count():
            raise RunError(f"device: {name}: torch sees {torch.cuda.device_count()} GPUs here")
        device = torch.device("cuda", index)
    return device
