"""Tensors of which each process may hold a part (FSDP's DTensors) and plain ones, by the same four functions."""

from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor


def local(tensor: Tensor) -> Tensor:
    """This process's part, in the very same memory."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """All of it, on the CPU. Every process has to ask, in the same order."""
    tensor = tensor.detach()
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).cpu()


def whole_like(part: Tensor, like: Tensor) -> Tensor:
    """All of what ``part`` is this process's part of, laid out as ``like``."""
    if not isinstance(like, DTensor):
        return whole(part)
    joined = DTensor.from_local(part, like.device_mesh, like.placements, shape=like.shape, stride=like.stride())
    return whole(joined)


def part_like(tensor: Tensor, like: Tensor) -> Tensor:
    """Of a whole tensor what this process holds, laid out and placed as ``like``."""
    tensor = tensor.to(device=like.device, dtype=like.dtype)
    return distribute_tensor(tensor, like.device_mesh, like.placements) if isinstance(like, DTensor) else tensor
