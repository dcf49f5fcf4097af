"""The speed tables compare layers and networks that compute the same function."""

import pytest
import torch
from torch import nn

from wnfused.benchmarks import gpu, layers, memory, networks, suite
from wnfused.benchmarks.cases import Case
from wnfused.benchmarks.cases import layers as shapes
from wnfused.benchmarks.peers import PEERS, Disagreement, eikonal_step, verify, with_weight_norm


@pytest.mark.parametrize("cases", [networks.CASES, gpu.CASES], ids=["cpu", "gpu"])
def test_peers_of_the_resnet_compute_the_same_finite_function(cases):
    case = next(case for case in cases if case.name.startswith("ResNet-110"))
    torch.manual_seed(0)
    plain, x = case.make(), torch.randn(2, *case.shape[1:])
    with torch.no_grad():
        outputs = {peer: with_weight_norm(plain, peer)(x) for peer in PEERS}
    assert outputs["plain"].isfinite().all() and outputs["plain"].std() > 1e-3
    for peer in PEERS[1:]:
        torch.testing.assert_close(outputs[peer], outputs["plain"], rtol=1e-4, atol=1e-4)


def test_shapes_have_distinct_names_and_a_quick_choice():
    cases = list(shapes())
    assert len({case.name for case in cases}) == len(cases) > 50
    assert 10 <= sum(case.quick for case in cases) <= 25


@pytest.mark.parametrize("case", [c for c in shapes() if c.quick and "4096" not in c.name], ids=lambda c: c.name)
def test_peers_of_a_layer_compute_the_same_function(case):
    torch.manual_seed(0)
    plain, x = case.make(), torch.randn(1, *case.shape[1:])
    verify({peer: with_weight_norm(plain, peer, case.dim) for peer in PEERS}, x)


def test_a_peer_that_computes_something_else_gets_no_figure():
    plain = nn.Linear(4, 4)
    wrong = with_weight_norm(plain, "wnfused")
    with torch.no_grad():
        wrong.weight_g.mul_(1.01)
    with pytest.raises(Disagreement, match="wnfused: its output differs"):
        verify({"plain": plain, "wnfused": wrong}, torch.randn(3, 4))


def test_measured_rows_survive_the_file_and_show_in_the_table(tmp_path):
    case = Case("tiny", "", lambda: nn.Linear(4, 4), (2, 4), 0, True)
    rows = layers.measure(case, 0.001)
    suite.write(tmp_path / "rows.json", 2, rows)
    assert suite.read(tmp_path / "rows.json") == rows
    assert {row.mode for row in rows} == {"step", "inference"}
    assert sum("| tiny |" in line for line in suite.table(rows)) == 2
    assert suite.compare(rows, rows) == ["no row differs by more than its spread"]


def _row(peer, relative):
    return suite.Result("case", "step", peer, 10.0, relative, relative - 0.01, relative + 0.01)


def test_slower_rows_and_changes_are_named():
    old = [_row("plain", 1.0), _row("torch hook", 1.10), _row("torch parametrized", 1.05), _row("wnfused", 1.07)]
    new = [*old[:3], _row("wnfused", 1.20)]
    assert suite.slower(old) == []
    assert suite.slower(new) == ["case, step: 1.20, torch 1.05"]
    assert suite.compare(old, new)[2:] == ["| case | step | 1.07 | 1.20 |"]


def test_memory_counts_what_is_saved_and_the_peak():
    torch.manual_seed(0)
    rows = {row.peer: row for row in memory.measure("linear", nn.Linear(64, 32), torch.randn(256, 64))}
    assert rows["plain"].saved == 256 * 64 * 4  # x
    assert rows["wnfused"].saved == rows["plain"].saved + 32 * 4  # and one norm per row
    assert rows["torch hook"].saved > rows["wnfused"].saved
    assert rows["plain"].peak >= 256 * 32 * 4


def test_the_eikonal_step_differentiates_twice():
    torch.manual_seed(0)
    model, x = networks.sdf(), torch.randn(8, 3)
    before = [p.clone() for p in model.parameters()]
    eikonal_step(model, x)()
    assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
