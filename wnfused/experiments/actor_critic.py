"""Advantage actor-critic with n-step returns (Mnih et al., 2016), synchronous, and its residual policy network."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from wnfused import init
from wnfused.experiments.environments import FRAMES, Environments
from wnfused.models.layers import Norm, conv, linear
from wnfused.models.residual import stage


class Block(nn.Module):
    """``x + FC2(ReLU(FC1(x)))``."""

    def __init__(self, norm: Norm, width: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(linear(norm, width, width, relu=True), linear(norm, width, width))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)


class Policy(nn.Module):
    """A residual trunk and two plain linear layers side by side: logits of the actions [B, A] and the value [B]."""

    def __init__(self, trunk: nn.Module, features: int, actions: int) -> None:
        super().__init__()
        self.trunk = trunk
        self.actor = nn.Linear(features, actions)
        self.critic = nn.Linear(features, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.trunk(x)
        return self.actor(h), self.critic(h).squeeze(1)


def vector_trunk(norm: Norm, inputs: int, width: int, layers: int) -> nn.Module:
    """A linear layer and blocks of two; with the last layer, ``layers`` in all."""
    blocks = (layers - 2) // 2
    return nn.Sequential(linear(norm, inputs, width), *(Block(norm, width) for _ in range(blocks)))


def screen_trunk(norm: Norm, layers: int) -> nn.Module:
    """For 80×80 screens: two strided convolutions, three stages of blocks, a linear layer to 256; with the last layer,
    ``layers`` in all. Widths and the layer of 256 are those of Espeholt et al. (2018)."""
    blocks = (layers - 4) // 6
    return nn.Sequential(
        conv(norm, FRAMES, 16, 3, stride=2, relu=True),
        conv(norm, 16, 16, 3, stride=2),
        stage(norm, blocks, 16, 16, stride=1),
        stage(norm, blocks, 16, 32, stride=2),
        stage(norm, blocks, 32, 32, stride=2),
        nn.Flatten(),
        linear(norm, 32 * 5 * 5, 256, relu=True),
    )


def policy(arm: str, shape: torch.Size, actions: int, width: int, layers: int, seed: int) -> Policy:
    """The initialized network. ``arm`` is an initialization of weight-normalized layers, or "none": plain layers with
    torch's default weights."""
    torch.manual_seed(seed)
    norm: Norm = "none" if arm == "none" else "weight"
    image = len(shape) > 1
    trunk = screen_trunk(norm, layers) if image else vector_trunk(norm, shape[0], width, layers)
    generator = torch.Generator().manual_seed(seed)
    if arm == "robust":
        init.robust_(trunk, torch.zeros(2, *shape), generator=generator)
    elif arm == "norm_gain":
        init.norm_gain_(trunk, generator=generator)
    elif arm == "torch_default":
        init.torch_default_(trunk, generator=generator)
    return Policy(trunk, 256 if image else width, actions)


def n_step_returns(rewards: Tensor, done: Tensor, last: Tensor, discount: float) -> Tensor:
    """R_t = r_t + γ R_{t+1} [N, E] with R_N = ``last`` [E], the value of the state reached; 0 after an end."""
    returns, following = torch.empty_like(rewards), last
    for t in reversed(range(len(rewards))):
        following = rewards[t] + discount * following * ~done[t]
        returns[t] = following
    return returns


def objective(
    logits: Tensor, values: Tensor, actions: Tensor, returns: Tensor, *, entropy: float, value: float
) -> Tensor:
    """The loss: −log π(a)·(R − V) with the advantage held constant, less the entropy, plus the squared error of V."""
    log_probabilities = logits.log_softmax(1)  # [B, A]
    chosen = log_probabilities.gather(1, actions[:, None]).squeeze(1)
    advantages = (returns - values).detach()
    spread = -(log_probabilities.exp() * log_probabilities).sum(1)
    return -(chosen * advantages).mean() - entropy * spread.mean() + value * (returns - values).square().mean()


@dataclass
class Progress:
    """Returns of episodes, by the number of environment steps after which they ended."""

    ended: list[tuple[int, float]] = field(default_factory=list)
    steps: int = 0
    diverged_step: int | None = None  # environment steps until the loss was NaN or infinite

    def curve(self, total: int, points: int) -> list[float | None]:
        """Mean returns of ``points`` equal parts of ``total`` steps; None where no episode ended."""
        parts: list[list[float]] = [[] for _ in range(points)]
        for step, value in self.ended:
            parts[min(points - 1, (step - 1) * points // total)].append(value)
        return [round(sum(part) / len(part), 3) if part else None for part in parts]

    def final(self, total: int) -> float | None:
        """The mean return of the episodes that ended in the last tenth of ``total`` steps."""
        last = [value for step, value in self.ended if step > 0.9 * total]
        return round(sum(last) / len(last), 3) if last else None


def train(settings: Mapping[str, Any]) -> Progress:
    """Train until ``settings["steps"]`` steps of all environments together, or until the loss is not finite."""
    environments = Environments(settings["game"], settings["environments"], settings["seed"])
    shape = environments.observations.shape[1:]
    sizes = (settings["width"], settings["layers"], settings["seed"])
    model = policy(settings["arm"], shape, environments.actions, *sizes)
    optimizer = torch.optim.RMSprop(model.parameters(), settings["lr"], alpha=0.99, eps=1e-5)
    noise = torch.Generator().manual_seed(settings["seed"])
    progress = Progress()
    while progress.steps < settings["steps"]:
        seen, actions, returns = _collect(environments, model, settings, noise, progress)
        logits, values = model(seen)
        loss = objective(logits, values, actions, returns, entropy=settings["entropy"], value=settings["value"])
        if not math.isfinite(loss.item()):
            progress.diverged_step = progress.steps
            break
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), settings["clip"])
        optimizer.step()
    environments.close()
    return progress


@torch.no_grad()
def _collect(
    environments: Environments,
    model: Policy,
    settings: Mapping[str, Any],
    noise: torch.Generator,
    progress: Progress,
) -> tuple[Tensor, Tensor, Tensor]:
    """Observations, actions and returns of ``n`` steps of every environment, flattened to [N·E, …]."""
    seen, actions, rewards, done = [], [], [], []
    for _ in range(settings["n"]):
        seen.append(environments.observations)
        logits, _ = model(environments.observations)
        # Gumbel's trick samples from the softmax, and does not raise where logits are NaN.
        actions.append((logits - torch.empty_like(logits).exponential_(generator=noise).log()).argmax(1))
        step = environments.step(actions[-1])
        for i, observation in step.cut_off.items():  # a time limit is not the end: what would follow has a value
            step.rewards[i] += settings["discount"] * model(observation[None])[1].item()
        rewards.append(step.rewards)
        done.append(step.done)
        progress.steps += len(step.rewards)
        progress.ended += [(progress.steps, value) for value in step.returns]
    last = model(environments.observations)[1]
    returns = n_step_returns(torch.stack(rewards), torch.stack(done), last, settings["discount"])
    return torch.cat(seen), torch.cat(actions), returns.flatten()
