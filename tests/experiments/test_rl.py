"""The experiment ``rl``: returns, the loss, the policy networks, and short runs on CartPole."""

from pathlib import Path

import pytest
import torch

from wnfused import cli, extras
from wnfused.experiments import environments
from wnfused.experiments.actor_critic import Progress, n_step_returns, objective, policy
from wnfused.experiments.environments import GAMES
from wnfused.experiments.jobs import Job
from wnfused.nn import WNConv2d, WNLinear

TINY = {
    "game": "cartpole", "arm": "robust", "seed": 0, "steps": 640, "environments": 4, "n": 8, "width": 16, "layers": 10,
    "lr": 1e-3, "discount": 0.99, "entropy": 0.01, "value": 0.5, "clip": 0.5,
}  # fmt: skip


def test_returns_match_a_computation_by_hand() -> None:
    """Three steps of two environments, γ = 0.5; the second environment's episode ends at its second step."""
    rewards = torch.tensor([[1.0, 1.0], [2.0, 2.0], [4.0, 4.0]])
    done = torch.tensor([[False, False], [False, True], [False, False]])
    found = n_step_returns(rewards, done, torch.tensor([8.0, 16.0]), 0.5)
    # First: 4 + 8/2 = 8, 2 + 8/2 = 6, 1 + 6/2 = 4. Second: 4 + 16/2 = 12, then 2, then 1 + 2/2 = 2.
    assert found.tolist() == [[4.0, 2.0], [6.0, 2.0], [8.0, 12.0]]


@pytest.mark.parametrize("advantage", [2.0, -2.0])
def test_a_step_makes_good_actions_likelier_and_values_better(advantage: float) -> None:
    logits = torch.zeros(1, 3, requires_grad=True)
    values = torch.ones(1, requires_grad=True)
    returns = torch.tensor([1.0 + advantage])
    objective(logits, values, torch.tensor([1]), returns, entropy=0.0, value=0.5).backward()
    # −A·∂log π(1)/∂logits = A·(π − one-hot); (V − R) for half the squared error.
    assert logits.grad is not None and values.grad is not None
    torch.testing.assert_close(logits.grad, advantage * torch.tensor([[1 / 3, -2 / 3, 1 / 3]]))
    torch.testing.assert_close(values.grad, torch.tensor([-advantage]))


def test_the_entropy_pulls_towards_even_probabilities() -> None:
    logits = torch.tensor([[1.0, 0.0]], requires_grad=True)
    one = torch.ones(1)
    objective(logits, one, torch.tensor([0]), one, entropy=0.1, value=0.5).backward()
    assert logits.grad is not None
    assert logits.grad[0, 0] > 0 > logits.grad[0, 1]  # descent lowers the likelier one


@pytest.mark.parametrize(("shape", "layers"), [((4,), 100), ((400,), 10), ((4, 80, 80), 100), ((4, 80, 80), 10)])
def test_policies_have_the_layers_they_say(shape: tuple[int, ...], layers: int) -> None:
    """Shortcuts are beside the path and do not count; actor and critic are one layer."""
    model = policy("robust", torch.Size(shape), 3, 16, layers, seed=0)
    normalized = [name for name, part in model.named_modules() if isinstance(part, WNLinear | WNConv2d)]
    assert len([name for name in normalized if "shortcut" not in name]) + 1 == layers
    logits, values = model(torch.rand(2, *shape))
    assert logits.shape == (2, 3) and values.shape == (2,)
    plain = policy("none", torch.Size(shape), 3, 16, layers, seed=0)
    assert not [part for part in plain.modules() if isinstance(part, WNLinear | WNConv2d)]


def test_only_the_default_of_the_paper_explodes() -> None:
    """x + W₂ ReLU(W₁x) with orthogonal W multiplies the squared norm by 3/2: by 1.5^49 after 49 blocks."""
    x = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))

    def growth(arm: str) -> float:
        trunk = policy(arm, torch.Size([64]), 2, 64, 100, seed=0).trunk
        with torch.no_grad():
            return (trunk(x).norm() / x.norm()).item()

    assert growth("norm_gain") == pytest.approx(1.5**24.5, rel=1.0)
    assert 1.0 < growth("robust") < 2.5
    assert 0.1 < growth("torch_default") < 10
    assert 0.1 < growth("none") < 10


