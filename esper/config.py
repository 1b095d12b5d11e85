"""Root config, the table of groups, the rules across parts, and the one door from Hydra to typed Python.

Defaults live in the dataclasses beside the parts; YAML holds choices only. Past `typed` nothing knows Hydra.
"""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from esper.agent.base import AgentConfig
from esper.agent.ppo.config import PPOConfig, PPOMLPConfig
from esper.agent.scripted.base import RandomConfig, WaitConfig
from esper.agent.scripted.greedy import GreedyPotentialConfig
from esper.agent.scripted.heuristic import HeuristicConfig
from esper.agent.scripted.periodic import PeriodicConfig
from esper.agent.scripted.replay import ReplayConfig
from esper.agent.scripted.schedule import ScheduleConfig
from esper.agent.search import BestOfRandomConfig
from esper.env.actions import TEMPOS
from esper.env.shard import DeviceConfig, find_device
from esper.env.shard_pool import largest_shard
from esper.governor.base import GovernorConfig
from esper.governor.off import NoGovernorConfig
from esper.governor.watchdog import StrictWatchdogConfig, WatchdogConfig
from esper.growth.compatibility import check_fit
from esper.hosts.base import slot_specs
from esper.lifecycle.gates import GatesConfig, StrictConfig
from esper.lifecycle.operations import shortest_life
from esper.lifecycle.roles import Incubation
from esper.lifecycle.slots import (
    DeepConfig,
    EveryBlockConfig,
    OneConfig,
    OneSeedConfig,
    PostConfig,
    PreConfig,
    SlotsConfig,
    ThreeConfig,
)
from esper.measure.counterfactuals import CounterfactualsConfig
from esper.reward.modes import MODES, RewardConfig
from esper.seeds.blueprints.base import BlueprintConfig
from esper.seeds.blueprints.registry import BLUEPRINTS
from esper.task.base import TaskConfig
from esper.task.data import TaskError
from esper.task.instances import Split
from esper.task.table import TASKS
from esper.telemetry.config import QuietConfig, TelemetryConfig


