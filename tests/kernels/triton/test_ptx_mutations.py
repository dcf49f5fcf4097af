"""Faults put into compiled kernels one by one: the emulator notices each, or says why it does no harm."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.ptx import cases
from tests.support.ptx.mutations import CAUGHT

FEW = [(cases.LAYERS[0], "finish_weight"), (cases.LAYERS[0], "linear_input_gradient")]


@pytest.mark.parametrize(("layer", "kernel"), FEW, ids=lambda value: value if isinstance(value, str) else value.dtypes)
def test_every_fault_is_noticed_or_harmless(layer: Any, kernel: str, compiled: Callable[..., Any]) -> None:
    found: Counter[tuple[str, str]] = compiled(cases.verdicts, layer, kernel)
    assert not [verdict for _, verdict in found if verdict.startswith("missed")]
    caught = sum(count for (_, verdict), count in found.items() if verdict == CAUGHT)
    assert caught > found.total() / 2
