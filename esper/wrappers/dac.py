"""Hosts as a benchmark of DACBench: structural actions, beside its benchmarks of hyperparameters (Eimer et al., IJCAI 2021)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from esper.config import ConfigError
from esper.task.instances import Split
from esper.wrappers.hosts import HostEnv

try:
    from dacbench import AbstractBenchmark, AbstractEnv  # pyright: ignore[reportMissingImports]
    from dacbench.abstract_benchmark import objdict  # pyright: ignore[reportMissingImports]
except ImportError as error:
    raise ConfigError("esper.wrappers.dac needs DACBench: pip install dacbench") from error

INSTANCES = 100
"""Hosts of the training set, and of the test set."""
INFO = {
    "identifier": "morphogenesis",
    "name": "Growth of networks while they train",
    "reward": "Reward of the host epoch, by default the change of validation accuracy minus a price of parameters",
    "state_description": "Features of the host, of each slot and of the time, and the mask of legal actions, as one vector",
    "action_description": ["operation", "slot", "blueprint", "style", "tempo", "alpha target", "alpha speed", "alpha curve"],
}


@dataclass(frozen=True)  # without slots: DACBench reads __dict__
class GrowthInstance:
    """One host. Its weights, data and defects follow from the episode, from the root seed in the overrides (0 without
    `seed=`), and from whether the test set is in use, whose hosts no policy trains on."""

    episode: int


class DACEnv(AbstractEnv):  # pyright: ignore[reportUntypedBaseClass]
    """One host at a time, that of a `GrowthInstance`.

    DACBench's own seed changes nothing in a host. `reset` goes to the next instance, or to `instance_id` of its options.
    """

    def __init__(self, config: Any) -> None:
        """Build the environment of a `GrowthBenchmark`'s config."""
        self._hosts = dict[str, HostEnv]()
        self._overrides = [str(override) for override in config.get("overrides", ())]
        self.test = False  # read before DACBench sets it
        host = self._host()
        spaces = {"observation_space": host.observation_space, "action_space": host.action_space}
        super().__init__(objdict(config | spaces | {"cutoff": host.num_steps}))

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start the newborn host of the next instance; with a seed, of the first one, so that equal seeds give equal episodes."""
        if seed is not None:
            self.instance_index = -1
        self.reset_(seed=seed, options=options)
        return self._host().reset(options={"episode": self.instance.episode})

    def step(self, action: npt.NDArray[np.int64]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Carry out an action and train the host for an epoch; see `HostEnv.step`. A rollback ends the episode."""
        self.step_()
        return self._host().step(action)

    def close(self) -> None:
        """Stop the threads of the hosts."""
        for host in self._hosts.values():
            host.close()

    def _host(self) -> HostEnv:
        """Return the host environment of the set in use, built when it is first needed."""
        split = Split.HELD_OUT if self.test else Split.TRAINING
        if split not in self._hosts:
            self._hosts[split] = HostEnv(self._overrides, preset=["seed=0"], flat=True, split=split)
        return self._hosts[split]


class GrowthBenchmark(AbstractBenchmark):  # pyright: ignore[reportUntypedBaseClass]
    """Instances of `DACEnv`: `INSTANCES` training hosts, and as many held-out hosts as the test set."""

    def __init__(self, config_path: str | None = None, config: Any = None, *, overrides: Sequence[str] = ()) -> None:
        """
        Args:
            config_path: file that `save_config` wrote; None for none.
            config: config with keys of DACBench's, such as `instance_set` and `instance_update_func`.
            overrides: what runs, as in `esper.make_env`: `["task=digits_drift", "reward=online"]`.

        Raises:
            ConfigError: overrides are given both here and in the config.
        """
        super().__init__(config_path, config)
        held = self.config or objdict()
        if len(overrides) and len(held.get("overrides", ())):
            raise ConfigError("overrides are given twice: leave them out here, or in the config")
        instances = {number: GrowthInstance(number) for number in range(INSTANCES)}
        defaults = {"instance_set": instances, "test_set": dict(instances), "seed": 0, "benchmark_info": INFO}
        chosen = {"overrides": [*overrides]} if len(overrides) else {}  # DACBench reads no empty list
        self.config = objdict(defaults | {"reward_range": (-np.inf, np.inf)} | dict(held) | chosen)

    def serialize_config(self) -> dict[str, Any]:
        """Return the config as plain values; the instances are left out, as DACBench does with its own."""
        return {key: value for key, value in super().serialize_config().items() if key != "test_set"}

    def get_environment(self) -> Any:
        """Return the environment with the current config, in the registered wrappers."""
        env: Any = DACEnv(self.config)
        for wrap in self.wrap_funcs:
            env = wrap(env)
        return env

    def get_benchmark(self, seed: int = 0) -> Any:
        """Return the environment for an experiment of DACBench's runner, with this seed of DACBench's."""
        self.set_seed(seed)
        return self.get_environment()