@dataclass(kw_only=True, slots=True)
class Config:
    """One run: everything a training needs to know, and nothing that changes while it runs."""

    seed: int = 0
    """Root of every random stream, 0 or more. Runs with the same seed share all that their configs do not change."""
    updates: int = 50
    """How often the controller learns before the run ends, 1 or more [updates]. More: longer, and better trained."""
    hosts: int = 32
    """N, host networks that train side by side, 1 or more. More: a steadier gradient, and each update costs more."""
    steps: int = 20
    """T, length of one host's training run, 1 or more [host epochs]. Longer: growth has more time to pay for itself."""
    policy_seed: int | None = None
    """Seed of the policy's first weights and of the order in which it learns from its hosts, 0 or more; null takes seed. Runs
    that differ in it alone meet the same hosts."""
    resume: str | None = None
    """Folder of an earlier run to go on with, or null for a new one."""
    counterfactuals: CounterfactualsConfig = field(default_factory=CounterfactualsConfig)
    """What is measured with seeds switched off, beyond leave-one-out."""
    task: TaskConfig = MISSING
    """What the hosts learn; chosen by the `task` group."""
    slots: SlotsConfig = MISSING
    """Where seeds may be planted and how they live; chosen by the `slots` group."""
    gates: GatesConfig = MISSING
    """What a seed must have shown before it may go on; chosen by the `gates` group."""
    blueprint: dict[str, BlueprintConfig] = MISSING
    """What a seed may be; several are chosen at a time, as in blueprint=[norm,conv_light]."""
    devices: dict[str, DeviceConfig] = MISSING
    """Where hosts train; several are chosen at a time, as in devices=[cuda:0,cuda:1], and share the hosts."""
    reward: RewardConfig = MISSING
    """What the controller is paid for; chosen by the `reward` group."""
    agent: AgentConfig = MISSING
    """Who controls growth; chosen by the `agent` group."""
    governor: GovernorConfig = MISSING
    """Who watches over the hosts' health; chosen by the `governor` group."""
    telemetry: TelemetryConfig = MISSING
    """What is written down, and where; chosen by the `telemetry` group."""

    def __post_init__(self) -> None:
        for name, seed in (("seed", self.seed), ("policy_seed", self.policy_seed)):
            if seed is not None and seed < 0:
                raise ValueError(f"{name} must be 0 or more, got {seed}")
        for name in ("updates", "hosts", "steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more, got {getattr(self, name)}")
        if self.hosts < len(self.devices):
            raise ValueError(
                f"hosts={self.hosts} cannot be dealt to {len(self.devices)} devices ({', '.join(self.devices)}): "
                f"raise hosts to at least {len(self.devices)}, or name fewer devices"
            )
        if isinstance(self.agent, PPOConfig) and self.agent.minibatches > self.hosts:
            raise ValueError(
                f"agent.minibatches={self.agent.minibatches} exceeds hosts={self.hosts}, and a minibatch is made of whole hosts: "
                f"set agent.minibatches to at most {self.hosts}"
            )
        if isinstance(self.agent, PPOConfig) and self.hosts % self.agent.twins:
            raise ValueError(
                f"hosts={self.hosts} is no multiple of agent.twins={self.agent.twins}, and twins come together: "
                f"set hosts to {-(-self.hosts // self.agent.twins) * self.agent.twins}, or agent.twins=1 agent.baseline=critic"
            )
        self.reward.check_run(hosts=self.hosts, twins=self.agent.twins if isinstance(self.agent, PPOConfig) else 1)
        incubates = self.slots.incubation != Incubation.none
        self.agent.check_run(blueprints=tuple(self.blueprint), steps=self.steps, incubates=incubates)
        needed = shortest_life(self.slots, self.gates, TEMPOS.get(self.agent.heads.tempo, min(TEMPOS.values())))
        if needed > self.steps:
            warnings.warn(
                f"no seed can be fossilized: with these gates that takes {needed} host epochs, and an episode has "
                f"steps={self.steps}: raise steps to well above {needed}, or lower gates.min_training or gates.min_blending",
                stacklevel=2,
            )


BLOCK_SWEEPER = "hydra_plugins.esper_sweeps.BlockSweeper"


@dataclass(kw_only=True, slots=True)
class BlocksConfig:
    """An experiment in blocks, run by `sweep=ab`; see `esper.lab.design`."""

    _target_: str = BLOCK_SWEEPER
    arms: Any = None
    """Arms to compare: values of one key, as in 'reward: shaped,sparse', or overrides by the name of the arm."""
    blocks: int = 12
    """Runs per arm, at least 1. Higher: smaller differences are detected. A verdict takes 10."""
    root: int = 0
    """Root seed of the blocks and of the order of runs, at least 0."""
    aa_control: bool = True
    """If true, run the first arm a second time with another policy seed, as an A/A control."""
    preregistration: str | None = None
    """Text file with the question, outcome and decision rule. The experiment keeps a copy, and its report shows it."""


TUNE_SWEEPER = "hydra_plugins.esper_sweeps.TuneSweeper"


@dataclass(kw_only=True, slots=True)
class TuneConfig:
    """A tuning against a baseline, run by `sweep=tune`; see `esper.lab.tuning`."""

    _target_: str = TUNE_SWEEPER
    tune: Any = None
    """Ranges or choices of keys, as in 'agent.learning_rate: 1e-4..1e-2 log, agent.hidden: 32|64|128'."""
    trials: int = 20
    """Sets of values to try, at least 1. Higher: a better result, longer tuning."""
    blocks: int = 3
    """Runs per set of values, and of the baseline, on shared seeds, at least 1. Higher: less noise per trial."""
    root: int = 0
    """Root seed of the blocks and of the proposed values, at least 0."""
    outcome: str = "validation"
    """Outcome to optimise, one of those of esper.compare. What is chosen by test accuracy can no longer be tested by it."""
    score_hosts: int = 96
    """Held-out hosts that each policy grows, at least 2. Higher: less noise per run, longer scoring."""
    at_once: int = 1
    """Trials that start together, at least 1, for launchers that run more than blocks runs at a time. Higher: each proposal knows
    fewer of the others."""


