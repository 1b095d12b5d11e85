"""The root config, the table of groups, rules across parts, and the conversion from Hydra's config to typed Python.

Defaults live in the dataclasses beside the parts; YAML files hold choices only. Nothing behind `typed` knows Hydra.
"""

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from esper.agent.base import AgentConfig, remedy
from esper.agent.table import AGENTS
from esper.buffer.base import BufferConfig
from esper.buffer.on_policy import RolloutConfig
from esper.buffer.window import WindowConfig
from esper.checkpoint import CheckpointsConfig
from esper.env.actions import TEMPOS
from esper.env.base import EnvConfig
from esper.env.growth_env import GrowthConfig
from esper.env.sandbox import SandboxConfig
from esper.governor.base import GovernorConfig
from esper.governor.off import NoGovernorConfig
from esper.governor.watchdog import StrictWatchdogConfig, TolerantWatchdogConfig, WatchdogConfig
from esper.grammar import read_device_keys
from esper.hosts.base import HostConfig
from esper.hosts.table import HOSTS
from esper.lifecycle.gates import GatesConfig, StrictConfig, check_gates, shortest_life
from esper.lifecycle.roles import Incubation
from esper.lifecycle.slots import (
    DeepConfig,
    EveryBlockConfig,
    InServiceConfig,
    OneConfig,
    OnePermanentConfig,
    OneSeedConfig,
    PostConfig,
    PreConfig,
    SlotsConfig,
    ThreeConfig,
)
from esper.measure.counterfactuals import CounterfactualsConfig
from esper.optimisers.adamw import AdamWConfig
from esper.optimisers.base import OptimiserConfig
from esper.optimisers.sgd import NesterovConfig, SGDConfig
from esper.pool.cluster import ClusterConfig, LocalConfig
from esper.pool.devices import DeviceConfig
from esper.pool.process_cluster import ProcessesConfig
from esper.pool.ray_cluster import RayClusterConfig
from esper.ranges import check_ranges, check_sizes
from esper.reward.modes import MODES, RewardConfig
from esper.seeds.blueprints.base import BlueprintConfig
from esper.seeds.blueprints.registry import BLUEPRINTS
from esper.sweeps import BlocksConfig, TuneConfig
from esper.task.base import TaskConfig
from esper.task.table import TASKS
from esper.telemetry.config import QuietConfig, TelemetryConfig
from esper.text import counted


class Chosen:
    """Base of the root config: the names of the chosen options, which are not a key of the config."""

    __slots__ = ("choices",)
    choices: dict[str, str]


