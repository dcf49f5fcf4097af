"""The audit's sm_80 builds as the PTX emulator sees them."""

import os
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("triton")

from tests.support.ptx import builds as ptx_builds
from tests.support.ptx import cases, layers
from wnfused.kernels.triton.audit import builds

Compiled = Callable[..., Any]


@pytest.mark.skipif("WNFUSED_PTX_LAYERS" not in os.environ, reason="compiles 854 kernels: make test-ptx")
@pytest.mark.parametrize("kernel", sorted(builds.KERNELS))
def test_the_emulator_knows_every_instruction(kernel: str, compiled: Compiled) -> None:
    count, untested = compiled(ptx_builds.read, kernel)
    assert count and not untested


def test_shares_of_dw_are_float32(compiled: Compiled) -> None:
    """finish_weight adds them up: in 16 bits it would lose digits, and the audit would read another kernel's code."""
    depthwise = layers.Layer("convolution", (32, 1, 3, 3), (2, 32, 6, 6), "bf16", groups=32, last=True)
    launched = [found for kernel, found in compiled(cases.pointers_launched, depthwise) if kernel == "finish_weight"]
    for found in (launched, compiled(ptx_builds.pointers_of, "finish_weight")):
        shares = [pointers for pointers in found if "dots" not in pointers]
        assert {pointers["v"] for pointers in shares} >= {"*bf16"}
        assert {pointers["dw"] for pointers in shares} == {"*fp32"}