SWEEPS: dict[str, type] = {"ab": BlocksConfig, "tune": TuneConfig}
"""Prefix of a sweep's name -> its keys, typed beside those of the runs, as in blocks=12."""

RENAMED = {"again": "aa_control", "plan": "preregistration", "judge_hosts": "score_hosts", "rivals": "baselines"}
"""Former name of a key of sweeps, esper.compare or esper.evaluate -> its name."""


GROUPS: dict[str, dict[str, type]] = {
    "task": TASKS,
    "slots": {
        "one_seed": OneSeedConfig,
        "every_block": EveryBlockConfig,
        "all": EveryBlockConfig,
        "one": OneConfig,
        "three": ThreeConfig,
        "pre": PreConfig,
        "post": PostConfig,
        "deep": DeepConfig,
    },
    "gates": {"permissive": GatesConfig, "strict": StrictConfig},
    "blueprint": BLUEPRINTS,
    "devices": dict.fromkeys(["auto", "cpu", "cuda", *(f"cuda:{i}" for i in range(8))], DeviceConfig),
    "reward": cast(dict[str, type], MODES),
    "agent": {
        "ppo": PPOConfig,
        "ppo_mlp": PPOMLPConfig,
        "heuristic": HeuristicConfig,
        "greedy_potential": GreedyPotentialConfig,
        "random": RandomConfig,
        "wait": WaitConfig,
        "schedule": ScheduleConfig,
        "periodic": PeriodicConfig,
        "best_of_random": BestOfRandomConfig,
        "replay": ReplayConfig,
    },
    "governor": {"watchdog": WatchdogConfig, "strict": StrictWatchdogConfig, "off": NoGovernorConfig},
    "telemetry": {"full": TelemetryConfig, "quiet": QuietConfig},
}
"""Group -> option -> dataclass. A new option is one line here; the tests iterate over this table."""

UNTRAINED = ("heuristic", "greedy_potential", "random", "wait", "periodic")
"""Agents that need neither training nor to be told what to do."""

MANY = ("blueprint", "devices")
"""Groups of which several options are chosen at a time, as in devices=[cuda:0,cuda:1]."""

ALIASES = {"reward_mode": "reward"}
"""Groups that are a second name of another group."""

_BESIDE = Path(__file__).parent / "conf"
CONF = _BESIDE if _BESIDE.is_dir() else Path(__file__).parent.parent / "conf"
"""Folder of the YAML files: inside the package in an installed wheel, at the top of a checkout."""


CHECKPOINTS = "checkpoints"
"""Folder of the checkpoints within a run's folder."""


class ConfigError(ValueError):
    """What was asked for cannot be run. The message is one sentence for the person who asked, with the remedy."""


def first_set(*values: str | None) -> str | None:
    """The first value that is not null: how a resumed run finds its old folder and a new run makes one."""
    return next((value for value in values if value is not None), None)


def register() -> None:
    """Puts the table into Hydra's store. Calling it again changes nothing."""
    store = ConfigStore.instance()
    store.store(name="schema", node=Config)
    for group, options in GROUPS.items():
        for name, node in options.items():
            # A dict with one key lets Hydra merge the options of a list into dict[str, ...] of the root.
            store.store(group=group, name=name, node={name: node} if group in MANY else node)
    for alias, group in ALIASES.items():
        for name in GROUPS[group]:
            choice = {"defaults": [{f"override /{group}": name}]}
            store.store(group=alias, name=name, node=choice, package="_global_")
    store.store(group="hydra/sweeper", name="esper_blocks", node=BlocksConfig)
    store.store(group="hydra/sweeper", name="esper_tuning", node=TuneConfig)
    OmegaConf.register_new_resolver("first_set", first_set, replace=True)


