"""The trainer: builds the parts from the config, and lets hosts train and the controller learn, update after update."""

import signal
import threading
import time
from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from esper.agent.base import Learner
from esper.agent.ppo.config import PPOConfig
from esper.agent.ppo.learner import PPO
from esper.agent.search import EPISODE, BestOfRandom
from esper.buffer.rollout import Forfeit, Rollout
from esper.checkpoint import Checkpoints
from esper.config import CHECKPOINTS, Config, ConfigError
from esper.env.growth_env import GrowthEnv, as_observation
from esper.measure.latency import Latency
from esper.seeding import torch_stream
from esper.task.instances import Split
from esper.telemetry.anomalies import Findings
from esper.telemetry.config import Telemetry
from esper.telemetry.tags import under
from esper.training.config_io import difference, from_plain, to_plain
from esper.training.decision_log import DecisionLog
from esper.training.episode import Episode, Transition, play


class Stopped(Exception):
    """The run was asked to stop; all that was learnt up to the last update is saved."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """What a run comes to."""

    folder: Path
    updates: int
    last: Episode | None
    """The last episode, where this process played one."""


def build_env(config: Config, *, split: Split, hosts: int | None = None, twins: int = 1, test_at_end: bool = False) -> GrowthEnv:
    """The environment that a config describes, for hosts to learn from or to judge by.

    `reward.per_host` is for the hosts of a training run; all others, as wherever a number of hosts is given, are paid by the
    mode of the run, so that controllers are compared in one currency.
    """
    task = config.task.build(config.host)
    trains = split is Split.TRAINING and hosts is None
    return GrowthEnv(
        task=task,
        slots=config.slots,
        gates=config.gates,
        heads=config.agent.heads,
        blueprints=config.blueprint,
        reward=(config.reward.build_training if trains else config.reward.build)(gamma=config.agent.gamma),
        governor=config.governor.build(num_classes=task.data.num_classes),
        devices=config.devices,
        num_hosts=hosts or config.hosts,
        num_steps=config.steps,
        seed=config.seed,
        split=split,
        twins=twins,
        test_at_end=test_at_end,
        counterfactuals=config.counterfactuals,
    )


def find_checkpoint(path: str, key: str) -> Path:
    """The checkpoint file that a path means: itself, or the newest of a run's folder.

    Args:
        key: where the path was given, for the message.

    Raises:
        ConfigError: there is none.
    """
    place = Path(path)
    if place.is_file():
        return place
    newest = Checkpoints(place / CHECKPOINTS).latest()
    if newest is None:
        raise ConfigError(f"{key}={path} holds no checkpoint: name the folder that esper.train printed")
    return newest


class Trainer:
    """One run in one folder."""

    def __init__(self, config: Config, folder: Path | str, *, name: str = "", shared: bool = False) -> None:
        """Builds the parts.

        Args:
            name: of the run, where it is one of several; the console says it.
            shared: do other runs write to the same terminal at the same time?
        """
        self.config, self.folder, self._shown_as = config, Path(folder), (name, shared)
        torch.set_num_threads(1)  # of this thread, for the policy, which is small; shards have threads of their own
        twins = config.agent.twins if isinstance(config.agent, PPOConfig) else 1
        self.env = build_env(config, split=Split.TRAINING, twins=twins)
        self.policy_seed = config.seed if config.policy_seed is None else config.policy_seed
        self.agent = config.agent.build(self.env.layout, seed=self.policy_seed)
        self.checkpoints = Checkpoints(self.folder / CHECKPOINTS)
        self.watch, self.findings = config.telemetry.anomalies.build(), Findings()
        self.update = 0
        self._last: Episode | None = None
        self._diary = DecisionLog(self.env.layout, 0)

    def run(self) -> Summary:
        """Hosts train; the controller watches, grows and prunes; after each rollout it learns.

        Raises:
            Stopped: SIGINT or SIGTERM came; the newest checkpoint is that of the last update.
            DiskError: the disk refused; the newest checkpoint is intact.
        """
        config = self.config
        with stop_signals() as asked, closing(self.env):
            self.restore()
            done, (name, shared) = self.update, self._shown_as
            telemetry = config.telemetry.build(
                self.folder, resume_update=done, total_updates=config.updates, name=name, shared=shared
            )
            with telemetry:
                telemetry.start(self.title(), self.hparams())
                telemetry.costs(self.costs())
                while self.update < config.updates:
                    rollout, episode = self.collect(telemetry, asked)
                    learnt = self.learn(rollout, episode)
                    self.update += 1
                    # First: what is here twice is dropped on resume.
                    telemetry.update(self.update, episode.metrics() | learnt, self.findings, self._diary.records)
                    self.checkpoints.save(self.state_dict(), self.update)
                telemetry.finish(self.rows())
        return Summary(folder=self.folder, updates=self.update, last=self._last)

    def collect(self, telemetry: Telemetry, asked: threading.Event) -> tuple[Rollout | None, Episode]:
        """One episode of all hosts under the present controller."""

        def progress(step: int, steps: int) -> None:
            telemetry.step(step, steps)
            if asked.is_set():
                raise Stopped(f"stopped in update {self.update + 1}")

        number = EPISODE if isinstance(self.agent, BestOfRandom) else self.update
        if self.env.episode != number:
            self.env.reset(options={"episode": number})
        self._diary = DecisionLog(self.env.layout, self.update + 1)
        if not isinstance(self.agent, PPO):
            player = self.agent
            if isinstance(player, BestOfRandom):
                player = player.candidate(as_observation(self.env.observation()))
            self._last = play(self.env, player, record=self._diary.add, progress=progress)
            return None, self._last
        rollout, forfeits = Rollout(self.env.layout), self.agent.config.forfeit is Forfeit.prefix

        def record(step: Transition) -> None:
            self._diary.add(step)
            rollout.add(
                step.observation,
                step.decision,
                reward=step.reward_N,
                terminated=step.terminated_N,
                is_init=step.is_init_N,
            )
            if forfeits:
                rollout.forfeit(step.signals.rolled_back_N)

        self._last = play(self.env, self.agent, record=record, progress=progress)
        return rollout, self._last

    def learn(self, rollout: Rollout | None, episode: Episode) -> dict[str, Any]:
        """The controller learns from an episode, where it learns at all; returns what telemetry should know of it."""
        if isinstance(self.agent, BestOfRandom):
            return under("search", asdict(self.agent.learn(episode.return_N)))
        if rollout is None or not isinstance(self.agent, PPO):
            return {}
        begun = time.perf_counter()
        generator = torch_stream(self.policy_seed, "minibatches", self.update)
        stats = self.agent.update(rollout, progress=self.update / self.config.updates, generator=generator)
        self.findings = self.watch.look(self.update + 1, stats, episode.audit)
        told = under("policy", stats.metrics() | {"anomalies": len(self.findings.present)})
        return told | {"time/update_seconds": time.perf_counter() - begun}

    # ---- state

    def state_dict(self) -> dict[str, Any]:
        """All that a later process needs to go on exactly: hosts and noise come back by their names."""
        agent = self.agent.state_dict() if isinstance(self.agent, Learner) else {}
        latency = self.env.latency.state_dict() if self.env.latency else None
        state = {"config": to_plain(self.config), "update": self.update, "agent": agent, "watch": self.watch.state_dict()}
        return state | {"latency": latency}

    def restore(self) -> None:
        """Goes on from the newest checkpoint in the folder, or writes the first.

        Raises:
            ConfigError: the folder holds a run of another config.
        """
        newest = self.checkpoints.latest()
        if newest is None:
            self.env.time_inference()
            self.checkpoints.save(self.state_dict(), self.update)
            return
        state = self.checkpoints.load(newest)
        if differs := difference(from_plain(state["config"]), self.config):
            raise ConfigError(
                f"{self.folder} holds a run with another {differs}: choose another folder, or leave {differs} as it was"
            )
        self.update = state["update"]
        if "watch" in state:  # written since learning is watched
            self.watch.load_state_dict(state["watch"])
        if isinstance(self.agent, Learner):
            self.agent.load_state_dict(state["agent"])
        if state.get("latency"):  # measured by the first process of the run: no two measurements agree
            self.env.time_inference(Latency.from_state(state["latency"]))

    # ---- words for people

    def title(self) -> str:
        """One line on what runs."""
        config, choices = self.config, to_plain(self.config)["choices"]
        return (
            f"{choices['agent']} on {choices['task']}: {config.updates} updates of {config.hosts} hosts x {config.steps} epochs, "
            f"reward {choices['reward']}, seed {config.seed}"
        )

    def hparams(self) -> dict[str, bool | int | float | str]:
        """What the run is compared by."""
        choices = to_plain(self.config)["choices"]
        named = {name: choices[name] for name in ("task", "slots", "gates", "reward", "agent", "governor")}
        data = self.env.task.data.fingerprint()
        return {"seed": self.config.seed, "hosts": self.config.hosts, "steps": self.config.steps, **named, "data": data}

    def costs(self) -> dict[str, Any]:
        """What hosts and seeds cost in this run, and how latency was measured, if it was."""
        names, latency = (self.env.layout.blueprint_names, self.env.layout.slot_names), self.env.latency
        return self.env.costs.table(*names) | {"latency_measured": latency.table(*names) if latency else None}

    def rows(self) -> list[tuple[str, str]]:
        """The summary at the end."""
        rows: list[tuple[str, str]] = []
        if self._last is not None:
            metrics = self._last.metrics()
            rows = [
                ("return", f"{metrics['policy/return']:.1f} points a host in the last update"),
                ("committed accuracy", f"{metrics['host/committed_accuracy']:.1f} % on validation"),
                ("parameters grown", f"{metrics['host/parameters_grown']:.0f} on hosts of {self.env.host_params}"),
            ]
        if isinstance(self.agent, BestOfRandom):
            rows.append(("best schedule", f"agent.actions={self.agent.words()}"))
        return [
            *rows,
            ("files", f"{self.folder} (checkpoints, metrics.jsonl, tensorboard)"),
            ("next", f"python -m esper.evaluate checkpoint={self.folder}"),
            ("curves", f"tensorboard --logdir {self.folder}"),
        ]


@contextmanager
def stop_signals() -> Generator[threading.Event]:
    """An event that the first SIGINT or SIGTERM sets; a second SIGINT interrupts at once.

    Python hands signals to the main thread only: in another thread the event is never set.
    """
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def ask(number: int, frame: FrameType | None) -> None:
        if asked.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