def test_a_curve_has_the_means_of_equal_parts() -> None:
    progress = Progress(ended=[(1, 1.0), (10, 3.0), (21, 5.0), (95, 7.0), (104, 9.0)], steps=104)
    assert progress.curve(100, 4) == [3.0, None, None, 8.0]
    assert progress.final(100) == 8.0
    assert Progress(ended=[(90, 1.0)]).final(100) is None


def test_a_missing_package_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = extras.find_spec
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name in ("gymnasium", "ale_py") else found(name))
    assert cli.main(["experiment", "rl", "--out", str(tmp_path), "--scale", "paper"]) == 2
    assert capsys.readouterr().err == (
        "wnfused: experiment: rl: gymnasium and ale-py are not installed; install the extra 'rl': "
        'pip install -c constraints.txt ".[rl]"\n'
    )


class TestWithGymnasium:
    @pytest.fixture(autouse=True)
    def _installed(self) -> None:
        pytest.importorskip("gymnasium")

    def test_a_tiny_run_repeats_itself(self) -> None:
        job = Job("rl:measure", TINY)
        first, again = job.run(), job.run()
        assert {**first, "seconds": 0} == {**again, "seconds": 0}
        assert first["diverged_step"] is None and first["episodes"] > 10 and len(first["curve"]) == 40
        assert Job("rl:measure", {**TINY, "seed": 1}).run()["curve"] != first["curve"]

    def test_a_small_policy_learns_cartpole(self) -> None:
        """Four layers; 40,000 steps take it well above 22, the return of random actions."""
        settings = {**TINY, "arm": "none", "layers": 4, "width": 64, "steps": 40_000, "environments": 16, "lr": 3e-3}
        outcome = Job("rl:measure", settings).run()
        assert outcome["started"] and outcome["final_return"] > 100

    def test_divergence_is_recorded(self) -> None:
        outcome = Job("rl:measure", {**TINY, "lr": 1e30}).run()
        assert outcome["diverged_step"] is not None and 0 < outcome["diverged_step"] < TINY["steps"]
        assert not outcome["started"]

    def test_episodes_restart_and_time_limits_are_not_ends(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Pushing left always tips the pole within a dozen steps; with a limit of 3 steps, it is cut off before."""
        left = torch.zeros(2, dtype=torch.long)
        made = environments.Environments("cartpole", 2, seed=0)
        steps = [made.step(left) for _ in range(30)]
        returns = [value for step in steps for value in step.returns]
        assert returns and all(8 <= value <= 11 for value in returns)
        assert not any(step.cut_off for step in steps)
        assert made.observations.abs().max() < 3
        limited = environments.GAMES["cartpole"]
        monkeypatch.setitem(
            GAMES, "cartpole", type(limited)(limited.title, limited.id, "gymnasium", {"max_episode_steps": 3}, 0.0, 1.0)
        )
        made = environments.Environments("cartpole", 2, seed=0)
        steps = [made.step(left) for _ in range(3)]
        assert [sorted(step.cut_off) for step in steps] == [[], [], [0, 1]]
        assert steps[2].done.all() and steps[2].returns == [3.0, 3.0]
        assert not torch.equal(steps[2].cut_off[0], made.observations[0])

    @pytest.mark.parametrize(("game", "shape"), [("breakout", (400,)), ("pong", (4, 80, 80))])
    def test_other_games(self, game: str, shape: tuple[int, ...]) -> None:
        pytest.importorskip(GAMES[game].package)
        made = environments.Environments(game, 2, seed=0)
        made.step(torch.tensor([0, 1]))
        assert made.observations.shape == (2, *shape)
        assert made.observations.min() >= 0 and 0 < made.observations.max() <= 1
        made.close()

    def test_the_experiment_runs(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["experiment", "rl", "--out", str(tmp_path), "--workers", "1"]) == 0
        page = (tmp_path / "rl" / "README.md").read_text()
        assert "| weight norm, proposed |" in page and "CartPole 70.2" in page
        assert (tmp_path / "rl" / "returns.png").stat().st_size > 1000
