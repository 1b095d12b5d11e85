"""Fused hosts as a vectorised environment of stable-baselines3, also for MaskablePPO and RecurrentPPO of sb3-contrib."""

# N hosts

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from esper.config import ConfigError
from esper.env.single import FINAL, of_host
from esper.wrappers.hosts import HostsEnv

try:
    from stable_baselines3.common.vec_env import VecEnv
except ImportError as error:
    raise ConfigError("esper.wrappers.sb3 needs stable-baselines3: pip install stable-baselines3") from error


class SB3VecEnv(VecEnv):
    """The hosts of `esper.make_vec_env`, which train as one program, for the algorithms of stable-baselines3.

    The info of a host is that of Esper's vector environment for this host. Where its episode ended, it also has its last
    observation (`terminal_observation`).
    """

    def __init__(self, envs: HostsEnv) -> None:
        """Wrap an environment, which must not be stepped elsewhere.

        Raises:
            ConfigError: it is not that of `esper.make_vec_env`.
        """
        if not isinstance(envs, HostsEnv):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"SB3VecEnv takes esper.make_vec_env(...), got a {type(envs).__name__}")
        self.envs = envs
        self.render_mode = envs.render_mode
        self._actions: npt.NDArray[np.int64] | None = None
        super().__init__(envs.num_envs, envs.single_observation_space, envs.single_action_space)
        self.metadata = envs.metadata

    def reset(self) -> Any:
        """Return the first observations of the next episode, or of the first one after `seed`.

        `set_options({"episode": 7})` chooses the episode of all hosts for the next call. `reset_infos` then holds the infos.
        """
        if any(options != self._options[0] for options in self._options):
            raise ConfigError("set_options gives hosts different options, but all hosts share an episode: give one dict")
        observation, info = self.envs.reset(seed=self._seeds[0], options=self._options[0] or None)
        self._reset_seeds()
        self._reset_options()
        self.reset_infos = [of_host(info, host) for host in range(self.num_envs)]
        return observation

    def step_async(self, actions: npt.NDArray[np.int64]) -> None:
        """Store the actions of the next step `[N, heads]`."""
        self._actions = actions

    def step_wait(self) -> tuple[Any, npt.NDArray[np.float32], npt.NDArray[np.bool_], list[dict[str, Any]]]:
        """Carry out the stored actions."""
        assert self._actions is not None, "call step_async() first"
        observation, reward_N, ended_N, _, info = self.envs.step(self._actions)
        infos: list[dict[str, Any]] = []
        for host, ended in enumerate(ended_N):
            shown = {name: value for name, value in info.items() if name not in FINAL and (ended or name != "final_info")}
            last = {"terminal_observation": info["final_obs"][host]} if ended else {}
            infos.append({"TimeLimit.truncated": False} | of_host(shown, host) | last)
        return observation, reward_N, ended_N, infos

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """Set the root seed of all hosts for the next `reset`."""
        self._seeds = [seed for _ in range(self.num_envs)]
        return self._seeds

    def close(self) -> None:
        """Stop the threads of the hosts."""
        self.envs.close()

    def get_images(self) -> Sequence[npt.NDArray[np.uint8]]:
        """Return a picture of each host."""
        return list(self.envs.render() or ())

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Return an attribute of the hosts' environment once for each host asked for."""
        return [getattr(self.envs, attr_name)] * len(self._asked(indices))

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Set an attribute of the environment, which all hosts share."""
        setattr(self.envs, attr_name, value)

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        """Call a method of the environment that returns one row per host, such as `action_masks`; return the rows asked for.

        Raises:
            ConfigError: it returns something else.
        """
        if method_name in ("reset", "step"):
            raise ConfigError(f"{method_name} of one host is not possible, since all train in lockstep: call that of SB3VecEnv")
        rows = getattr(self.envs, method_name)(*args, **kwargs)
        if rows is None:
            rows = [None] * self.num_envs
        if not isinstance(rows, list | tuple | np.ndarray) or len(rows) != self.num_envs:
            raise ConfigError(f"{method_name} returns no row for each host: call {method_name} of the attribute envs instead")
        return [rows[host] for host in self._asked(indices)]

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        """Return False for each host: wrappers of single environments do not apply."""
        return [False] * len(self._asked(indices))

    def _asked(self, indices: int | Iterable[int] | None) -> list[int]:
        return list(self._get_indices(indices))
