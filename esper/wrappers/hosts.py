"""Hosts as Gymnasium environments, built from overrides: `esper.make_env` and `esper.make_vec_env`.

`docs/actions.md` and `docs/observation.md` describe the spaces.
"""

# N hosts

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypedDict, cast

import gymnasium
import numpy as np
import numpy.typing as npt
import torch
from gymnasium.utils.seeding import np_random
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from esper.env.base import Environment, one_number
from esper.env.single import SingleHostEnv, masks, plain_info, without_choice
from esper.env.spec import Array
from esper.task.instances import Split
from esper.wrappers.build import built, checked_mode, has_seed, refuse_keys, usual_torch
from esper.wrappers.discrete import ActionList
from esper.wrappers.film import Film
from esper.wrappers.flat import flat_space, flatten

FRAMES = 4
"""Frames per second of a video; each shows one host epoch more."""
EPISODE = "host_episode"
"""Number of the episode in the info of `reset`. Gymnasium's wrappers put the statistics of an episode under "episode"."""
ROOTS = 2**31
"""Number of root seeds that are drawn from."""


class _Form(TypedDict):
    """What an environment shows of its hosts."""

    flat: bool
    discrete: bool
    render_mode: str | None


class HostEnv(SingleHostEnv):
    """One host as a Gymnasium environment; see `make_env`. A copy made by pickle starts anew, from the first episode, with a root
    of its own if it has no seed."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": FRAMES}  # noqa: RUF012  (as in Gymnasium)

    def __init__(
        self,
        overrides: Sequence[str] = (),
        *,
        preset: Sequence[str] = (),
        flat: bool = False,
        discrete: bool = False,
        split: str = Split.TRAINING,
        render_mode: str | None = None,
        **keys: Any,
    ) -> None:
        """Build the environment; see `make_env`, and `preset` for overrides that come before the others."""
        refuse_keys(keys)
        super().__init__(built(preset, overrides, num_envs=1, split=split))
        self.metadata, self.render_mode = HostEnv.metadata, checked_mode(render_mode)
        shown: _Form = {"flat": flat, "discrete": discrete, "render_mode": render_mode}
        self._again = partial(HostEnv, overrides, preset=preset, split=split, **shown)
        self._seeded = has_seed(preset, overrides)
        self.num_steps = self.population.num_steps
        self._flat, self._film = flat, Film(self.population.layout)
        if flat:
            self.observation_space = cast(Any, flat_space(self.population.layout))
        self.actions = ActionList(self.population) if discrete else None
        """Actions by number; None unless `discrete`."""
        if self.actions is not None:
            self.action_space = cast(Any, self.actions.space)

    def __reduce__(self) -> tuple[Any, ...]:
        return self._again, (), {"spec": self.spec}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """See `SingleHostEnv.reset`, and `make_env` for a `seed` that is never given.

        Returns:
            The observation, and an info with the `root` seed of all random streams and the number of the episode, `host_episode`.
        """
        if seed is None and not self._seeded:
            seed = int(self.np_random.integers(ROOTS))
        with usual_torch():
            seen, _ = super().reset(seed=one_number(seed, "seed"), options=options)
        self._seeded = True
        if self.population.time == 0:  # else the host goes on after a rollback
            self._film.start()
        return self._convert(seen), {"root": self.population.root, EPISODE: self.population.episode}

    def step(self, action: npt.NDArray[np.int64]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """See `SingleHostEnv.step`."""
        if self.actions is None:
            heads = action
        elif np.ndim(action):
            raise ValueError(f"an action must be one number, got an array of shape {np.shape(action)}")
        else:
            heads = self.actions.rows(np.asarray(action)[None])[0]
        with usual_torch():
            seen, reward, terminated, truncated, info = super().step(heads)
        if self.render_mode:
            self._film.add(self.population)
        return self._convert(seen), reward, terminated, truncated, info

    def action_masks(self) -> npt.NDArray[np.bool_]:
        """Return which actions are legal; of all heads, one after another, unless `discrete`. See `esper.env.single.masks`.

        Raises:
            gymnasium.error.ResetNeeded: there was no reset yet.
        """
        return super().action_masks() if self.actions is None else self.actions.legal(self._current())[0]

    def render(self) -> Any:
        """Return a picture of all slots up to now `[height, width, 3]`; None without a render mode."""
        return self._film.frame(0) if self.render_mode else None

    def _convert(self, seen: dict[str, Array]) -> Any:
        """Return an observation in the form that was asked for."""
        if not self._flat:
            return seen
        return flatten({name: np.asarray(part)[None] for name, part in seen.items()}, self.population.layout)[0]


class HostsEnv(VectorEnv[Any, npt.NDArray[np.int64], Array]):
    """N hosts that train as one program, as a Gymnasium vector environment; see `make_vec_env`. A copy made by pickle starts
    anew, from the first episode, with a root of its own if it has no seed."""

    metadata: dict[str, Any] = {  # noqa: RUF012  (as in Gymnasium)
        "autoreset_mode": AutoresetMode.SAME_STEP,
        "render_modes": ["rgb_array"],
        "render_fps": FRAMES,
    }

    def __init__(
        self,
        overrides: Sequence[str] = (),
        *,
        num_envs: int = 32,
        preset: Sequence[str] = (),
        flat: bool = False,
        discrete: bool = False,
        split: str = Split.TRAINING,
        render_mode: str | None = None,
        **keys: Any,
    ) -> None:
        """Build the environment; see `make_vec_env`, and `preset` for overrides that come before the others."""
        refuse_keys(keys)
        shown: _Form = {"flat": flat, "discrete": discrete, "render_mode": render_mode}
        self._again: Callable[[], HostsEnv] = partial(HostsEnv, overrides, num_envs=num_envs, preset=preset, split=split, **shown)
        self._show(built(preset, overrides, num_envs=num_envs, split=split), **shown)
        self._seeded = has_seed(preset, overrides)

    @classmethod
    def of(
        cls, build: Callable[[], Environment], *, flat: bool = False, discrete: bool = False, render_mode: str | None = None
    ) -> "HostsEnv":
        """Wrap the hosts that a function builds, with their root seed; it must be picklable if copies are made."""
        shown: _Form = {"flat": flat, "discrete": discrete, "render_mode": render_mode}
        env = cls.__new__(cls)
        env._again = partial(cls.of, build, **shown)
        env._show(build(), **shown)
        return env

    def _show(self, population: Environment, *, flat: bool, discrete: bool, render_mode: str | None) -> None:
        """Set up what Gymnasium sees of the hosts."""
        self.population, num_envs, self._seeded = population, population.num_envs, True
        self.num_envs, self.render_mode = num_envs, checked_mode(render_mode)
        self.num_steps = population.num_steps
        self.flat, self._film = flat, Film(population.layout)
        self._now: dict[str, Array] | None = None
        self.metadata, self.autoreset_mode = HostsEnv.metadata, AutoresetMode.SAME_STEP  # TorchRL reads the latter
        layout, single = self.population.layout, self.population.single_observation_space
        self.actions = ActionList(population) if discrete else None
        """Actions by number; None unless `discrete`."""
        one, all_hosts = self.population.single_action_space, self.population.action_space
        self.single_action_space = one if self.actions is None else self.actions.space
        self.action_space = all_hosts if self.actions is None else batch_space(self.actions.space, num_envs)
        self.single_observation_space = flat_space(layout) if flat else single
        self.observation_space = batch_space(cast(Any, self.single_observation_space), num_envs)

    def __reduce__(self) -> tuple[Any, ...]:
        return self._again, (), {"spec": self.spec}

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Return the first observations of the next episode.

        Args:
            seed: new root of all random streams, one integer; episodes then start from 0. See `make_env` for one that is never
                given.
            options: `{"episode": e}` starts the hosts of that episode.

        Returns:
            Observations, and an info with the `root` and the `host_episode` of each host, which are those of all.
        """
        seed = one_number(seed, "seed")
        if seed is None and not self._seeded:
            seed = int(self.np_random.integers(ROOTS))
        elif seed is not None:
            self._np_random, self._np_random_seed = np_random(seed)
        with usual_torch():
            self._now, info = self.population.reset(seed=seed, options=options)
        self._seeded = True
        self._film.start()
        known = {"root": self.population.root, EPISODE: self.population.episode}
        return self._convert(self._now), info | {name: np.full(self.num_envs, value) for name, value in known.items()}

    def step(self, actions: npt.NDArray[np.int64]) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """Carry out one action per host and train all hosts for an epoch. An illegal action has no effect.

        Returns:
            Observations, rewards, terminated, truncated (never true) and info, as in Gymnasium. Where `terminated` is true, the
            observation is the first of what follows, and `info["final_obs"]` holds the last one.
        """
        heads = actions if self.actions is None else self.actions.rows(actions)
        given = without_choice(heads, self._current(), self.population.layout.head_sizes)
        if self.population.time == 0:
            self._film.start()
        with usual_torch():
            self._now, reward_N, terminated_N, truncated_N, info = self.population.step(given)
        if self.render_mode:
            self._film.add(self.population)
        info = plain_info(info)
        if self.flat and "final_obs" in info:
            last = np.full(self.num_envs, None, dtype=object)
            for host in np.flatnonzero(terminated_N):
                last[host] = self._convert({name: part[None] for name, part in info["final_obs"][host].items()})[0]
            info["final_obs"] = last
        return self._convert(self._now), reward_N, terminated_N, truncated_N, info

    def observation(self) -> Any:
        """Return the current observations, as `reset` and `step` do.

        Raises:
            gymnasium.error.ResetNeeded: there was no reset yet.
        """
        return self._convert(self._current())

    def action_masks(self) -> npt.NDArray[np.bool_]:
        """Return which actions are legal; of all heads, one after another, unless `discrete`. See `esper.env.single.masks`.

        Raises:
            gymnasium.error.ResetNeeded: there was no reset yet.
        """
        return masks(self._current()) if self.actions is None else self.actions.legal(self._current())

    def render(self) -> Any:
        """Return a picture of all slots up to now `[height, width, 3]` for each host; None without a render mode."""
        return tuple(self._film.frame(host) for host in range(self.num_envs)) if self.render_mode else None

    def close_extras(self, **kwargs: Any) -> None:
        """Stop the threads of the hosts."""
        self.population.close()

    def _current(self) -> dict[str, Array]:
        if self._now is None:
            raise gymnasium.error.ResetNeeded("call reset() first")
        return self._now

    def _convert(self, seen: dict[str, Array]) -> Any:
        """Return observations in the form that was asked for."""
        return flatten(seen, self.population.layout) if self.flat else seen


