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
        self._next: TensorDictBase | None = None
        """Observations that follow the episodes which have just ended."""
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
        """Return the first observations of new hosts, or what follows where episodes have ended."""
        everywhere = tensordict is None or "_reset" not in tensordict.keys()  # noqa: SIM118  (a TensorDict iterates over rows)
        if self._next is None or self._seed is not None or (everywhere and self.envs.population.time):
            self.envs.reset(seed=self._seed)
            self._seed, self._next = None, self._seen()
        seen, self._next = self._next, None
        return seen

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Carry out one action per host."""
        _, reward_N, ended_N, _, info = self.envs.step(cast(torch.Tensor, tensordict["action"]).numpy())
        seen, ended_N1 = self._seen(), torch.from_numpy(ended_N)[:, None]
        if ended_N.any():
            self._next = seen.copy()
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
