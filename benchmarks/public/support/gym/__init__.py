"""The calls of the old gym that public programs make, on top of gymnasium."""

from typing import Any

import gymnasium


class _Environment:
    def __init__(self, name: str) -> None:
        self._real = gymnasium.make(name)
        self._seed: int | None = None
        self._max_episode_steps = self._real.spec.max_episode_steps

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def seed(self, seed: int) -> None:
        self._seed = seed

    def reset(self) -> Any:
        observation, _ = self._real.reset(seed=self._seed)
        self._seed = None
        return observation

    def step(self, action: Any) -> tuple[Any, float, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self._real.step(action)
        return observation, reward, terminated or truncated, info


def make(name: str) -> Any:
    """The environment, with the methods of the old interface."""
    return _Environment(name)
