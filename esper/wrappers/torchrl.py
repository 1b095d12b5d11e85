"""Fused hosts as a TorchRL environment."""

# N hosts

from typing import Any, cast

import torch
from gymnasium import spaces

from esper.config import ConfigError
from esper.wrappers.hosts import HostsEnv

try:
    from tensordict import TensorDict, TensorDictBase
    from torchrl.data import Binary, Bounded, Categorical, Composite, MultiCategorical, Unbounded
    from torchrl.envs import EnvBase
except ImportError as error:
    raise ConfigError("esper.wrappers.torchrl needs TorchRL: pip install torchrl") from error


class TorchRLEnv(EnvBase):
    """The hosts of `esper.make_vec_env(..., flat=True)`, which train as one program, with a batch size of N.

    Keys: `observation` `[N, D]`; `action_mask` `[N, sum of head sizes]` for TorchRL's `ActionMask` (`esper.env.single.masks`);
    `action` `[N, heads]`; `reward`, `done` and `terminated` `[N, 1]`. With `discrete=True`, `action` is `[N]` and `action_mask`
    has an entry per action.
    """

    def __init__(self, envs: HostsEnv) -> None:
        """Wrap an environment, which must not be stepped elsewhere.

        Raises:
            ConfigError: it is not that of `esper.make_vec_env`, or its observations are not flat.
        """
        if not (isinstance(envs, HostsEnv) and envs.flat):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError("TorchRLEnv takes flat observations of several hosts: esper.make_vec_env(..., flat=True)")
        super().__init__(batch_size=torch.Size([envs.num_envs]))
        self.envs = envs
        self._seed: int | None = None
        self._ended_N = torch.zeros(envs.num_envs, dtype=torch.bool)
        """Hosts whose episode ended in the last step."""
        count = None if envs.actions is None else int(envs.actions.space.n)
        sizes: list[int] = list(envs.population.layout.head_sizes) if count is None else [count]
        batch, seen = torch.Size([envs.num_envs]), cast(spaces.Box, envs.observation_space)
        low, high = torch.from_numpy(seen.low), torch.from_numpy(seen.high)
        self.observation_spec = Composite(
            observation=Bounded(low=low, high=high, shape=low.shape, dtype=torch.float32),
            action_mask=Binary(shape=torch.Size([*batch, sum(sizes)]), dtype=torch.bool),
            shape=batch,
        )
        heads = MultiCategorical(sizes, shape=torch.Size([*batch, len(sizes)]))
        self.action_spec = heads if count is None else Categorical(count, shape=batch)
        self.reward_spec = Unbounded(shape=torch.Size([*batch, 1]))

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        """Return the first observations of new hosts, or what follows where episodes have ended.

        Raises:
            ConfigError: some hosts are to be reset, but not all, before their episodes end.
        """
        asked = None if tensordict is None else tensordict.get("_reset", None)
        some_N = torch.ones_like(self._ended_N) if asked is None else asked.reshape(-1)
        running_N, self._ended_N = some_N & ~self._ended_N, torch.zeros_like(self._ended_N)
        if running_N.any() and not some_N.all():
            raise ConfigError(
                f"host {int(running_N.nonzero()[0])} cannot be reset before its episode ends, since all hosts train in lockstep: "
                "reset all of them, and leave out what cuts episodes of single hosts, such as StepCounter(max_steps=...)"
            )
        fresh = running_N.any() or (asked is None and self.envs.population.time > 0)
        if fresh or (self._seed is not None and some_N.all()):
            self.envs.reset(seed=self._seed)
            self._seed = None
        return self._seen()

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Carry out one action per host."""
        _, reward_N, ended_N, _, info = self.envs.step(cast(torch.Tensor, tensordict["action"]).numpy())
        seen, ended_N1 = self._seen(), torch.from_numpy(ended_N)[:, None]
        self._ended_N = ended_N1[:, 0]
        if ended_N.any():
            last = cast(torch.Tensor, seen["observation"]).clone()
            for host in ended_N.nonzero()[0].tolist():
                last[host] = torch.from_numpy(info["final_obs"][host])
            seen["observation"] = last
        seen.update({"reward": torch.from_numpy(reward_N)[:, None], "done": ended_N1, "terminated": ended_N1.clone()})
        return seen

    def _seen(self) -> TensorDictBase:
        """Return the current observations and masks."""
        seen = {
            "observation": torch.from_numpy(self.envs.observation()),
            "action_mask": torch.from_numpy(self.envs.action_masks()),
        }
        return TensorDict(seen, batch_size=self.batch_size)

    def _set_seed(self, seed: int | None) -> None:
        """Set the root seed of all hosts for the next reset."""
        self._seed = seed