@dataclass(kw_only=True, slots=True)
class Config(Chosen):
    """The root config: all settings of a run, constant during the run."""

    seed: int = 0
    """Root seed of all random streams, at least 0. Runs with the same random seed share all random numbers that their configs do
    not affect."""
    updates: int = 50
    """Number of learning steps of the controller, at least 1 [updates]. Higher: longer training."""
    hosts: int = 32
    """N, number of host networks trained in parallel, at least 1, and for PPO at least agent.minibatches. Higher: a less noisy
    gradient, costlier updates."""
    steps: int = 20
    """T, length of an episode, which is one training run of a host, at least 1 [host epochs]. Higher: more time for growth to pay
    off."""
    policy_seed: int | None = None
    """Random seed of the policy's initial weights and minibatches, at least 0; null: the value of seed. Runs that differ only in
    policy_seed train the same hosts."""
    resume: str | None = None
    """Folder of a run to resume, or null for a new run."""
    plugins: list[str] = field(default_factory=lambda: list[str]())
    """Modules with parts of your own, by import path or file, as in plugins=[my_parts] or plugins=[path/to/my_parts.py]. They are
    imported before options are chosen, so they must be given on the command line; the run records them."""
    checkpoints: CheckpointsConfig = field(default_factory=CheckpointsConfig)
    """Checkpoints that the run keeps."""
    counterfactuals: CounterfactualsConfig = field(default_factory=CounterfactualsConfig)
    """Measurements with seeds switched off, beyond leave-one-out."""
    env: EnvConfig = MISSING
    """Environment of the controller; chosen by the `env` group."""
    buffer: BufferConfig = MISSING
    """Storage of rollouts for a learner; chosen by the `buffer` group."""
    task: TaskConfig = MISSING
    """Data and objective of the hosts; chosen by the `task` group."""
    host: HostConfig = MISSING
    """Architecture of the hosts; chosen by the `host` group. Every task has a default."""
    optimiser: OptimiserConfig = MISSING
    """Optimiser of hosts and seeds, and the schedule of their learning rates; chosen by the `optimiser` group. Every task has a
    default."""
    slots: SlotsConfig = MISSING
    """Slots in use and the rules of a seed's life; chosen by the `slots` group."""
    gates: GatesConfig = MISSING
    """Conditions for a seed to enter its next stage; chosen by the `gates` group."""
    blueprint: dict[str, BlueprintConfig] = MISSING
    """Blueprints that can be planted; several are chosen at a time, as in blueprint=[norm,conv_light]."""
    devices: dict[str, DeviceConfig] = MISSING
    """Devices that share the hosts; several are chosen at a time, as in devices=[cuda:0,cuda:1]."""
    cluster: ClusterConfig = MISSING
    """Processes that train the hosts; chosen by the `cluster` group."""
    reward: RewardConfig = MISSING
    """Reward of the controller; chosen by the `reward` group."""
    agent: AgentConfig = MISSING
    """Controller of growth; chosen by the `agent` group."""
    governor: GovernorConfig = MISSING
    """Monitor of the hosts' health, which rolls hosts back; chosen by the `governor` group. Every task has a default."""
    telemetry: TelemetryConfig = MISSING
    """Records of the run; chosen by the `telemetry` group."""

    def choice(self, group: str) -> str:
        """Return the name of the chosen option of a group: as it was typed, else that of its class in the table."""
        kind = type(getattr(self, group))
        name = self.choices.get(group)
        # If a part was replaced after the choice by one of another class, use the name of that class.
        return name if name is not None and GROUPS[group].get(name, kind) is kind else table_name(group, kind)

    def replaced(self, **parts: Any) -> "Config":
        """Return a copy with other parts, whose other groups keep the names that were typed.

        Raises:
            ValueError: the parts do not fit together.
        """
        copy = replace(self, **parts)
        copy.choices = {**self.choices}  # the checks of a new config start without names
        return copy

    def title(self, done: int = 0) -> str:
        """Return the title of the run, one line, after `done` updates."""
        setting, reward = self.choice("env"), ""
        if "task" not in self.env.ignores:
            setting, reward = self.choice("task"), f"reward {self.choice('reward')}, "
        count = max(self.updates, done)
        size = f"{counted(count, 'update')} of {counted(self.hosts, 'host')} x {counted(self.steps, 'epoch')}"
        taught = f", taught by {self.agent.imitates}" if self.agent.imitates else ""
        return f"{self.choice('agent')} on {setting}: {size}, {reward}seed {self.seed}{taught}"

    def __post_init__(self) -> None:
        self.choices = {}
        self.plugins = [str(Path(name).absolute()) if name.endswith(".py") else name for name in self.plugins]
        check_sizes("", self)
        check_ranges("", self, {"[0, inf]": ["seed", "policy_seed"], "[1, inf]": ["updates", "hosts", "steps"]})
        if self.task.samples not in self.host.samples:
            fitting = [f"host={name}" for name, kind in HOSTS.items() if self.task.samples in kind.samples]
            raise ValueError(
                f"task={self.choice('task')} cannot take host={self.choice('host')}, which does not read "
                f"{self.task.samples}: leave host out for the task's default, or choose {' or '.join(fitting)}"
            )
        self.task.check_host(self.host)
        self.task.events.check_steps(self.steps)
        if self.host.frozen and not self.task.pretrain:
            remedy = "set task.pretrain to train them first, unless their class loads trained weights"
            warnings.warn(f"host.frozen=true freezes hosts as they are built: {remedy}", stacklevel=2)
        if self.policy_seed is not None and not self.agent.seeded:
            agent = self.choice("agent")
            warnings.warn(f"policy_seed={self.policy_seed} has no effect with agent={agent}: leave it out", stacklevel=2)
        if self.optimiser.micro_batches > self.task.batch_size:
            raise ValueError(
                f"optimiser.micro_batches={self.optimiser.micro_batches} exceeds "
                f"task.batch_size={self.task.batch_size}: lower optimiser.micro_batches"
            )
        for name, blueprint in self.blueprint.items():
            blueprint.check(f"blueprint.{name}")
        self.cluster.check_run(hosts=self.hosts, devices=self.devices)
        self.reward.check_run(hosts=self.hosts, twins=self.agent.num_twins)
        self.reward.check_slots(self.slots, self.steps)
        incubates = self.slots.incubation != Incubation.none
        names = self.env.blueprint_names(tuple(self.blueprint))
        self.agent.check_run(blueprints=names, steps=self.steps, hosts=self.hosts, incubates=incubates)
        self.agent.check_buffer(self.buffer, self.choice("buffer"))
        self.agent.check_slots(self.slots)
        self.env.check_run(slots=self.slots, heads=self.agent.heads, steps=self.steps)
        self._check_senses()
        self._check_gates()

    def _check_gates(self) -> None:
        """Raise ValueError if a gate can never open, and warn if no seed or no episode lasts until a seed is fossilized."""
        slots, gates = self.slots, self.gates
        check_gates(slots, gates, frozen=self.host.frozen, steady=not self.task.events.kinds)
        needed = shortest_life(slots, gates, TEMPOS.get(self.agent.heads.tempo, min(TEMPOS.values())))
        lower = [f"gates.{name}" for name, least in (("min_training", 1), ("min_blending", 0)) if getattr(gates, name) > least]
        remedy = f", or lower {' or '.join(lower)}" if lower else ""
        never = f"no seed can be fossilized: with these gates that takes {needed} host epochs, and"
        if needed > self.steps:
            warnings.warn(
                f"{never} an episode has steps={self.steps}: raise steps to well above {needed}{remedy}",
                stacklevel=3,
            )
        if 0 < slots.prune_after < needed - 1:
            warnings.warn(
                f"{never} slots.prune_after={slots.prune_after} removes every seed before that: raise it to well above "
                f"{needed}{remedy}",
                stacklevel=3,
            )

    def _check_senses(self) -> None:
        """Raise ValueError if what the controller needs is not observed, or is not there."""
        if isinstance(self.env, GrowthConfig) and self.env.timetable and not self.task.events.kinds:
            raise ValueError("env.timetable=true needs events, and task.events.kinds is empty: list some, or remove it")
        if unseen := self.agent.unseen(self.env):
            agent, env = self.choice("agent"), self.choice("env")
            raise ValueError(f"agent={agent} reads {unseen}, and this env={env} has none: {remedy(unseen, 'agent')}")


