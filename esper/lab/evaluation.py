"""Evaluates a controller on held-out hosts, beside others.

Every controller grows the same hosts, held out from training, with the same data orders. Accuracy is that of what was committed,
host and fossils, on the test part of the data, which nothing else touches.

Words of esper.train besides move the policy to another world: task=mnist5k slots=every_block steps=40. What is not named stays as
it was in training, a group that is named comes with its defaults, and the table says that it is a transfer.
"""

# N hosts

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from esper.agent.base import Controller, Learner
from esper.agent.ppo.ppo import PPOConfig
from esper.agent.scripted.replay import Replay, ReplayConfig, Topology, read, topologies
from esper.agent.scripted.schedule import ScheduleConfig
from esper.checkpoint import load
from esper.cli.transfer import changes, moved
from esper.config import GROUPS, Config, ConfigError, did_you_mean, standalone_agents
from esper.env.actions import EnvSpec
from esper.env.episode import Episode
from esper.env.growth_env import GrowthEnv
from esper.stats.intervals import mean_interval
from esper.task.instances import Split
from esper.training.config_io import from_plain
from esper.training.play import play
from esper.training.trainer import build_env, find_checkpoint

POLICIES = ("policy", "policy_greedy")
STATIC = "replay"
"""What `policy` had kept at the end, on the same hosts from the start."""


