"""The layers of shapes.toml under pytest-benchmark, which shows the spread of each: ``pytest benchmarks``.

Take ratios from ``make bench``, which interleaves the peers; here they run one after the other.
"""

from typing import Any

import pytest
import torch

from wnfused.benchmarks.cases import Case, layers
from wnfused.benchmarks.peers import PEERS, inference, training_step, with_weight_norm


@pytest.mark.parametrize("mode", ["step", "inference"])
@pytest.mark.parametrize("peer", PEERS)
@pytest.mark.parametrize("case", [case for case in layers() if case.quick], ids=lambda case: case.name)
def test_layer(case: Case, peer: str, mode: str, benchmark: Any) -> None:
    benchmark.group = f"{case.name}, {mode}"
    torch.manual_seed(0)
    model = with_weight_norm(case.make(), peer, case.dim)
    benchmark((training_step if mode == "step" else inference)(model, torch.randn(case.shape)))
