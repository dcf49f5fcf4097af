"""The rows of the speed table under pytest-benchmark, which shows the spread of each: ``pytest benchmarks``.

Take ratios from ``make bench``, which interleaves the peers; here they run one after the other.
"""

from typing import Any

import pytest
import torch

import wnfused
from wnfused.benchmarks.layers import CASES, Case
from wnfused.benchmarks.peers import PEERS, inference, training_step, with_weight_norm


@pytest.mark.parametrize("peer", PEERS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_layer(case: Case, peer: str, benchmark: Any) -> None:
    benchmark.group = case.name
    torch.manual_seed(0)
    model = with_weight_norm(case.make(), peer)
    step = (training_step if case.kind == "training" else inference)(model, torch.randn(case.shape))
    if case.kind == "frozen":
        with wnfused.frozen(model):
            benchmark(step)
    else:
        benchmark(step)
