"""Faults put into compiled kernels one by one: the emulator notices each, or says why it does no harm.

`make test-ptx` puts them into every kernel.
"""

import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("triton")

from tests.support.ptx import cases
from tests.support.ptx.mutations import CAUGHT
from wnfused.kernels.triton.audit import builds

EVERY = "WNFUSED_PTX_LAYERS" in os.environ
KERNELS = sorted(builds.KERNELS) if EVERY else ["finish_weight", "linear_input_gradient"]


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_fault_is_noticed_or_harmless(kernel: str, compiled: Callable[..., Any]) -> None:
    found: Counter[tuple[str, str]] = compiled(cases.verdicts, kernel)
    for (kind, verdict), count in sorted(found.items()):
        print(f"{kernel}: {count} {kind}: {verdict}")  # noqa: T201 - pytest -rP lists them
    assert not [verdict for _, verdict in found if verdict.startswith("missed")]
    caught = Counter({kind: count for (kind, verdict), count in found.items() if verdict == CAUGHT})
    assert caught["mask"] and caught["address"]
    assert kernel != "linear_input_gradient" or (caught["barrier"] and caught["wait"])
