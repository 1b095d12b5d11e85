"""The environment of a config."""

from esper.config import Config
from esper.env.base import Environment, EnvParts
from esper.task.instances import Split
from esper.training.estimate import check_memory


def build_env(
    config: Config,
    *,
    split: Split,
    hosts: int | None = None,
    num_twins: int = 1,
    test_at_end: bool = False,
    test_online: bool = False,
    autoreset: bool = True,
) -> Environment:
    """Return the environment of a config.

    Args:
        hosts: number of hosts to compare controllers on, all paid by the mode of the run; None for the hosts of the training run,
            which `reward.per_host` may pay differently.
        autoreset: see `Environment`.

    Raises:
        ConfigError: the hosts do not fit into the memory of this machine.
    """
    check_memory(config, hosts)
    parts = EnvParts(
        task=config.task,
        host=config.host,
        optimiser=config.optimiser,
        slots=config.slots,
        gates=config.gates,
        heads=config.agent.heads,
        blueprints=config.blueprint,
        reward=config.reward,
        governor=config.governor,
        devices=config.devices,
        cluster=config.cluster,
        counterfactuals=config.counterfactuals,
        gamma=config.agent.gamma,
        num_hosts=hosts or config.hosts,
        num_steps=config.steps,
        seed=config.seed,
        split=split,
        num_twins=num_twins,
        trains=split is Split.TRAINING and hosts is None,
        test_at_end=test_at_end,
        test_online=test_online,
    )
    env = config.env.build(parts)
    env.autoreset = autoreset
    return env
