"""The compiled sm_80 kernels, executed: layers forward and backward on the PTX emulator, against float64.

`make test-ptx` runs WNFUSED_PTX_LAYERS drawn layers from WNFUSED_PTX_SEED on.
"""

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from tests.support.ptx import cases, layers, models, rounding
from tests.support.ptx.opcodes import untested
from wnfused.kernels.triton.audit import builds

Compiled = Callable[..., Any]
COUNT = int(os.environ.get("WNFUSED_PTX_LAYERS", "3"))
FIRST = int(os.environ.get("WNFUSED_PTX_SEED", "0"))


@pytest.mark.parametrize("layer", cases.LAYERS, ids=[f"{i}-{c.kind}-{c.dtypes}" for i, c in enumerate(cases.LAYERS)])
def test_layer(layer: layers.Layer, compiled: Compiled) -> None:
    opcodes = compiled(layers.check, layer)
    assert opcodes and not untested(opcodes)


@pytest.mark.parametrize("seed", range(FIRST, FIRST + COUNT))
def test_drawn_layer(seed: int, compiled: Compiled) -> None:
    assert not untested(compiled(layers.check, layers.drawn(seed), seed))


def test_every_kernel_is_run(compiled: Compiled) -> None:
    launched = {kernel for layer in cases.LAYERS for kernel, _ in compiled(cases.pointers_launched, layer)}
    assert launched | {*models.KERNELS} == set(builds.KERNELS)


@pytest.mark.parametrize("model", models.MODELS, ids=[f"{m.weight}-{m.compute}" for m in models.MODELS])
def test_weights_of_a_model(model: models.Model, compiled: Compiled) -> None:
    """Weights and gradients of a model, each in one launch that finds its tensors in a table of addresses."""
    opcodes = compiled(models.check, model)
    assert opcodes and not untested(opcodes)


def test_drawn_layers_are_of_all_kinds() -> None:
    drawn = [layers.drawn(seed) for seed in range(300)]
    assert layers.drawn(5) == layers.drawn(5)
    for field in ("kind", "dtypes", "dim", "relu", "bias", "last", "offset", "gap", "far", "groups", "stride", "scale"):
        assert len({getattr(layer, field) for layer in drawn}) > 1, field


def test_a_wrong_result_fails(compiled: Compiled) -> None:
    """All zeros are not within the tolerance."""
    layer = layers.Layer("linear", (8, 16), (3, 16))
    with pytest.raises(AssertionError, match="dv: errors"):
        compiled(cases.check_zeros, layer)


def test_tf32_is_truncated(compiled: Compiled) -> None:
    """Without a conversion both operands lose their last 13 bits, towards zero: products come out too small."""
    numbers = torch.Generator().manual_seed(0)
    a, b = (torch.rand(64, 64, generator=numbers) + 1 for _ in range(2))
    exact = a.double() @ b.double()
    bias = ((compiled(rounding.product, a, b, "tf32").double() - exact) / exact).mean().item()
    assert -8e-4 < bias < -5e-4
    cut = [(t.view(torch.int32) & ~0x1FFF).view(torch.float32).double() for t in (a, b)]
    torch.testing.assert_close(compiled(rounding.product, a, b, "tf32").double(), cut[0] @ cut[1], rtol=1e-6, atol=0)
    ieee = ((compiled(rounding.product, a, b, "ieee").double() - exact) / exact).mean().item()
    assert abs(ieee) < 1e-7
