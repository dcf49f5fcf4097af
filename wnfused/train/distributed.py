"""The processes of a run: one, or those that torchrun started (DDP or FSDP2; gloo on CPUs, NCCL on GPUs)."""

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
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from wnfused.models.residual import Block
from wnfused.train.result import RunError

T = TypeVar("T")


@dataclass(frozen=True)
class World:
    rank: int
    size: int
    device: torch.device
    control: Any = None  # a gloo group: exchanges decisions and sums between CPUs, without waiting for a GPU

    @property
    def is_rank_0(self) -> bool:
        """Whether this is the process that writes files and shows progress."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """The elementwise sum over all ranks; ``values`` is on the CPU."""
        if self.size > 1:
            dist.all_reduce(values, group=self.control)
        return values

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """For each flag whether it is set on any rank, so that all ranks make the same decision."""
        if self.size == 1:
            return flags
        raised = torch.tensor(flags, dtype=torch.uint8)
        dist.all_reduce(raised, dist.ReduceOp.MAX, group=self.control)
        return tuple(bool(flag) for flag in raised.tolist())

    def on_rank_0(self, work: Callable[[], T]) -> T:
        """Call ``work`` on rank 0 only; every rank returns its result, or raises its RunError."""
        if self.size == 1:
            return work()
        answer: list[Any] = [None, None]
        if self.is_rank_0:
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
        """Give all ranks the batch norm statistics of rank 0, which are also saved: each rank has seen other images."""
        if self.size > 1:
            for buffer in model.buffers():
                dist.broadcast(buffer, src=0)

    def distribute(self, model: nn.Module, sharding: str) -> nn.Module:
        """The module to call in training. With "fsdp" ``model`` itself is sharded in place."""
        if self.size == 1:
            return model
        for tensor in [*model.parameters(), *model.buffers()]:
            dist.broadcast(tensor.detach(), src=0)
        if sharding == "fsdp":
            return _shard(model, self)
        ids = [self.device] if self.device.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=ids, gradient_as_bucket_view=True)


def _shard(model: nn.Module, world: World) -> nn.Module:
    """Shard block by block, so that only one block at a time is gathered."""
    mesh = init_device_mesh(world.device.type, (world.size,))
    for module in model.modules():
        if isinstance(module, Block):
            fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def accumulating(runner: nn.Module, last: bool) -> AbstractContextManager[Any]:
    """A context for one part of a batch: gradients are exchanged after the last part only."""
    if isinstance(runner, DistributedDataParallel):
        return nullcontext() if last else runner.no_sync()
    if isinstance(runner, FSDPModule):
        runner.set_requires_gradient_sync(last)
    return nullcontext()


def reshard(model: nn.Module) -> None:
    """Free the gathered weights that FSDP keeps after a forward without a backward."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a DTensor, without a copy; a plain tensor itself."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """The whole tensor, on the CPU. All ranks must call it, in the same order."""
    tensor = tensor.detach()
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).cpu()


def whole_like(part: Tensor, like: Tensor) -> Tensor:
    """The whole of a tensor whose local parts are laid out as those of ``like``, on the CPU."""
    if not isinstance(like, DTensor):
        return whole(part)
    joined = DTensor.from_local(part, like.device_mesh, like.placements, shape=like.shape, stride=like.stride())
    return whole(joined)


def part_like(tensor: Tensor, like: Tensor) -> Tensor:
    """A whole tensor, sharded and placed as ``like`` is."""
    tensor = tensor.to(device=like.device, dtype=like.dtype)
    return distribute_tensor(tensor, like.device_mesh, like.placements) if isinstance(like, DTensor) else tensor


@contextmanager
def joined(device: str) -> Iterator[World]:
    """The world of this process. A process group that is created here is also destroyed here."""
    started_by_torchrun = int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ
    if not dist.is_available() or not (dist.is_initialized() or started_by_torchrun):
        yield World(0, 1, _device(device, 0))
        return
    place = _device(device, int(os.environ.get("LOCAL_RANK", "0")))
    if place.type == "cuda":
        torch.cuda.set_device(place)
    create = not dist.is_initialized()
    if create:
        _create_process_group("nccl" if place.type == "cuda" else "gloo")
    try:
        size = dist.get_world_size()
        control = dist.new_group(backend="gloo") if size > 1 and dist.get_backend() != "gloo" else None
        yield World(dist.get_rank(), size, place, control)
    finally:
        gc.collect()  # a DDP module that outlives its group, ours or the caller's, sometimes hangs or aborts when freed
        if create:
            dist.destroy_process_group()


def _create_process_group(backend: str) -> None:
    """``init_process_group(backend)`` that also works after torchrun has restarted the workers.

    On one machine the agent's store outlives the workers (torch 2.13), so gloo would connect to the ports of the dead
    ones. Each attempt therefore has its own prefix in the store.
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
            raise RunError(f"device: {name!r} does not exist; torch sees {torch.cuda.device_count()} GPUs")
        device = torch.device("cuda", index)
    return device
