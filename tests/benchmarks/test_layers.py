"""The speed table compares layers that compute the same function."""

import pytest
import torch

from wnfused.benchmarks import gpu, layers
from wnfused.benchmarks.peers import PEERS, with_weight_norm


@pytest.mark.parametrize("cases", [layers.CASES, gpu.CASES], ids=["cpu", "gpu"])
def test_peers_of_the_resnet_compute_the_same_finite_function(cases):
    (case,) = (case for case in cases if case.name.startswith("ResNet-110"))
    torch.manual_seed(0)
    plain, x = case.make(), torch.randn(2, *case.shape[1:])
    with torch.no_grad():
        outputs = {peer: with_weight_norm(plain, peer)(x) for peer in PEERS}
    assert outputs["plain"].isfinite().all() and outputs["plain"].std() > 1e-3
    for peer in PEERS[1:]:
        torch.testing.assert_close(outputs[peer], outputs["plain"], rtol=1e-4, atol=1e-4)