GROUPS: dict[str, dict[str, type]] = {
    "env": {"growth": GrowthConfig, "sandbox": SandboxConfig},
    "buffer": {"rollout": RolloutConfig, "window": WindowConfig},
    "task": TASKS,
    "host": HOSTS,
    "optimiser": {"sgd": SGDConfig, "nesterov": NesterovConfig, "adamw": AdamWConfig},
    "slots": {
        "one_seed": OneSeedConfig,
        "every_block": EveryBlockConfig,
        "all": EveryBlockConfig,
        "in_service": InServiceConfig,
        "one_permanent": OnePermanentConfig,
        "one": OneConfig,
        "three": ThreeConfig,
        "pre": PreConfig,
        "post": PostConfig,
        "deep": DeepConfig,
    },
    "gates": {"permissive": GatesConfig, "strict": StrictConfig},
    "blueprint": BLUEPRINTS,
    "cluster": {"local": LocalConfig, "processes": ProcessesConfig, "ray": RayClusterConfig},
    "devices": dict.fromkeys(["auto", "cpu", "cuda", *(f"cuda:{i}" for i in range(8))], DeviceConfig),
    "reward": cast(dict[str, type], MODES),
    "agent": AGENTS,
    "governor": {
        "watchdog": WatchdogConfig,
        "strict": StrictWatchdogConfig,
        "tolerant": TolerantWatchdogConfig,
        "off": NoGovernorConfig,
    },
    "telemetry": {"full": TelemetryConfig, "quiet": QuietConfig},
}
"""Group -> option -> dataclass. A new option is one line here, or a call of `esper.register`; tests iterate over this table."""


def standalone_agents() -> tuple[str, ...]:
    """Return the agents that act without training and without further keys: the baselines of every evaluation."""
    return tuple(name for name, config in GROUPS["agent"].items() if config.standalone)


def unknown_controller(key: str, name: str, known: Sequence[str]) -> str:
    """Return the error message for a controller that cannot be a baseline.

    Args:
        key: key of the command that names it.
        known: names that may be chosen.
    """
    if name in GROUPS["agent"]:
        return (
            f"{key}={name} may need training, or keys that are not set here: train it with agent={name}, or choose from "
            f"{', '.join(known)}; an agent of your own that needs neither says so by standalone = True in its config"
        )
    return f"{key}={name} is not known: choose from {', '.join(known)}{did_you_mean(name, list(known))}"


