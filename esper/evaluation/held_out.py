"""Evaluation of a controller on held-out hosts, beside other controllers.

Every controller grows the same hosts with the same data orders. Their random streams differ from those of training. Accuracy is
that of the committed network, host and fossils, on the test split of the data, which nothing else uses.
"""

# N hosts

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from esper.agent.base import Controller
from esper.agent.scripted.replay import Replay
from esper.agent.scripted.schedule import ScheduleConfig
from esper.cli.transfer import changes, relocated, transferred
from esper.config import GROUPS, Config, ConfigError, root_key, standalone_agents, unknown_controller
from esper.env.base import Environment, EpisodeRecord
from esper.evaluation.journal import Journal
from esper.evaluation.metered import Metered
from esper.evaluation.outcomes import ONLINE, HostOutcomes
from esper.evaluation.progress import Progress
from esper.lifecycle.gates import GatesConfig
from esper.lifecycle.roles import Fossils, Incubation
from esper.lifecycle.slots import GATES, Isolation
from esper.task.instances import Split
from esper.task.kinds import condensed
from esper.training.config_io import from_plain
from esper.training.environment import build_env
from esper.training.estimate import check_memory
from esper.training.play import play
from esper.training.provenance import warn_of_changed_parts
from esper.training.resume import load_found, run_of, warn_of_other_data
from esper.training.trained_agent import trained_agent

