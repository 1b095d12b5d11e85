"""Checks of a config that only this machine can answer."""

from pathlib import Path

from esper.config import CHECKPOINTS, Config, ConfigError
from esper.env.shard import find_device
from esper.env.shard_pool import largest_shard
from esper.growth.compatibility import check_fit, check_output
from esper.hosts.base import slot_specs
from esper.task.data import TaskError
from esper.task.instances import Split
from esper.task.loading import load_task


def ready(config: Config) -> None:
    """Check that this machine can run a config: the run to resume, the devices, the data, and slots and seeds of the host.

    Raises:
        ConfigError: it cannot. Only errors that parts raise for the user are converted; a bug keeps its traceback.
    """
    if config.resume is not None and not Path(config.resume).is_dir():
        raise ConfigError(f"resume={config.resume} is no folder: name the folder of a run, or leave resume out")
    if config.resume is not None and not any(Path(config.resume, CHECKPOINTS).glob("*.pt")):
        raise ConfigError(f"resume={config.resume} holds no checkpoint: name the folder that esper.train printed")
    names: dict[tuple[str, int], str] = {}
    for name in config.devices:
        try:
            device = find_device(name)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        other = names.setdefault((device.type, device.index or 0), name)
        if other != name:
            raise ConfigError(f"devices {other} and {name} are the same device on this machine: name it once")
    if "task" in config.env.ignores:
        return
    try:
        task = load_task(config.task, config.host)
    except TaskError as error:
        raise ConfigError(str(error)) from error
    named = f"task={config.choice('task')} host={config.choice('host')}"
    try:
        host = task.host(config.seed, Split.TRAINING, 0, 0)
        slots = slot_specs(host)
        data = task.data
        check_output(host, data.inputs(data.valid_x[:2]), (*data.valid_y[:2].shape, data.num_classes), named)
        chosen_S = config.slots.chosen(tuple(slot.name for slot in slots), config.choice("slots"))
        used = [slot for slot, chosen in zip(slots, chosen_S, strict=True) if chosen]
        members = largest_shard(config.hosts, config.devices)
        check_fit(host, config.blueprint, used, members, named)
        there = tuple(slot.name for slot in slots)
        cap, offered = config.slots.max_seeds, tuple(config.blueprint)
        config.counterfactuals.check_hosts(min(cap or len(used), len(used)))
        config.agent.check_hosts(slots=there, in_use=chosen_S, cap=cap, blueprints=offered, hosts=config.hosts)
    except ValueError as error:
        raise ConfigError(str(error)) from error
