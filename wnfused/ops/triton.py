"""The ``triton`` backend's place in the registry: nothing of triton is imported before it is asked for."""

from typing import Any

import torch

from wnfused.kernels.triton import support


def why_not(device: torch.device) -> str | None:
    return support.why_not(device)


def volunteers(device: torch.device) -> bool:
    """Under "auto" it serves GPUs; its interpreter on CPU tensors is for tests, and has to be asked for."""
    return device.type == "cuda"


def operators() -> Any:
    from wnfused.ops import triton_backend

    return triton_backend
