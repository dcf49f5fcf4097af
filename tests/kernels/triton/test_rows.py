"""The Triton row kernels and the multi-tensor norms behind ``precompute_norms``."""

import pytest
import torch
from torch import Tensor, nn

import wnfused
from tests.support.reference import assert_close
from tests.support.triton_cases import DEVICE, gains, tensors, wide
from wnfused.kernels.triton import run_multi, run_rows
from wnfused.kernels.triton.launch import consumed_by
from wnfused.ops import precomputed_norms
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


# --- all norms of a model in one launch -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_many_norms(dtype: torch.dtype) -> None:
    """Contiguous rows, aligned or not; many and few interleaved rows; one norm over the whole weight."""
    shapes = [
        ((7, 5), 0, 0.0), ((600, 3), 1, 1e-3), ((3, 700), 0, 0.0), ((4, 3, 2, 2), 1, 0.0), ((5, 6), None, 0.5),
        ((6, 1048), 0, 0.1), ((33, 130), 1, 0.0), ((2, 3, 40), 1, 0.0), ((9, 8, 3), 2, 0.0),
    ]  # fmt: skip
    weights = [run_multi.Weight(tensors(((49,), dtype))[0][1:].view(3, 16), (3, 1), 0, 0.0)]  # unaligned
    for shape, dim, eps in shapes:
        (v,) = tensors((shape, dtype))
        weights.append(run_multi.Weight(v, formulas.gain_shape(shape, dim), dim, eps))
    for weight, norms in zip(weights, run_multi.many_norms(weights), strict=True):
        assert norms.shape == weight.gain_shape
        assert_close(norms.cpu(), formulas.row_norms(weight.v.double().cpu(), weight.dim, weight.eps))


def test_many_norms_of_extreme_and_zero_rows() -> None:
    (v,) = tensors(((6, 700), torch.float32))
    v *= torch.tensor([1e-30, 1e-20, 1.0, 1e20, 1e30, 0.0], device=DEVICE)[:, None]
    (norms,) = run_multi.many_norms([run_multi.Weight(v, (6, 1), 0, 0.0)])
    for own, want in zip(norms.flatten(), formulas.row_norms(v.double().cpu(), 0).flatten(), strict=True):
        assert_close(own[None].cpu(), want[None])


def test_a_norm_too_long_for_one_program_is_left_to_the_layer() -> None:
    v = torch.empty(2, run_multi.LONGEST_ROW, device="meta")
    assert run_multi.supported(v, 0)
    assert not run_multi.supported(v, None)


def network() -> nn.Module:
    model = nn.Sequential(
        wnfused.WNConv1d(3, 5, 3), wnfused.WNConvTranspose1d(5, 4, 2), nn.Flatten(), wnfused.WNLinear(28, 6)
    )
    return model.to(DEVICE)


@pytest.fixture
def _triton() -> object:
    with wnfused.backend("triton"):
        yield


@pytest.mark.usefixtures("_triton")
def test_precompute_norms_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is one launch for all norms, and no layer computes its own."""
    model, x = network(), torch.randn(2, 3, 8, device=DEVICE)
    wanted = model(x)
    with wnfused.precompute_norms(model) as count:
        assert count == 3
        computed: list[Tensor] = []
        monkeypatch.setattr(run_rows, "row_norms", lambda v, *rest: computed.append(v))
        for name in ("run_conv", "run_linear"):
            module = __import__(f"wnfused.kernels.triton.{name}", fromlist=["row_norms"])
            monkeypatch.setattr(module, "row_norms", lambda v, *rest: computed.append(v))
        y = model(x)
        assert computed == []
        monkeypatch.undo()
    torch.testing.assert_close(y, wanted)
    y.sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    assert precomputed_norms.find(model[0].weight_v, 0, 0.0) is None


@pytest.mark.usefixtures("_triton")
def test_a_changed_weight_is_noticed() -> None:
    model, x = network(), torch.randn(2, 3, 8, device=DEVICE)
    with wnfused.precompute_norms(model), torch.no_grad():
        model[0].weight_v.mul_(2.0).add_(1.0)
        y = model(x)
    torch.testing.assert_close(y, model(x).detach())


def test_other_backends_precompute_nothing() -> None:
    model = network()
    with wnfused.backend("torch"), wnfused.precompute_norms(model) as count:
        assert count == 0


def test_precompute_norms_requires_a_module() -> None:
    with (
        pytest.raises(TypeError, match="precompute_norms: model: expected an nn.Module, got list"),
        wnfused.precompute_norms([]),
    ):
        pass


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
