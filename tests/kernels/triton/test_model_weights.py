"""All weights of a model in one Triton launch: the numbers, and the launches of whole networks before and after."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import wnfused
from tests.ops.test_model_weights import SHAPES, arguments, wide
from tests.support.reference import assert_close
from tests.support.triton_cases import DEVICE, ON_GPU
from wnfused.benchmarks.streaming import Generator
from wnfused.kernels.triton import model_weights
from wnfused.kernels.triton.launch import consumed_by
from wnfused.kernels.triton.run_rows import view_of
from wnfused.ops import reference
from wnfused.ops.backends import triton as triton_backend

DTYPES = [(torch.float32, torch.float32), (torch.float32, torch.bfloat16), (torch.bfloat16, torch.bfloat16)]


@pytest.mark.parametrize(("dtype", "compute"), [*DTYPES, (torch.float64, torch.float64)], ids=str)
def test_numbers_and_launches(dtype: torch.dtype, compute: torch.dtype) -> None:
    v, g, dims, eps = arguments(dtype, SHAPES[:-1])
    v, g = [t.to(DEVICE) for t in v], [t.to(DEVICE) for t in g]
    dw = [torch.randn_like(t, dtype=compute) for t in v]
    launched: list[str] = []
    with consumed_by(lambda record: (launched.append(record.name), record.run())):
        w, norms = triton_backend.model_weights(v, g, dims, eps, compute)
        every = [True] * len(v)
        dv, dg = triton_backend.model_weights_backward(dw, v, g, norms, dims, eps, every, every)
    assert launched == ["write_model_weights", "project_model_weights"]
    cpu = [[t.cpu() for t in ts] for ts in (dw, v, g)]
    exact, exact_norms = reference.model_weights(wide(cpu[1]), wide(cpu[2]), dims, eps, torch.float64)
    exact_dv, exact_dg = reference.model_weights_backward(*map(wide, cpu), None, dims, eps, every, every)
    assert_close(norms.cpu(), exact_norms)
    for i in range(len(v)):
        assert_close(w[i].cpu(), exact[i], what=f"w {i}")
        terms = (exact_dg[i] * cpu[2][i].double()).abs().max().item() / exact_norms.min().item()
        assert_close(dv[i].cpu(), exact_dv[i], terms=terms, what=f"dv {i}")
        assert_close(dg[i].cpu(), exact_dg[i], terms=dw[i].double().norm().item(), what=f"dg {i}")


def test_a_row_too_long_for_one_program_has_its_own_launches() -> None:
    v = torch.empty(2, model_weights.LONGEST_ROW, device="meta")
    assert model_weights.shares(view_of(v, 0)) and not model_weights.shares(view_of(v, None))
    assert not model_weights.shares(view_of(v[:, :0], 0)) and not model_weights.shares(view_of(v[:0], 0))


class Operations(TorchDispatchMode):
    """Counts torch's operations that compute: on a GPU, each is at least one launch."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        self.count += func.namespace == "aten" and not func.is_view and "empty" not in name
        return func(*args, **(kwargs or {}))


def step_of(model: nn.Module, x: torch.Tensor) -> tuple[list[str], int]:
    """The launches of a step, which are not run, and the number of torch's operations."""
    seen: list[str] = []
    model.zero_grad()
    with wnfused.backend("triton"), consumed_by(lambda record: seen.append(record.name)), Operations() as operations:
        model(x).sum().backward()
    return seen, operations.count


# Network, input, weight-normalized layers, launches of a step before and after: weights of 7, 56 and 223 MB.
NETWORKS: dict[str, tuple[Any, tuple[int, ...], int, int, int]] = {
    "ResNet-110": (lambda: wnfused.models.resnet110(norm="none"), (1, 3, 8, 8), 112, 558, 2),
    "HiFi-GAN V1": (Generator, (1, 80, 1), 78, 388, 4),
    "WRN-40-10": (lambda: wnfused.models.WRN(40, 10, norm="none"), (1, 3, 8, 8), 40, 198, 9),
}


@pytest.mark.skipif(ON_GPU, reason="the number depends on the plans for this GPU")
@pytest.mark.parametrize("name", NETWORKS)
def test_launches_of_a_step(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One launch writes all weights, one for each 25 MB their gradients; all else is the plain network's step."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)  # torch's default
    make, shape, layers, before, after = NETWORKS[name]
    model, x = make(), torch.randn(shape)
    _, plain = step_of(model, x)
    assert wnfused.apply(model).count == layers
    launched, _ = step_of(model, x)
    assert len(launched) == before
    with wnfused.model_weights(model):
        launched, operations = step_of(model, x)
    assert launched == ["write_model_weights", *["project_model_weights"] * (after - 1)]
    assert operations == plain