@dataclass(kw_only=True, slots=True)
class EvaluateConfig:
    """One evaluation."""

    checkpoint: str = ""
    """Folder of a run, or one checkpoint file."""
    hosts: int = 64
    """Fresh hosts that every controller grows, at least 2. More: narrower intervals."""
    episode: int = 0
    """Which fresh hosts, at least 0: another number gives others."""
    controllers: list[str] = field(default_factory=lambda: list[str]())
    """Who is compared, out of policy, the controller of the run, whatever it is, drawing its actions as in training;
    policy_greedy, which takes the most probable ones, where it learnt to draw them (agent=ppo); replay, which grows from the
    start what `policy` had kept at the end, host by host; and the names of the agents that need no training. Empty: all but
    replay. `wait` is always there to compare with."""
    schedules: bool = False
    """Also search the best fixed schedule of one seed, and an oracle that takes the best schedule for each host's kind.
    Both are chosen on other hosts."""

    def __post_init__(self) -> None:
        if not self.checkpoint:
            raise ValueError("checkpoint is not set: name the folder of a run, as in checkpoint=multirun/single/...")
        if self.hosts < 2:
            raise ValueError(f"hosts must be at least 2, got {self.hosts}: one host gives no interval")
        if self.episode < 0:
            raise ValueError(f"episode must be at least 0, got {self.episode}")
        known = [*POLICIES, STATIC, *standalone_agents()]
        unknown = [name for name in self.controllers if name not in known]
        if unknown:
            raise ValueError(
                f"controllers={unknown[0]} is not known: choose out of {', '.join(known)}{did_you_mean(unknown[0], known)}"
            )
        if STATIC in self.controllers and "policy" not in self.controllers:
            raise ValueError("controllers=[replay] grows what policy kept: write controllers=[policy,replay]")


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a controller reached, host by host."""

    return_N: np.ndarray
    accuracy_N: np.ndarray
    """Of what was committed, on the test part."""
    validation_N: np.ndarray
    """The same on the validation part, which controllers see."""
    params_N: np.ndarray
    """Parameters of the seeds in the committed network."""
    flops_N: np.ndarray
    """FLOPs of a sample in the committed network."""
    training_flops_N: np.ndarray
    instance: list[str]
    kept: list[Topology]
    """The seeds that each host kept."""

    @staticmethod
    def of(episode: Episode, layout: EnvSpec) -> "Outcome":
        assert episode.test_accuracy_N is not None
        assert episode.signals is not None
        return Outcome(
            return_N=episode.return_N,
            accuracy_N=episode.test_accuracy_N,
            validation_N=episode.signals.worth.committed_accuracy_N,
            params_N=episode.kept_params_N,
            flops_N=episode.committed["flops"],
            training_flops_N=episode.training_flops_N,
            instance=episode.instance,
            kept=topologies(episode.kept_NS, episode.blend_NS, layout),
        )


class Evaluation:
    """All controllers on the same hosts."""

    def __init__(self, given: EvaluateConfig, words: Sequence[str] = ()) -> None:
        """Loads the run and makes the hosts.

        Args:
            words: what of the run's config is to be another, as for esper.train.
        """
        torch.set_num_threads(1)
        self.given, self.path = given, find_checkpoint(given.checkpoint, "checkpoint")
        state = load(self.path)
        trained: Config = from_plain(state["config"])
        self.config = moved(trained, list(words)) if words else trained
        self.transfer = changes(trained, self.config, list(words))
        self.updates: int = state["update"]
        self._agent_state: dict[str, Any] = state["agent"]
        self._check()
        self.env = build_env(self.config, split=Split.HELD_OUT, hosts=given.hosts, test_at_end=True)
        if not words:  # paid as in training; other hosts are measured anew
            self.env.prepare(state["env"])
        for name in {*self.names} & {*POLICIES}:
            self.controller(name)  # one that cannot act here says so before anything else takes its time

    def _check(self) -> None:
        """Raises ConfigError where what is asked for does not go with the run's controller."""
        agent, given = self.config.agent, self.given
        if "policy_greedy" in given.controllers and not isinstance(agent, PPOConfig):
            name = self.config.choice("agent")
            raise ConfigError(f"controllers=policy_greedy needs a policy that learns, and here is agent={name}: leave it out")
        if isinstance(agent, ReplayConfig):
            try:
                record = read(agent.topology, agent.of)
            except ValueError as error:
                raise ConfigError(str(error)) from error
            for key, told, here in (("seed", record.seed, self.config.seed), ("episode", record.episode, given.episode)):
                if told not in (None, here):
                    raise ConfigError(
                        f"agent.topology={agent.topology} tells of hosts of {key}={told}, and these are of {key}={here}: "
                        f"{'evaluate with' if key == 'episode' else 'train with'} {key}={told}"
                    )

    @property
    def names(self) -> list[str]:
        """Who is compared; `wait` is always among them."""
        policies = POLICIES if isinstance(self.config.agent, PPOConfig) else ("policy",)
        return list(dict.fromkeys([*(self.given.controllers or (*policies, *standalone_agents())), "wait"]))

    def controller(self, name: str) -> Controller:
        """A controller by name; a policy is the one of the checkpoint."""
        if name not in POLICIES:
            return GROUPS["agent"][name](gamma=self.config.agent.gamma).build(self.env.layout, seed=self.config.seed)
        try:
            agent = self.config.agent.build(self.env.layout, seed=self.config.seed)
            if isinstance(agent, Learner):
                agent.load_state_dict(self._agent_state)
        except ValueError as error:  # by house rule it is written for people
            raise ConfigError(str(error)) from error
        return agent

    def title(self) -> str:
        """What the table shows; of a transfer, from what to what."""
        config, agent = self.config, self.config.choice("agent")
        title = f"{self.given.hosts} fresh hosts x {config.steps} epochs, {agent} after {self.updates} updates"
        if not self.transfer.title:
            return title
        slots = f"{int(self.env.chosen_S.sum())} of {self.env.layout.num_slots} slots in use"
        trained = self._agent_state.get("names", {}).get("slots")
        return f"{title}\n{self.transfer.title}: {slots}{f', trained with {len(trained)}' if trained else ''}"

    def grow(self, controller: Controller, env: GrowthEnv | None = None, *, greedy: bool = False) -> Outcome:
        """The outcome of one controller on the hosts of the evaluation, or of another environment."""
        env = env or self.env
        env.reset(options={"episode": self.given.episode})
        return Outcome.of(play(env, controller, greedy=greedy), env.layout)

    def run(self) -> dict[str, Outcome]:
        """Outcomes by controller; `wait` is always among them."""
        outcomes: dict[str, Outcome] = {}
        for name in sorted(self.names, key=STATIC.__eq__):  # last, since it grows what was grown
            static = Replay(outcomes["policy"].kept, self.env.layout) if name == STATIC else None
            outcomes[name] = self.grow(static or self.controller(name), greedy=name == "policy_greedy")
        if self.given.schedules:
            outcomes |= self.search()
        return outcomes

    def search(self) -> dict[str, Outcome]:
        """The best fixed schedule of one seed (or of none), and the oracle's, chosen on hosts of the training split."""
        choice = self.choose()
        best, oracle = self.grow_schedules(choice)
        return {f"best schedule ({choice.best})": best, "oracle schedule by kind": oracle}

    def choose(self) -> "Choice":
        """The schedules that do best on hosts of the training split."""
        elsewhere = build_env(self.config, split=Split.TRAINING, hosts=self.given.hosts, test_at_end=True)
        chosen = np.flatnonzero(self.env.chosen_S)
        names = [
            f"{blueprint} in {elsewhere.layout.slot_names[i]}" for i in chosen for blueprint in elsewhere.layout.blueprint_names
        ]
        there = {name: self.grow(self._schedule(name), elsewhere) for name in ("wait", *names)}
        elsewhere.close()
        kinds = np.array(there["wait"].instance)
        for_kind = {kind: max(there, key=lambda name: there[name].return_N[kinds == kind].mean()) for kind in np.unique(kinds)}
        return Choice(best=max(there, key=lambda name: there[name].return_N.mean()), for_kind=for_kind)

    def grow_schedules(self, choice: "Choice") -> tuple[Outcome, Outcome]:
        """Outcomes of the best fixed schedule and of the oracle; a kind that was not met before takes the best."""
        here = {name: self.grow(self._schedule(name)) for name in dict.fromkeys([choice.best, *choice.for_kind.values()])}
        best = here[choice.best]
        taken = [here[choice.for_kind.get(kind, choice.best)] for kind in best.instance]

        def pick(key: str) -> Any:
            return [getattr(outcome, key)[host] for host, outcome in enumerate(taken)]

        arrays = {
            key: np.array(pick(key))
            for key in ("return_N", "accuracy_N", "validation_N", "params_N", "flops_N", "training_flops_N")
        }
        return best, Outcome(**arrays, instance=best.instance, kept=pick("kept"))

    def _schedule(self, name: str) -> Controller:
        """The schedule of one seed by its name, as in `conv_light in r0c1`, or `wait`."""
        layout = self.env.layout
        if name == "wait":
            return self.controller(name)
        blueprint, slot = name.split(" in ")
        return ScheduleConfig(slot=layout.slot_names.index(slot), blueprint=blueprint).build(layout, seed=0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """Which schedules of one seed, or `wait`, did best."""

    best: str
    """Over all hosts, as in `conv_light in r0c1`."""
    for_kind: dict[str, str]
    """For each kind of host."""


def summarise(outcomes: Mapping[str, Outcome]) -> list[dict[str, Any]]:
    """A row a controller: means with 95 % intervals over hosts, and paired differences to `wait`."""
    wait = outcomes["wait"]
    rows: list[dict[str, Any]] = []
    for name, outcome in outcomes.items():
        row: dict[str, Any] = {
            "controller": name,
            "parameters": float(outcome.params_N.mean()),
            "flops": float(outcome.flops_N.mean()),
            "training_flops": float(outcome.training_flops_N.mean()),
        }
        for key, values, base in (
            ("return", outcome.return_N, wait.return_N),
            ("accuracy", outcome.accuracy_N, wait.accuracy_N),
        ):
            for label, sample in ((key, values), (f"{key}_over_wait", values - base)):
                interval = mean_interval(sample)
                row[label] = {"mean": interval.mean, "low": interval.low, "high": interval.high}
        rows.append(row)
    return rows


def by_host(outcomes: Mapping[str, Outcome]) -> dict[str, dict[str, list[Any]]]:
    """Every number of every host, for whoever wants to compare in another way."""
    return {
        name: {
            "instance": outcome.instance,
            "return": outcome.return_N.tolist(),
            "accuracy": outcome.accuracy_N.tolist(),
            "parameters": outcome.params_N.tolist(),
            "flops": outcome.flops_N.tolist(),
            "training_flops": outcome.training_flops_N.tolist(),
            "kept": outcome.kept,
        }
        for name, outcome in outcomes.items()
    }
