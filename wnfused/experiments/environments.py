"""The games of the experiment ``rl``: several copies of one, stepped together, whose ended episodes start again."""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wnfused.extras import missing, not_installed
from wnfused.train import RunError


@dataclass(frozen=True)
class Game:
    """``random`` and ``good`` are returns: of uniformly random actions, and of a policy that plays well."""

    title: str
    id: str  # in gymnasium's registry
    package: str  # the module that adds it to the registry
    options: dict[str, Any]
    random: float
    good: float
    image: bool = False  # frames of a screen instead of a short vector or a small grid

    @property
    def started(self) -> float:
        """A return that random actions do not reach by chance: a tenth of the way from random to good."""
        return self.random + (self.good - self.random) / 10


# The random returns were measured over 1000 episodes (Pong: 50). 500 is CartPole's limit and 21 is Pong's; Breakout has
# none, and its 10 was chosen here.
GAMES = {
    "cartpole": Game("CartPole", "CartPole-v1", "gymnasium", {}, random=22.4, good=500.0),
    "breakout": Game("MinAtar Breakout", "MinAtar/Breakout-v1", "minatar", {}, random=0.4, good=10.0),
    "pong": Game(
        "Atari Pong",
        "ALE/Pong-v5",
        "ale_py",
        {"obs_type": "grayscale", "frameskip": 4, "repeat_action_probability": 0.0},
        random=-20.3,
        good=21.0,
        image=True,
    ),
}
FRAMES = 4  # of a screen, stacked: speed cannot be seen in one


def check_installed(games: Sequence[str]) -> None:
    """Raise RunError that names the extra if one of the games cannot be made."""
    needed = dict.fromkeys(["gymnasium", *(GAMES[name].package for name in games)])
    if absent := missing(*needed):
        raise RunError(f"rl: {not_installed(*absent)}")


@dataclass(frozen=True)
class Step:
    """The result of a step of all copies; ``done`` is also set where the game's time limit ended an episode."""

    rewards: Tensor  # [E]
    done: Tensor  # [E], bool
    cut_off: dict[int, Tensor]  # copy: the observation at which the time limit ended its episode
    returns: list[float]  # of the episodes that ended


class Environments:
    """``count`` copies of a game, each with its own seed; ``observations`` [E, …] are the current ones."""

    def __init__(self, game: str, count: int, seed: int) -> None:
        check_installed([game])
        self.game = GAMES[game]
        gymnasium: Any = importlib.import_module("gymnasium")
        if self.game.package == "minatar" and self.game.id not in gymnasium.registry:
            importlib.import_module("minatar.gym").register_envs()
        elif self.game.package == "ale_py":
            package: Any = importlib.import_module("ale_py")
            package.ALEInterface.setLoggerMode(package.LoggerMode.Error)
            gymnasium.register_envs(package)
        self._copies = [gymnasium.make(self.game.id, **self.game.options) for _ in range(count)]
        self._totals = [0.0] * count
        self.actions = int(self._copies[0].action_space.n)
        first = [copy.reset(seed=1000 * seed + i)[0] for i, copy in enumerate(self._copies)]
        if self.game.image:
            self._frames = [np.repeat(_small(frame)[None], FRAMES, 0) for frame in first]
        self.observations = torch.stack([self._shown(i, frame, True) for i, frame in enumerate(first)])

    def step(self, actions: Tensor) -> Step:
        rewards, done, cut_off, returns = [], [], {}, []
        shown = []
        for i, (copy, action) in enumerate(zip(self._copies, actions.tolist(), strict=True)):
            raw, reward, terminated, truncated, _ = copy.step(action)
            seen = self._shown(i, raw, False)
            self._totals[i] += float(reward)
            if terminated or truncated:
                if not terminated:
                    cut_off[i] = seen
                returns.append(self._totals[i])
                self._totals[i] = 0.0
                seen = self._shown(i, copy.reset()[0], True)
            rewards.append(float(reward))
            done.append(bool(terminated or truncated))
            shown.append(seen)
        self.observations = torch.stack(shown)
        return Step(torch.tensor(rewards), torch.tensor(done), cut_off, returns)

    def _shown(self, copy: int, raw: Any, first: bool) -> Tensor:
        """[n] for vectors and grids; [FRAMES, H, W] for screens."""
        if not self.game.image:
            return torch.from_numpy(np.asarray(raw, np.float32).ravel())
        frame = _small(raw)[None]
        old = np.repeat(frame, FRAMES, 0) if first else self._frames[copy]
        self._frames[copy] = np.concatenate([old[1:], frame])
        return torch.from_numpy(self._frames[copy])

    def close(self) -> None:
        for copy in self._copies:
            copy.close()


def _small(screen: Any) -> Any:
    """Pong's field without score and borders, [210, 160] to [80, 80], scaled to [0, 1]."""
    field = np.asarray(screen, np.float32)[34:194]
    return (field.reshape(80, 2, 80, 2).mean((1, 3)) / 255).astype(np.float32)
