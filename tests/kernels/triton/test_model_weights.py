"""All weights of a model in one Triton launch: the numbers, and the launches of whole networks before and after."""

import pytest
import torch
from torch import nn

import wnfused
from tests.ops.test_model_weights import SHAPES, arguments, wide
from tests.support.reference import assert_close
from tests.support.triton_cases import DEVICE
from wnfused.kernels.triton import model_weights
from wnfused.kernels.triton.launch import Launch, consumed_by
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
    assert model_weights.shares(v, 0) and not model_weights.shares(v, None)


def launches(model: nn.Module, x: torch.Tensor) -> list[str]:
    """The launches of a step, which are not run."""
    seen: list[str] = []

    def consume(record: Launch) -> None:
        seen.append(record.name)

    with wnfused.backend("triton"), consumed_by(consume):
        model(x).sum().backward()
    return seen


def test_launches_of_a_resnet_110() -> None:
    """Weights of 7 MB: one launch forward and one backward, where the layers had more than two each."""
    model, x = wnfused.models.resnet110().to(DEVICE), torch.randn(1, 3, 8, 8, device=DEVICE)
    layers = sum(isinstance(m, wnfused.nn.WeightNormalized) for m in model.modules())
    before = launches(model, x)
    with wnfused.model_weights(model):
        after = launches(model, x)
    assert after == ["write_model_weights", "project_model_weights"]
    assert layers >= 109 and len(before) >= 2 * layers
