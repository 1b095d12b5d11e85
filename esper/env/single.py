"""One host as a plain Gymnasium environment, for single-agent libraries and Gymnasium's own checks."""

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from esper.env.actions import Op, with_fixed
from esper.env.base import Environment, check_open
from esper.env.spec import Array

PRIVATE = ("signals", "timetable")
"""Entries of the vector environment's info that only Esper's trainer reads."""
FINAL = ("final_obs", "_final_obs", "_final_info")
"""Entries that a single host does not need: `step` returns its last observation, and `final_info` exists only at an end."""


class SingleHostEnv(gymnasium.Env[dict[str, Array], npt.NDArray[np.int64]]):
    """The single host of an `Environment`, without autoreset: the end of an episode returns its last observation.

    A `reset` without arguments continues with what follows in the vector environment: the next episode, or, after a rollback, the
    same host from its snapshot as a new sub-episode. So the numbers are the same in both interfaces.
    """

    def __init__(self, population: Environment) -> None:
        """Wrap an environment of one host, which must not be stepped elsewhere.

        Raises:
            ValueError: the environment has more than one host.
        """
        if population.num_envs != 1:
            raise ValueError(f"SingleHostEnv takes an environment of one host, got hosts={population.num_envs}")
        self.population = population
        self.metadata = {"render_modes": []}
        self.observation_space = population.single_observation_space
        self.action_space = population.single_action_space
        self._now: dict[str, Array] | None = None
        self._next: dict[str, Array] | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Array], dict[str, Any]]:
        """Return the first observation of the next episode; see `Environment.begin` for `seed` and `options`."""
        super().reset(seed=seed)
        check_open(self.population)
        if self._next is None or seed is not None or options:
            self._next, _ = self.population.reset(seed=seed, options=options)
        self._now, self._next = self._next, None
        return of_host(self._now, 0), {}

    def step(self, action: npt.NDArray[np.int64]) -> tuple[dict[str, Array], float, bool, bool, dict[str, Any]]:
        """Carry out one action and one host epoch.

        Raises:
            gymnasium.error.ResetNeeded: there was no reset yet, or none since the last episode ended.
            ValueError: the action is not in the action space.
        """
        if self._now is None or self._next is not None:
            raise gymnasium.error.ResetNeeded("call reset() before the first step() and after each end of an episode")
        given, shape = np.asarray(action), self.population.single_action_space.shape
        if given.shape != shape:
            raise ValueError(f"an action must have the shape {shape}, one number per head, got {given.shape}")
        actions = without_choice(given[None], self._now, self.population.layout.head_sizes)
        observation, reward, terminated, truncated, info = self.population.step(actions)
        if terminated[0]:
            self._next, observation = observation, {name: array[None] for name, array in info["final_obs"][0].items()}
        self._now = observation
        shown = {name: value for name, value in plain_info(info).items() if name not in FINAL}
        return of_host(observation, 0), float(reward[0]), bool(terminated[0]), bool(truncated[0]), of_host(shown, 0)

    def action_masks(self) -> npt.NDArray[np.bool_]:
        """Return the legality of every value of every head, concatenated; see `masks`.

        Raises:
            gymnasium.error.ResetNeeded: there was no reset yet.
        """
        return masks(self._current())[0]

    def close(self) -> None:
        """Close the vector environment."""
        self.population.close()

    def _current(self) -> dict[str, Array]:
        if self._now is None:
            raise gymnasium.error.ResetNeeded("call reset() before action_masks()")
        return self._now


def masks(arrays: dict[str, Array]) -> npt.NDArray[np.bool_]:
    """Return the legality of every value of every head, concatenated, as masking libraries expect it `[N, sum of head sizes]`.

    Heads are masked independently. An operation and a slot that are each legal may be illegal together: such an action is
    refused, without effect. A slot is masked where only WAIT is legal, unless that holds for all slots.

    Args:
        arrays: observation of N hosts.
    """
    legal_NOS = arrays["legal_slots"].astype(np.bool_)
    slots_NS: npt.NDArray[np.bool_] = np.any(np.delete(legal_NOS, Op.WAIT, axis=1), axis=1)
    slots_NS |= ~slots_NS.any(axis=1, keepdims=True)
    return np.concatenate([legal_NOS.any(axis=2), slots_NS, arrays["legal_values"].astype(np.bool_)], axis=1)


def without_choice(actions: Any, arrays: dict[str, Array], head_sizes: tuple[int, ...]) -> Array:
    """Return actions whose fixed heads have their value: there is nothing to choose, so samples of the action space may differ.

    Args:
        actions: `[N, H]`; anything else stays as it is.
        arrays: observation of N hosts.
        head_sizes: number of values of each head.
    """
    given, legal_NV = np.asarray(actions), arrays["legal_values"].astype(np.bool_)
    if given.shape != (len(legal_NV), len(head_sizes)) or given.dtype.kind not in "iu":
        return given
    return with_fixed(given.astype(np.int64), legal_NV, head_sizes)


def plain_info(info: dict[str, Any]) -> dict[str, Any]:
    """Return the info of a vector environment without the entries in `PRIVATE`; the remaining entries are arrays over hosts."""
    shown = {name: value for name, value in info.items() if name not in PRIVATE}
    if "final_info" in shown:
        final = {name: value for name, value in shown["final_info"].items() if name not in PRIVATE}
        shown["final_info"] = {name: np.asarray(value) for name, value in final.items()}
    return shown


def of_host(value: Any, host: int) -> Any:
    """Return the values of one host: its entry of every array and list, in dicts of any depth."""
    if isinstance(value, dict):
        return {name: of_host(part, host) for name, part in value.items()}
    if isinstance(value, np.ndarray):
        return value[host].item() if value.ndim == 1 else value[host]
    return value[host] if isinstance(value, list) else value
