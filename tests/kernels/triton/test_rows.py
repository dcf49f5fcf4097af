"""The Triton row kernels."""

import pytest
import torch

from tests.support.reference import assert_close
from tests.support.triton_cases import DEVICE, gains, tensors, wide
from wnfused.kernels.triton import run_rows
from wnfused.kernels.triton.launch import consumed_by
from wnfused.ops import reference as formulas
from wnfused.ops.backends import triton as triton_backend

# rows longer than a tile, tiles longer than a row, norms along every dimension
SHAPES = [
    ((7, 5), 0), ((7, 5), 1), ((3, 5000), 0), ((3000, 3), 1), ((70, 40, 3), 1), ((4, 3, 90), 2), ((33, 61), None),
    ((9,), 0),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("shape", "dim"), SHAPES, ids=str)
def test_weight_norm(shape: tuple[int, ...], dim: int | None, dtype: torch.dtype) -> None:
    (v,) = tensors((shape, dtype))
    g = gains(v, dim)
    w, norms = triton_backend.weight_norm(v, g, dim, 1e-3)
    w_wide, norms_wide = formulas.weight_norm(*wide(v, g), dim, 1e-3)
    assert_close(w.cpu(), w_wide)
    assert_close(norms.cpu(), norms_wide)
    dw = torch.randn_like(v)
    own = triton_backend.weight_norm_backward(dw, v, g, norms, dim, 1e-3, [True, True])
    wanted = formulas.weight_norm_backward(*wide(dw, v, g), None, dim, 1e-3, [True, True])
    (dv, dg), (dv_wide, dg_wide) = own, wanted
    assert dv is not None and dg is not None and dv_wide is not None and dg_wide is not None
    terms = (g.cpu().double() * dg_wide / norms_wide).abs().max().item()  # the terms subtracted in dv
    assert_close(dv.cpu(), dv_wide, terms=terms)
    assert_close(dg.cpu(), dg_wide)


def test_channels_last_weight_is_read_in_place() -> None:
    (v,) = tensors(((6, 5, 3, 3), torch.float32))
    turned = v.contiguous(memory_format=torch.channels_last)
    assert run_rows.in_memory_order(turned, 0) is turned
    g = gains(v, 0)
    w, norms = triton_backend.weight_norm(turned, g, 0, 0.0)
    assert w.stride() == turned.stride()
    assert_close(norms.cpu(), formulas.row_norms(v.double().cpu(), 0))
    assert_close(w.cpu(), formulas.weight_norm(*wide(v, g), 0, 0.0)[0])


def test_a_split_norm_beyond_float32() -> None:
    """Σv² of each part fits in float32, their sum does not."""
    v = torch.full((128, 4160), 2.92e16, device=DEVICE)  # 32 parts
    norms = run_rows.row_norms(v, v.new_ones(()), None, 0.0)
    assert_close(norms.cpu(), formulas.row_norms(v.double().cpu(), None).view(()))


@pytest.mark.parametrize(("shape", "dim"), [((37, 300), 0), ((6, 5, 40), 1), ((3, 70), None)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_norms_and_weight_are_one_launch_and_so_is_their_backward(
    shape: tuple[int, ...], dim: int | None, dtype: torch.dtype
) -> None:
    (v,) = tensors((shape, dtype))
    g = gains(v, dim)
    launched = []
    with consumed_by(lambda record: (launched.append(record.name), record.run())):
        norms, w = run_rows.norms_and_weight(v, g, dim, 0.0, v.dtype)
        dw = torch.randn_like(w)
        kept = dw.clone()
        dv, dg = run_rows.project(dw, v, g, norms, dim, True, True)
    assert launched == ["partial_norms", "project"]
    assert torch.equal(norms, run_rows.row_norms(v, g, dim, 0.0))
    assert torch.equal(w, run_rows.normalized(v, g, norms, dim, v.dtype))
    v_wide, g_wide = wide(v, g)
    w_wide, _ = formulas.weight_norm(v_wide, g_wide, dim, 0.0)
    assert_close(w.cpu(), w_wide)
    wanted = formulas.weight_norm_backward(kept.double().cpu(), v_wide, g_wide, None, dim, 0.0, [True, True])
    for own, exact in zip((dv, dg), wanted, strict=True):
        assert own is not None and exact is not None
        assert_close(own.cpu(), exact)
