"""A saved policy in Python: `esper.load_policy`."""

# N hosts, H heads

from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from esper.agent.base import Learner
from esper.agent.reading import step_number
from esper.buffer.transition import State
from esper.cli.transfer import transferred
from esper.config import ConfigError
from esper.env.actions import Head
from esper.env.spec import Array, EnvSpec, Observation, as_observation, observation_space
from esper.task.instances import Split
from esper.text import counted
from esper.training.config_io import from_plain
from esper.training.environment import build_env
from esper.training.resume import load_found
from esper.training.trained_agent import trained_agent
from esper.wrappers.build import check_num_envs
from esper.wrappers.hosts import HostsEnv

OBSERVED = tuple(entry.name for entry in fields(Observation))
"""Arrays of an observation."""


class SavedPolicy:
    """A trained policy that decides for the hosts of an environment; see `load_policy`."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        """
        Args:
            state: state of a run or of a saved policy.
        """
        self.config = from_plain(state["config"])
        """Configuration of its training."""
        self.updates: int = state["update"]
        self._trained: dict[str, Any] = state["agent"]
        self._agent: Learner | None = None
        self._spec: EnvSpec | None = None
        self._state: State = {}
        self._hosts = 0
        self._shapes: dict[str, tuple[int, ...]] = {}
        """Shape of each array of one host's observation."""
        self._random = np.random.default_rng()

    def make_vec_env(
        self,
        overrides: Sequence[str] = (),
        *,
        num_envs: int = 32,
        split: str = Split.HELD_OUT,
        render_mode: str | None = None,
    ) -> HostsEnv:
        """Return the environment that the policy was trained in, with other hosts.

        The policy then decides for this environment only: for several at a time, load it several times.

        Args:
            overrides: another task or other settings, as in `esper.evaluate`: `["task=mnist5k"]`.
            num_envs: number of hosts.
            split: `held_out`, or `training` for the hosts of its training.
            render_mode: `rgb_array` for pictures, None for none.

        Raises:
            ConfigError: an override does not fit, or the policy cannot decide in this environment.
        """
        if isinstance(overrides, str):
            raise ConfigError(f"overrides must be a list, got {overrides!r}: write [{overrides!r}]")
        check_num_envs(num_envs)
        if split not in list(Split):
            raise ConfigError(f"split must be {' or '.join(Split)}, got {split!r}")
        config = transferred(self.config, list(overrides)) if overrides else self.config
        env = HostsEnv.of(partial(build_env, config, split=Split(split), hosts=num_envs), render_mode=render_mode)
        layout, option = env.population.layout, config.choice("agent")
        agent = trained_agent(config.agent.acting(), self._trained, layout, seed=config.seed, option=option)
        if not isinstance(agent, Learner):
            raise ConfigError(f"agent={option} learns nothing, so there is no policy to load")
        self._agent, self._spec = agent, layout
        self._shapes = {name: space.shape or () for name, space in observation_space(layout).spaces.items()}
        self.start(num_envs)
        return env

    def start(self, num_envs: int, seed: int | None = None) -> None:
        """Forget the past: the hosts start new episodes.

        Args:
            num_envs: number of hosts.
            seed: seed of the random numbers by which actions are sampled; None draws one.
        """
        self._state = self._built()[0].start(num_envs)
        self._hosts = num_envs
        self._random = np.random.default_rng(seed)

    def act(
        self,
        observation: Mapping[str, Array],
        terminated: npt.NDArray[np.bool_] | None = None,
        *,
        greedy: bool = False,
    ) -> npt.NDArray[np.int64]:
        """Return one action per host `[N, H]`.

        Args:
            observation: what `reset` or `step` of the environment returned.
            terminated: what `step` returned with it; None after `reset`, where all hosts start new episodes.
            greedy: if true, take the most probable actions instead of sampling.

        Raises:
            ConfigError: the observation is not that of these hosts, or `terminated` is missing after a step.
        """
        agent, spec = self._built()
        starts_N = np.ones(self._hosts, dtype=np.bool_) if terminated is None else np.asarray(terminated, dtype=np.bool_)
        uniform = self._random.random((len(starts_N), len(Head)))
        if missing := [name for name in OBSERVED if name not in observation]:
            raise ConfigError(f"the observation lacks {', '.join(missing)}: give what reset or step of make_vec_env returned")
        seen = as_observation(observation)
        self._check(seen, len(starts_N))
        if terminated is None and step_number(seen, spec).any():
            raise ConfigError("terminated is missing: write act(observation, terminated), with what step returned")
        decision = agent.act(seen, self._state, is_init=starts_N, uniform=uniform, greedy=greedy)
        self._state = decision.state
        return decision.action

    def _check(self, seen: Observation, starts: int) -> None:
        """Raise ConfigError if observations are not those of the hosts that the policy decides for."""
        for name in OBSERVED:
            got, wanted = getattr(seen, name).shape, self._shapes[name]
            if got == wanted:
                raise ConfigError(f"{name} is that of a single host, without the axis of hosts: give {name}[None]")
            if got[1:] != wanted:
                raise ConfigError(
                    f"{name} has the shape {got}, but the policy reads [hosts, {', '.join(map(str, wanted))}]: give what reset "
                    "or step of make_vec_env returned"
                )
        if len(seen.features) != self._hosts or starts != self._hosts:
            raise ConfigError(
                f"the policy decides for {counted(self._hosts, 'host')}, got observations of {len(seen.features)} and terminated "
                f"of {starts}: call start(num_envs=...) for another number"
            )

    def _built(self) -> tuple[Learner, EnvSpec]:
        if self._agent is None or self._spec is None:
            raise ConfigError("call make_vec_env first: the sizes of the policy are those of its environment")
        return self._agent, self._spec


def load_policy(checkpoint: Path | str) -> SavedPolicy:
    """Return the trained policy in a folder that `save_policy` wrote, in a run's folder, or in a checkpoint file.

    Raises:
        ConfigError: there is no checkpoint, or it needs another version of Esper.
        CheckpointError: the file is damaged.
    """
    return SavedPolicy(load_found(str(checkpoint), "checkpoint")[1])