def make_env(
    overrides: Sequence[str] = (),
    *,
    flat: bool = False,
    discrete: bool = False,
    split: str = Split.TRAINING,
    render_mode: str | None = None,
    **keys: Any,
) -> HostEnv:
    """Return an environment of one host.

    Its random streams have one root: the `seed` of `reset`, or `seed=` among the overrides. Without either, as is usual in
    Gymnasium, the first `reset` draws a root, so that copies differ.

    Args:
        overrides: what runs, as on the command line: `["task=digits_drift", "steps=30", "reward=sparse"]`. Keys of Esper's own
            agents and runs, such as `updates`, are refused; `agent.gamma` (for potential-based shaping) and `agent.heads` are
            not.
        flat: if true, observations are vectors instead of dicts of arrays.
        discrete: if true, an action is one number instead of one per head, and `actions.names` lists what each does.
        split: `training`, or `held_out` for the hosts that policies are compared on.
        render_mode: `rgb_array` for pictures, None for none.
        keys: refused; they belong in `overrides`.

    Raises:
        ConfigError: the overrides or another argument are not valid.
    """
    return HostEnv(overrides, flat=flat, discrete=discrete, split=split, render_mode=render_mode, **keys)


def make_vec_env(
    overrides: Sequence[str] = (),
    *,
    num_envs: int = 32,
    flat: bool = False,
    discrete: bool = False,
    split: str = Split.TRAINING,
    render_mode: str | None = None,
    **keys: Any,
) -> HostsEnv:
    """Return an environment of several hosts, which train as one program: much faster than as many environments of one host.

    Args:
        num_envs: number of hosts. Other arguments and errors as in `make_env`.
    """
    shown: _Form = {"flat": flat, "discrete": discrete, "render_mode": render_mode}
    return HostsEnv(overrides, num_envs=num_envs, split=split, **shown, **keys)


# A forked process, as of AsyncVectorEnv, has none of its parent's threads, and would wait for them forever.
os.register_at_fork(after_in_child=partial(torch.set_num_threads, 1))