def did_you_mean(word: str, words: list[str]) -> str:
    """The end of a sentence that asks for the closest of `words`; empty where none is close."""
    close = get_close_matches(word, words, n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""


def unknown_key(key: str, siblings: list[str], cfg: DictConfig) -> str:
    """A sentence about a key that does not exist: the closest one that does, and the keys that stand beside it."""
    where, _, name = key.rpartition(".")
    elsewhere = [path for path in _paths(cfg) if path.rpartition(".")[2] == name and path != key]
    hint = f"; did you mean {elsewhere[0]}?" if elsewhere else did_you_mean(name, siblings)
    return f"there is no key {key}: {where or 'the config'} has {', '.join(siblings) or 'no keys'}{hint}"


def _paths(cfg: DictConfig, path: str = "") -> Iterator[str]:
    """Every dotted key of a config, without what is missing or refers elsewhere."""
    for key in map(str, cfg):
        yield f"{path}{key}"
        if not (OmegaConf.is_missing(cfg, key) or OmegaConf.is_interpolation(cfg, key)):
            child: Any = cfg[key]
            if isinstance(child, DictConfig):
                yield from _paths(child, f"{path}{key}.")


def stray_key(cfg: DictConfig) -> str | None:
    """A sentence about the first key that no dataclass declares (Hydra lets `+key=1` add one), or None."""
    for path in _paths(cfg):
        where, _, key = path.rpartition(".")
        declared = OmegaConf.get_type(OmegaConf.select(cfg, where) if where else cfg)
        if is_dataclass(declared) and key not in (known := [field.name for field in fields(declared)]):
            return unknown_key(path, known, cfg)
    return None


def typed(cfg: DictConfig) -> Config:
    """The one door from Hydra to Python: builds the dataclasses, so that every __post_init__ runs.

    Raises:
        ConfigError: a key is unknown, a value is missing, or a rule of a config is broken.
    """
    if sentence := stray_key(cfg):
        raise ConfigError(sentence)
    try:
        config = OmegaConf.to_object(cfg)
    except MissingMandatoryValue as error:
        key = str(getattr(error, "full_key", None) or error.key)
        options = f": choose one of {', '.join(GROUPS[key])}" if key in GROUPS else ""
        raise ConfigError(f"{key} is not set{options}") from error
    except OmegaConfBaseException as error:
        raise ConfigError(" ".join(str(error).split())) from error
    except ValueError as error:  # by house rule a ValueError of a __post_init__ is written for people
        raise ConfigError(str(error)) from error
    return cast(Config, config)


def option(group: str, node: object) -> str:
    """The name of the option of a group that a config of it is."""
    return next(name for name, kind in GROUPS[group].items() if kind is type(node))


def ready(config: Config) -> None:
    """Asks what only this machine can say: are devices, data and the run to resume here, does the host have the slots?

    Raises:
        ConfigError: no. Only what the parts raise for people is turned into it; a fault of ours keeps its traceback.
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
    try:
        task = config.task.build()
    except TaskError as error:
        raise ConfigError(str(error)) from error
    host = task.host(config.seed, Split.TRAINING, 0, 0)
    slots = slot_specs(host)
    try:
        chosen_S = config.slots.chosen(tuple(slot.name for slot in slots))
        used = [slot for slot, chosen in zip(slots, chosen_S, strict=True) if chosen]
        members = largest_shard(config.hosts, config.devices)
        check_fit(host, config.blueprint, used, members, f"task={option('task', config.task)}")
        there = tuple(slot.name for slot in slots)
        cap, offered = config.slots.max_seeds, tuple(config.blueprint)
        config.counterfactuals.check_hosts(min(cap or len(used), len(used)))
        config.agent.check_hosts(slots=there, in_use=chosen_S, cap=cap, blueprints=offered, hosts=config.hosts)
    except ValueError as error:
        raise ConfigError(str(error)) from error
