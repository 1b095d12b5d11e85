"""Checks of a config against this machine."""

import warnings
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from esper.checkpoint import Checkpoints, load_run
from esper.config import Config, ConfigError
from esper.env.foresight import feature_tables
from esper.env.growth_env import GrowthConfig
from esper.env.spec import EnvSpec
from esper.growth.compatibility import check_alike, check_host, check_seeds
from esper.hosts.base import segments_of, slot_specs
from esper.notices import UserNotice
from esper.pool.cluster import ClusterError
from esper.pool.devices import find_device, find_precision
from esper.pool.local import largest_shard
from esper.seeding import borrowed_stream
from esper.task.base import Task
from esper.task.instances import Instances, Split
from esper.task.loading import load_task
from esper.text import counted
from esper.training.estimate import check_memory
from esper.training.resume import check_data, find_checkpoint, no_checkpoint
from esper.training.run_folder import CHECKPOINTS
from esper.training.trained_agent import Teacher, find_teacher

PROBED = 3
"""Number of samples in the probe of hosts and seeds."""


def ready(config: Config, *, trains: bool = True, folder: Path | None = None) -> None:
    """Check that this machine can run a config: the run to resume, the teacher, the devices, the libraries of writers, the
    data, and slots and seeds of the host.

    Args:
        config: config of the run.
        trains: false for an evaluation, and for runs that may need their teacher no more.
        folder: folder of the run, which may have begun without `resume`; None if it is not known.

    Raises:
        ConfigError: this machine cannot run it. Only errors meant for the user are converted; a bug keeps its traceback.
    """
    if config.resume is not None and not any(Path(config.resume, CHECKPOINTS).glob("*.pt")):
        raise ConfigError(f"resume={no_checkpoint(config.resume)}")
    teacher = _find_teacher(config, folder) if trains else None
    try:
        config.cluster.ready()
        if not config.cluster.is_remote:  # else the workers check theirs
            _check_devices(config)
        config.telemetry.ready()
        check_memory(config)
        if "task" not in config.env.ignores:
            check_hosts(config, teacher)
    except (ValueError, ClusterError) as error:
        named = str(error).replace("devices.<name>", f"devices.{next(iter(config.devices))}")  # parts do not know the names
        raise ConfigError(named) from error


def _find_teacher(config: Config, folder: Path | None) -> Teacher | None:
    if config.agent.imitates is None:
        return None
    if config.resume is not None:
        return find_teacher(config, load_run(find_checkpoint(config.resume, "resume")))
    newest = Checkpoints(folder / CHECKPOINTS).latest() if folder else None
    return find_teacher(config, load_run(newest) if newest else None)


def _check_devices(config: Config) -> None:
    names: dict[tuple[str, int], str] = {}
    for name in config.devices:
        device = find_device(name)
        find_precision(name, config.devices[name].precision)
        other = names.setdefault((device.type, device.index or 0), name)
        if other != name:
            raise ConfigError(f"devices {other} and {name} are the same device on this machine: name it once")


def check_hosts(config: Config, teacher: Teacher | None = None) -> None:
    """Check that hosts and seeds can be fused, that they see nothing that hosts predict, and that the agents fit them.

    Raises:
        ValueError: they do not.
    """
    task = load_task(config.task, config.host)
    if config.resume is not None:
        check_data(load_run(find_checkpoint(config.resume, "resume")), {"data": task.data.fingerprint()})
    named = f"task={config.choice('task')} host={config.choice('host')}"
    host, same = (task.host(config.seed, Split.TRAINING, 0, 0) for _ in range(2))
    data, slots, members = task.data, slot_specs(host), largest_shard(config.hosts, config.devices)
    some = torch.arange(PROBED) % len(data.valid_y)
    wanted = (*data.valid_y[some].shape, data.num_classes)
    causal = data.predicts_next
    features = check_host(host, same, data.inputs(data.valid_x[some].contiguous()), wanted, members, named, causal=causal)
    check_alike([host, *_of_other_kinds(config, task)], members, named)
    _check_batch(config, host, data.inputs(data.valid_x[:1].contiguous()), named)
    names = tuple(slot.name for slot in slots)
    chosen_S = config.slots.chosen(names, config.choice("slots"))
    used = {slot: h for slot, h, chosen in zip(slots, features, chosen_S, strict=True) if chosen}
    check_seeds(config.blueprint, used, members, named, causal=causal)
    cap, blueprints = config.slots.max_seeds, tuple(config.blueprint)
    if cap > (room := len(used)):
        text = f"slots.max_seeds={cap} has no effect in hosts with {counted(room, 'slot')} in use"
        warnings.warn(text, UserNotice, stacklevel=2)
    config.counterfactuals.check_hosts(min(cap or len(used), len(used)))
    for agent in (config.agent, *([teacher] if teacher else [])):
        agent.check_hosts(slots=names, in_use=chosen_S, cap=cap, blueprints=blueprints, hosts=config.hosts)
    if teacher and isinstance(config.env, GrowthConfig):
        teacher.build(_layout(config, config.env, names))


def _of_other_kinds(config: Config, task: Task) -> list[nn.Module]:
    """Return a host of every kind of lesion but the first host's; none for healthy hosts."""
    first = task.instance(config.seed, Split.TRAINING, 0, 0)
    kinds = config.task.kinds_of(config.host) if config.task.instances is Instances.lesioned else ()
    with borrowed_stream():
        return [task.make_host(replace(first, lesion=kind)) for kind in dict.fromkeys(kinds) if kind != first.lesion]


def _check_batch(config: Config, host: nn.Module, x: Tensor, named: str) -> None:
    """Raise ConfigError if the smallest batch in training has one sample, and a batch norm of the host needs more."""
    batch = config.task.batch_size
    trains = config.task.pretrain or not config.host.frozen
    if not trains or batch // min(config.optimiser.micro_batches, batch) > 1:
        return
    try:
        with torch.no_grad():
            for segment in segments_of(host.train()):
                x = segment(x)
    except ValueError as error:
        pools = " or host.pools" if hasattr(config.host, "pools") else ""
        raise ConfigError(
            f"{named} cannot train on a single sample, since a batch norm would see one value per channel: raise "
            f"task.batch_size, or lower optimiser.micro_batches{pools}"
        ) from error


def _layout(config: Config, env: GrowthConfig, slots: tuple[str, ...]) -> EnvSpec:
    """Return the names of observations and actions; sizes of seeds are unknown."""
    host_table, slot_table = feature_tables(tuple(config.task.events.kinds) if env.timetable else (), tuple(config.blueprint))
    return EnvSpec(
        num_hosts=config.hosts,
        num_steps=config.steps,
        slot_names=slots,
        blueprint_names=tuple(config.blueprint),
        seed_params=((0,) * len(slots),) * len(config.blueprint),
        feature_names=host_table.names,
        slot_feature_names=slot_table.names,
        max_seeds=config.slots.max_seeds,
        feature_ranges=host_table.ranges,
        slot_feature_ranges=slot_table.ranges,
    )