MANY = ("blueprint", "devices")
"""Groups of which several options may be chosen, as in devices=[cuda:0,cuda:1]."""

ALIASES = {"reward_mode": "reward"}
"""Second name of a group -> the group."""

FORMER = {"again": "aa_control", "rivals": "baselines", "catastrophes": "rollbacks", "agent.of": "agent.controller"}
"""Key or outcome in recorded commands and tables -> its name now."""

_BESIDE = Path(__file__).parent / "conf"
CONF = _BESIDE if _BESIDE.is_dir() else Path(__file__).parent.parent / "conf"
"""Folder of the YAML files: inside the package if installed from a wheel, else at the top of the checkout."""


class ConfigError(ValueError):
    """A command that cannot run. The message is one sentence for the user, with the remedy."""


BROUGHT = ("host", "optimiser", "governor", "reward", "slots", "blueprint")
"""Groups of which a task comes with default options."""


def first_set(*values: str | None) -> str | None:
    """Return the first value that is not null: the folder of a resumed run, else a new one."""
    return next((value for value in values if value is not None), None)


def store_option(group: str, name: str, kind: type) -> None:
    """Store one option, and its second name if its group has one, in Hydra's ConfigStore."""
    store = ConfigStore.instance()
    # A dict with one key lets Hydra merge the options of a list into dict[str, ...] of the root.
    node: Any = {name: kind} if group in MANY else kind
    if group == "task":
        brought = {other: getattr(kind, f"default_{other}") for other in BROUGHT}
        defaults = [{f"override /{other}": list(option) if other in MANY else option} for other, option in brought.items()]
        node = {"defaults": defaults, "task": kind}
        store.store(group=group, name=name, node=node, package="_global_")
    else:
        store.store(group=group, name=name, node=node)
    for alias in (alias for alias, meant in ALIASES.items() if meant == group):
        store.store(group=alias, name=name, node={"defaults": [{f"override /{group}": name}]}, package="_global_")


def _store_groups() -> None:
    """Store the root config and the table of groups in Hydra's ConfigStore."""
    read_device_keys()
    store = ConfigStore.instance()
    store.store(name="schema", node=Config)
    for group, options in GROUPS.items():
        for name, kind in options.items():
            store_option(group, name, kind)
    store.store(group="hydra/sweeper", name="esper_blocks", node=BlocksConfig)
    store.store(group="hydra/sweeper", name="esper_tuning", node=TuneConfig)
    OmegaConf.register_new_resolver("first_set", first_set, replace=True)


def did_you_mean(name: str, known: list[str]) -> str:
    """Return the end of a sentence that suggests the closest known name; empty if none is close."""
    close = get_close_matches(name, known, n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""


def root_key(override: str) -> str:
    """Return the group, or the first part of the key, that an override sets."""
    return re.split(r"[=.@:]", override.lstrip("+~"), maxsplit=1)[0].strip()


def renamed(key: str) -> str | None:
    """Return a sentence with the current name of a former key, or None."""
    return f"there is no key {key} any more: write {FORMER[key]}" if key in FORMER else None


def typed(cfg: DictConfig, choices: Mapping[str, Any] | None = None) -> Config:
    """Convert Hydra's config into dataclasses, so that every __post_init__ runs.

    Args:
        choices: chosen option by group, `hydra.runtime.choices`; by default, the names in the table.

    Raises:
        ConfigError: a value is missing, or a rule of a config is broken.
    """
    try:
        config = OmegaConf.to_object(cfg)
    except MissingMandatoryValue as error:
        key = str(getattr(error, "full_key", None) or error.key)
        options = f": choose one of {', '.join(GROUPS[key])}" if key in GROUPS else ""
        raise ConfigError(f"{key} is not set{options}") from error
    except (OmegaConfBaseException, ValueError) as error:  # a ValueError of a __post_init__ is always for the user
        raise ConfigError(" ".join(str(error).split())) from error
    config = cast(Config, config)
    config.choices = {group: name for group, name in (choices or {}).items() if group in GROUPS and isinstance(name, str)}
    return config


def table_name(group: str, kind: type) -> str:
    """Return the first name of a class in its group, or the class name if the table lacks it."""
    return next((name for name, other in GROUPS[group].items() if other is kind), kind.__name__)


_store_groups()