ORACLE = "oracle schedule by kind"
"""Name of the best schedule of one seed, planted in the first epoch, for each kind of host, chosen on other hosts."""
EARLY = (
    "plant in the first host epoch only, so they are weak references in this task, whose events come later; also train "
    "agent=best_of_random, agent=schedule_bandit and agent=event_oracle, which choose when to plant"
)
"""What to say about schedules, oracle and static net in a task with events."""
ENOUGH = 4
"""Hosts that a kind needs for a schedule of its own. More: better choices, fewer such kinds."""
POLICIES = ("policy", "policy_greedy")
"""The controller of the run, with sampled and with most probable actions."""
REPLAY = "replay"
"""The topologies that `policy` kept at the end, grown from the start on the same hosts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """The best schedules of one seed, or `wait`: those with the highest mean return, or validation accuracy."""

    best: str
    """The best one over all hosts, as in `conv_light in r0c1`."""
    for_kind: dict[str, str]
    """The best one for each kind of host: for every `condensed` kind, and for exact kinds with at least `ENOUGH` hosts."""
    flops: float
    """FLOPs of the search: training and validating all hosts under every schedule."""
    seconds: float
    """Time of the search [s]."""


class Evaluation:
    """A trained agent and other controllers on the same held-out hosts."""

    def __init__(
        self,
        config: Config,
        agent_state: Mapping[str, Any],
        *,
        hosts: int,
        episode: int = 0,
        online: bool | None = False,
        overrides: Sequence[str] = (),
        env_state: dict[str, Any] | None = None,
        updates: int = 0,
    ) -> None:
        """Build the held-out hosts.

        Args:
            config: config of the training run.
            agent_state: state of the trained agent, empty for a controller that does not learn.
            hosts: number of held-out hosts, at least 2.
            episode: index of the set of held-out hosts, at least 0.
            online: if true, measure `ONLINE` as well; None: if the reward pays the accuracy of every epoch.
            overrides: overrides of `config`, as for esper.train, that evaluate on another task or with other settings.
            env_state: state of the training environment, such as its measured latency; with any override it is measured again.
            updates: updates of the agent, for titles.

        Raises:
            ConfigError: an override or the agent does not fit these hosts.
        """
        torch.set_num_threads(1)
        self.config = transferred(config, list(overrides)) if overrides else config
        self.transfer = changes(config, self.config, list(overrides))
        self.agent_state, self.hosts, self.episode, self.updates = dict(agent_state), hosts, episode, updates
        try:
            self.config.agent.check_evaluation(seed=self.config.seed, episode=episode)
            self.config.cluster.check_run(hosts=hosts, devices=self.config.devices)
            check_memory(self.config, hosts)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        pays = "task" not in self.config.env.ignores and ONLINE in self.config.reward.build(gamma=self.config.agent.gamma).names
        self.online = pays if online is None else online
        self.headline = ONLINE if pays and self.online else "accuracy"
        """Outcome to show beside the return: what the reward pays."""
        self.progress: Progress | None = None
        """Shows which controller grows the hosts, if set."""
        self.journal: Journal | None = None
        """Keeps the outcomes of every controller until the evaluation is written, if set."""
        self.checkpoint, self.digest = Path(), ""
        """The file that was loaded, and the digest of what was read; a training that goes on may have removed it since."""
        self.unseen = 0
        """Number of hosts whose kind was not among those that the last oracle was chosen on."""
        try:
            self.env = self._built(self.config)
        except ValueError as error:  # such as a host class that has moved
            raise ConfigError(str(error)) from error
        if env_state is not None and not overrides:
            self.env.prepare(env_state)

    @staticmethod
    def load(
        checkpoint: str, *, hosts: int, episode: int = 0, online: bool | None = False, overrides: Sequence[str] = ()
    ) -> "Evaluation":
        """Build the evaluation of a checkpoint: a file, or the newest one in the folder of a run. A new path of the same data is
        no transfer."""
        path, state, digest = load_found(checkpoint, "checkpoint")
        config, overrides = relocated(from_plain(state["config"]), overrides, state["hparams"].get("data"))
        found = Evaluation(
            config,
            state["agent"],
            hosts=hosts,
            episode=episode,
            online=online,
            overrides=overrides,
            env_state=state["env"],
            updates=state["update"],
        )
        found.checkpoint, found.digest = path, digest
        warn_of_changed_parts(run_of(path))
        if not any(root_key(override) in ("task", "host") for override in overrides):
            warn_of_other_data(state, found.env.hparams())
        return found

    def measure(self, latency: dict[str, Any] | None = None) -> dict[str, Any] | None:
        """Return the latency, which is measured now if the reward needs it and none is given; None if it is not needed."""
        self.env.prepare({"latency": latency} if latency else self.env.state_dict())
        return self.env.state_dict().get("latency")

    def controller(self, name: str) -> Controller:
        """Return a controller by name: the trained agent for the names in `POLICIES`, else one that needs no training.

        Raises:
            ConfigError: there is no such controller, or the trained agent has no such mode or does not fit these hosts.
        """
        agent, seed = self.config.agent, self.config.seed
        if name not in POLICIES:
            if name not in (known := standalone_agents()):
                raise ConfigError(unknown_controller("controller", name, [*POLICIES, *known]))
            if unseen := GROUPS["agent"][name].unseen(self.config.env):
                raise ConfigError(f"controllers={name} reads {unseen}, which this run does not have: leave it out")
            return GROUPS["agent"][name](gamma=agent.gamma).build(self.env.layout, seed=seed)
        if name == "policy_greedy" and not agent.greedy:
            raise ConfigError(
                f"controllers=policy_greedy needs a policy that samples its actions, and agent={self.config.choice('agent')} "
                "does not: leave it out"
            )
        return trained_agent(agent, self.agent_state, self.env.layout, seed=seed, option=self.config.choice("agent"))

    def names(self, controllers: Sequence[str] = ()) -> list[str]:
        """Return the controllers to evaluate: these, or by default all that fit except replay, and always `wait`."""
        policies = POLICIES if self.config.agent.greedy else POLICIES[:1]
        needed = ("policy", "wait") if REPLAY in controllers else ("wait",)
        baselines = [name for name in standalone_agents() if not GROUPS["agent"][name].unseen(self.config.env)]
        return list(dict.fromkeys([*(controllers or (*policies, *baselines)), *needed]))

    def run(self, controllers: Sequence[str] = ()) -> dict[str, HostOutcomes]:
        """Return the outcomes of the controllers, and of `wait`, by name; see `names` and `grow_all`."""
        return self.grow_all(self.names(controllers))

    def grow_all(self, names: Sequence[str]) -> dict[str, HostOutcomes]:
        """Return the outcomes of exactly these controllers by name. If one does not fit, raise ConfigError, and grow none."""
        built = {name: self.controller(name) for name in names if name != REPLAY}
        outcomes = {name: self.grow(one, name=name, greedy=name == "policy_greedy") for name, one in built.items()}
        if REPLAY in names:
            outcomes[REPLAY] = self.grow(Replay(outcomes["policy"].kept, self.env.layout), name=REPLAY)
        return outcomes

    def grow(
        self,
        controller: Controller,
        env: Environment | None = None,
        *,
        name: str = "",
        greedy: bool = False,
        watch: Callable[[EpisodeRecord], None] | None = None,
    ) -> HostOutcomes:
        """Return the outcomes of one controller on the hosts of the evaluation, or of another environment; see `play`.

        Args:
            name: name of the controller for the display of progress.
        """
        env, progress, journal = env or self.env, self.progress, self.journal if watch is None else None
        place = f"{env.split}: {name}"
        if kept := journal and journal.recall(place):
            if progress:
                progress.expect(-1)
            return HostOutcomes(**kept)
        if progress:
            progress.begin(name)
        env.reset(options={"episode": self.episode})
        metered = Metered(controller)
        outcomes = HostOutcomes.of(
            play(env, metered, greedy=greedy, watch=watch, progress=progress and progress.step), env.layout
        )
        outcomes.values["policy_flops"] = np.full(env.num_envs, metered.flops / env.num_envs)
        if journal:
            journal.keep(place, outcomes)
        return outcomes

    def _built(self, config: Config, split: Split = Split.HELD_OUT) -> Environment:
        """Return an environment of the hosts; see `build_env`."""
        online = self.online and split is Split.HELD_OUT
        return build_env(config, split=split, hosts=self.hosts, test_at_end=True, test_online=online, autoreset=False)

    def static_env(self) -> Environment:
        """Return an environment with the same hosts whose seeds are part of the network at once; see `without_incubation`."""
        static = without_incubation(self.config)
        env = self._built(static)
        env.prepare(self.env.state_dict())
        return env

    def search(self) -> dict[str, HostOutcomes]:
        """Return the outcomes of the best schedule of at most one seed planted in the first epoch, of the oracle, and of the best
        static net, all chosen on other hosts; warn if the task has events later."""
        if self.config.task.events.kinds:
            warnings.warn(f"schedule, oracle and static net {EARLY}", stacklevel=2)
        choice, static = self.choose(), self.choose(static=True)
        best, oracle = self.grow_schedules(choice)
        found = {f"best schedule ({choice.best})": best, ORACLE: oracle}
        return found | {f"best static net ({static.best})": self.grow_static(static)}

    @property
    def num_schedules(self) -> int:
        """Number of schedules of at most one seed, planted in the first epoch."""
        return 1 + int(self.env.chosen_S.sum()) * len(self.env.layout.blueprint_names)

    def choose(self, *, static: bool = False, by: str = "return") -> Choice:
        """Return the best schedules on hosts of the training split.

        Args:
            static: if true, seeds are part of the network at once; see `without_incubation`.
            by: outcome whose mean is the highest, one of `esper.evaluation.per_host.OBJECTIVES`.
        """
        begun = time.perf_counter()
        config = without_incubation(self.config) if static else self.config
        env = self._built(config, Split.TRAINING)
        env.prepare(self.env.state_dict())
        slots = [env.layout.slot_names[i] for i in np.flatnonzero(self.env.chosen_S)]
        names = ["wait", *(f"{blueprint} in {slot}" for slot in slots for blueprint in env.layout.blueprint_names)]
        kind = "static net" if static else "schedule"
        grown = {name: self.grow(self._schedule(name), env, name=f"{kind} {name}") for name in names}
        env.close()
        exact = grown["wait"].instance
        coarse = [condensed(kind) for kind in exact]
        members = {kind: np.array(coarse) == kind for kind in sorted({*coarse})}
        members |= {kind: np.array(exact) == kind for kind in sorted({*exact}) if exact.count(kind) >= ENOUGH}
        reached = {name: one.values[by] for name, one in grown.items()}
        return Choice(
            best=max(reached, key=lambda name: reached[name].mean()),
            for_kind={kind: max(reached, key=lambda name: reached[name][own].mean()) for kind, own in members.items()},
            flops=float(sum(one.values["training_flops"].sum() + one.values["measuring_flops"].sum() for one in grown.values())),
            seconds=time.perf_counter() - begun,
        )

    def grow_schedules(self, choice: Choice) -> tuple[HostOutcomes, HostOutcomes]:
        """Return the outcomes of the best fixed schedule and of the oracle, which uses the former for an unknown kind of host."""
        names = dict.fromkeys([choice.best, *choice.for_kind.values()])
        if self.progress:
            self.progress.expect(len(names) - 1)  # so many were not known before the choice
        grown = {name: self.grow(self._schedule(name), name=f"schedule {name}") for name in names}
        best = grown[choice.best]
        kinds = [kind if kind in choice.for_kind else condensed(kind) for kind in best.instance]
        self.unseen = sum(kind not in choice.for_kind for kind in kinds)
        by_host = [grown[choice.for_kind.get(kind, choice.best)] for kind in kinds]
        values = {name: np.array([one.values[name][host] for host, one in enumerate(by_host)]) for name in best.values}
        kept = [one.kept[host] for host, one in enumerate(by_host)]
        seeds = [one.seeds[host] for host, one in enumerate(by_host)] if best.seeds else []
        return best, HostOutcomes(values=values, instance=best.instance, kept=kept, seeds=seeds)

    def grow_static(self, choice: Choice) -> HostOutcomes:
        """Return the outcomes of the best static net."""
        env = self.static_env()
        grown = self.grow(self._schedule(choice.best), env, name=f"static net {choice.best}")
        env.close()
        return grown

    def _schedule(self, name: str) -> Controller:
        """Return the schedule of one seed, planted in the first epoch, by its name, as in `conv_light in r0c1`, or `wait`."""
        layout = self.env.layout
        if name == "wait":
            return self.controller(name)
        blueprint, slot = name.split(" in ")
        return ScheduleConfig(slot=layout.slot_names.index(slot), blueprint=blueprint).build(layout, seed=0)


def without_incubation(config: Config) -> Config:
    """Return a config for static nets: a seed that is planted in the first step is part of the network from initialisation.

    It is active at once, at alpha 1, learns with the host from the first host epoch, and is kept. Limits of the number of seeds
    and of their time to learn stay.
    """
    static = copy(config)
    static.gates, rules = GatesConfig(), {"incubation": Incubation.none, "isolation": Isolation.training}
    rules |= {"fossils": Fossils.learning, "auto_advance": [*GATES], "prune_after": 0, "prune_below": None}
    static.slots = replace(config.slots, **rules)
    return static
