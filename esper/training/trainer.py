"""The trainer: composes environment, buffer, agent and governor from a config, and runs update after update."""

import math
import shlex
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import torch

from esper.agent.base import Learner
from esper.buffer.transition import Transition
from esper.checkpoint import Checkpoints, entries, load_run
from esper.config import Config, ConfigError
from esper.env.actions import Head, Op
from esper.env.base import EpisodeRecord, Hparam, machines_of
from esper.notices import UserNotice, heard_by, notice
from esper.phases import marked
from esper.task.check import mistakes
from esper.task.instances import Split
from esper.task.loading import load_task
from esper.telemetry.anomalies import Findings
from esper.telemetry.base import Command, RunInfo
from esper.telemetry.config import Telemetry
from esper.telemetry.drift import GradientDrift
from esper.telemetry.tags import in_terms_of, measured
from esper.text import counted
from esper.training.config_io import flat, from_plain, other_settings, to_plain
from esper.training.decision_log import decisions
from esper.training.environment import build_env
from esper.training.estimate import estimate
from esper.training.interrupt import Stopped, StopRequest, stop_signals
from esper.training.play import play
from esper.training.provenance import FILE, Provenance, read, seconds_spent, warn_of_changed_parts
from esper.training.resume import check_data
from esper.training.run_folder import CHECKPOINTS, only_writer
from esper.training.trace import Trace
from esper.training.trained_agent import teacher_of
from esper.training.tune_shards import tuned


class Trainer:
    """One run in one folder."""

    def __init__(
        self,
        config: Config,
        folder: Path | str,
        *,
        name: str = "",
        shared: bool = False,
        plan: str | None = None,
        announced: bool = False,
        overrides: Sequence[str] = (),
    ) -> None:
        """Build the parts.

        Args:
            name: name of the run among several, shown by the console.
            shared: true if other runs write to the same terminal.
            plan: digest of the experiment of which the run is a cell, if any.
            announced: true if the console shows the title of the run already.
            overrides: overrides of the command, by which runs of a sweep are told apart.
        """
        notice(f"building {counted(config.hosts, 'host')}")
        self.checkpoints = Checkpoints(Path(folder) / CHECKPOINTS, config.checkpoints.keep)
        self._tuned = tuned(config, self.checkpoints)
        config = self._tuned.config
        self._plan, self._overrides = plan, overrides
        self.config, self.folder, self._shown_as = config, Path(folder), (name, shared, announced)
        self._plain = to_plain(config)
        self._plain["values"]["resume"] = None  # so that a resumed run writes the same checkpoints
        torch.set_num_threads(1)  # of this thread, for the policy, which is small; shards have threads of their own
        again = config.agent.one_episode  # every update replays episode 0: do not start the hosts of the next episode
        self.env = build_env(config, split=Split.TRAINING, num_twins=config.agent.num_twins, autoreset=not again)
        self.buffer = config.buffer.build()
        policy_seed = config.seed if config.policy_seed is None else config.policy_seed
        try:
            self.agent = config.agent.build(self.env.layout, seed=policy_seed, buffer=self.buffer)
        except ValueError as error:  # what could not be checked without the environment
            raise ConfigError(str(error)) from error
        self.learner = self.agent if isinstance(self.agent, Learner) else None
        self.teacher = teacher_of(config, self.checkpoints)
        if self.learner and self.teacher:
            self.learner.follow(self.teacher.build(self.env.layout))
        self.drift = GradientDrift()
        self.watch, self.findings = config.telemetry.anomalies.build(config.hosts * config.steps), Findings()
        self.update = 0
        self.best: dict[str, Any] | None = None
        """Policy with the highest mean return so far: its checkpoint `update`, the update that it `played`, and its `return`."""
        self._last: EpisodeRecord | None = None
        self._warned = False
        self._trace = Trace(self.env.layout)

    def run(self) -> bool:
        """Train hosts under the controller, and let it learn after each episode.

        Returns:
            False if the run was finished before, and nothing was written.

        Raises:
            Stopped: SIGINT or SIGTERM arrived; the newest checkpoint is that of the last update.
            DiskError: writing failed; the newest checkpoint is intact.
        """
        config, (name, shared, announced) = self.config, self._shown_as
        with only_writer(self.folder), stop_signals() as asked, closing(self.env):
            with asked.without_delay():  # it may train hosts before the first episode
                self.restore()
            only = None
            if self._is_finished():  # its summaries and records stay
                only = config.telemetry.lacking(self.folder, self.update)
                if not only:
                    return False
                only.append("console")
            about = RunInfo(
                folder=self.folder,
                resume_update=self.update,
                total_updates=config.updates,
                name=name,
                shared=shared,
                announced=announced,
                spent=seconds_spent(self.folder / FILE),
                score=config.task.build_objective().score,
                size="\n".join([*self._sizes(), *self._tuned.lines()]),
            )
            notice()
            with (
                Provenance(
                    self.folder,
                    self.update,
                    machines_of(self.env),
                    cell=name or None,
                    plan=self._plan,
                    tuned=self._tuned.seconds,
                    data=self._data(),
                    mistakes=self._mistakes(),
                ) as provenance,
                closing(config.telemetry.build(about, only)) as telemetry,
                heard_by(telemetry.note),
            ):
                telemetry.start(config.title(self.update), self.hparams())
                telemetry.costs(self.env.costs_table())
                saving = 0.0
                while self.update < config.updates:
                    episode = self.collect(telemetry, asked)
                    metrics = episode.metrics() | self.learn(episode) | {"time/save_seconds": saving}
                    self._judge(float(episode.return_N.mean()), metrics.get("search/improved"))
                    self.update += 1
                    saving = self._save(episode, metrics, telemetry, provenance)
                telemetry.finish(self.rows())
        return True

    def _save(self, episode: EpisodeRecord, metrics: Mapping[str, float], telemetry: Telemetry, provenance: Provenance) -> float:
        """Record an update and save the run's state; return how long that took [s]."""
        begun = time.perf_counter()
        with marked("save"):
            # Before the checkpoint: a resumed run removes later records.
            made = partial(decisions, self.env.layout, self.update, self._trace.steps)
            telemetry.update(self.update, metrics, self.findings, made, partial(self._trace.table, episode))
            self.checkpoints.save(self.state_dict(), self.update, best=self.best["update"] if self.best else None)
            provenance.save(self.update)
        seconds = time.perf_counter() - begun
        telemetry.saved()
        return seconds

    def _is_finished(self) -> bool:
        """Return whether an earlier process has finished this run, and written its summary."""
        records = read(self.folder / FILE) if self.update >= self.config.updates else []
        return bool(records) and records[-1].get("status") == "finished" and records[-1].get("updates") == self.update

    def collect(self, telemetry: Telemetry, asked: StopRequest) -> EpisodeRecord:
        """Run one episode of all hosts under the current controller.

        Raises:
            Stopped: the run was asked to stop.
        """

        def progress(step: int, steps: int) -> None:
            telemetry.step(step, steps)
            if asked.is_set():
                raise Stopped(f"stopped in update {self.update + 1}")

        def record(transition: Transition) -> None:
            self._trace.add(transition)
            if self.learner:
                self.learner.observe(transition)

        number = 0 if self.config.agent.one_episode else self.update
        if self.env.episode != number or not self.env.autoreset:
            with asked.without_delay():
                self.env.reset(options={"episode": number})
        self._trace = Trace(self.env.layout)
        if self.learner:
            self.learner.begin(self.update)
        self._last = play(self.env, self.agent, record=record, progress=progress)
        self._warn_of_refusals()
        return self._last

    def _warn_of_refusals(self) -> None:
        """Warn once if most actions of the episode, waiting excluded, were illegal: a custom controller may be faulty."""
        chosen = [(step.decision.action[:, Head.OP], step.signals) for step in self._trace.steps]
        acted = sum(int((op_N != Op.WAIT).sum()) for op_N, _ in chosen)
        refused = sum(int((signals.op_N != op_N).sum()) for op_N, signals in chosen if signals is not None)
        if 2 * refused > acted and not self._warned:
            self._warned = True
            actions = counted(acted, "action")
            message = (
                f"update {self.update + 1}: {refused} of {actions} were illegal and had no effect: choose from "
                "observation.legal_slots and legal_values"
            )
            warnings.warn(message, UserNotice, stacklevel=2)

    def learn(self, episode: EpisodeRecord) -> dict[str, float]:
        """Let the controller learn from an episode, and return its metrics; none for a controller that does not learn."""
        if not self.learner:
            return {}
        begun = time.perf_counter()
        with marked("learn"):
            metrics = self.learner.learn(self.update / self.config.updates)
        if not isinstance(metrics, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
            name, found = type(self.learner).__name__, type(metrics).__name__
            raise ConfigError(f"{name}.learn() returns a {found}: return a dictionary of metrics, {{}} for none")
        if unnamed := [tag for tag in metrics if "/" not in tag]:
            name = type(self.learner).__name__
            raise ConfigError(f"{name}.learn() returns a metric {unnamed[0]!r} without a group: name it agent/{unnamed[0]}")
        metrics["time/update_seconds"] = time.perf_counter() - begun
        if any(tag.startswith("policy/") for tag in metrics):
            seen = episode.metrics()
            metrics |= self.drift.measure(measured(seen | metrics))
            self.findings = self.watch.look(self.update + 1, measured(seen | metrics))
            metrics["policy/anomalies"] = len(self.findings.present)
        return metrics

    def _judge(self, mean_return: float, improved: float | None = None) -> None:
        """Remember the checkpoint of the policy that just acted if its mean return is the highest so far: the newest one; for a
        search, which draws its candidate during the update, the next one. Of a controller that explores, none is the best.

        Args:
            mean_return: of the hosts of the last episode; not finite if a reward is not.
            improved: a search's own judgement, by discounted return; None for other controllers.
        """
        if self.config.agent.explores:
            return
        better = self.best is None or not mean_return <= self.best["return"] if improved is None else improved == 1
        if better and math.isfinite(mean_return):
            saved = self.update + 1 if self.config.agent.one_episode else self.update
            self.best = {"update": saved, "played": self.update + 1, "return": mean_return}

    # ---- state

    def state_dict(self) -> dict[str, Any]:
        """Return the state from which a run resumes exactly; hosts and noise are determined by their names."""
        return {
            "config": self._plain,
            "update": self.update,
            "best": self.best,
            "hparams": self.env.hparams(),
            "agent": self.learner.state_dict() if self.learner else {},
            "buffer": self.buffer.state_dict(),
            "env": self.env.state_dict(),
            "watch": self.watch.state_dict(),
            "drift": self.drift.state_dict(),
            "teacher": self.teacher.source if self.teacher and self.learner and not self.learner.independent else None,
        }

    def restore(self) -> None:
        """Resume from the newest checkpoint in the folder, or write the first.

        Raises:
            ConfigError: the folder holds a run of another config.
        """
        newest = self.checkpoints.latest()
        if newest is None:
            self.env.prepare()
            self.checkpoints.save(self.state_dict(), self.update)
            return
        state = load_run(newest)
        if others := other_settings(from_plain(state["config"]), self.config):
            raise ConfigError(f"{self.folder} holds a run with other settings ({others}): choose another folder, or use these")
        check_data(state, self.env.hparams())
        warn_of_changed_parts(self.folder)
        with entries(newest):
            self.update, self.best = state["update"], state["best"]
            self.watch.load_state_dict(state["watch"])
            self.drift.load_state_dict(state["drift"])
            self.buffer.load_state_dict(state["buffer"])
            if self.learner:
                self.learner.load_state_dict(state["agent"])
            self.env.prepare(state["env"])
        if self.update >= self.config.updates:
            warnings.warn(
                f"the run had finished update {self.update} before, so nothing is trained: set updates above {self.update} to "
                "train more",
                UserNotice,
                stacklevel=2,
            )

    # ---- text for people

    def hparams(self) -> dict[str, Hparam]:
        """Return the hyperparameters that identify this run: its main choices, and every key that the command overrides."""
        choices = self._plain["choices"]
        named = {name: choices[name] for name in ("env", "task", "slots", "gates", "reward", "agent", "buffer", "governor")}
        config = self.config
        values, own = flat(self._plain), dict[str, Hparam]()
        for key in (override.lstrip("+~").partition("=")[0] for override in self._overrides):
            if key in values and key not in ("resume", "plugins"):
                own[key] = values[key] if isinstance(values[key], Hparam) else str(values[key])
        return {"seed": config.seed, "hosts": config.hosts, "steps": config.steps, **named, **own, **self.env.hparams()}

    def _data(self) -> str:
        """Return the sizes of the data, empty if no hosts are trained."""
        config = self.config
        return "" if "task" in config.env.ignores else load_task(config.task, config.host).data.describe()

    def _mistakes(self) -> list[str]:
        """Return likely mistakes in the data."""
        config = self.config
        if "task" in config.env.ignores:
            return []
        data, numbers = load_task(config.task, config.host).data, config.task.build_objective().numbers
        return mistakes(data, config.task.samples, numbers=numbers)

    def _sizes(self) -> list[str]:
        """Return lines on the folder, and on the sizes of the run and of its data."""
        line = estimate(self.config).line(done=self.update * self.config.hosts * self.config.steps)
        return [f"folder: {self.folder}", line, *([f"data: {data}"] if (data := self._data()) else [])]

    def rows(self) -> list[tuple[str, str]]:
        """Return the summary at the end: name and text of each row."""
        score, drawn = self.config.task.build_objective().score, (self.folder / "tensorboard").is_dir()
        return [
            *((in_terms_of(score, name), text) for name, text in (self._last.summary() if self._last is not None else ())),
            *(self.learner.summary() if self.learner else ()),
            ("files", str(self.folder)),
            ("compare with never growing", Command(f"python -m esper.evaluate {shlex.quote(f'checkpoint={self.folder}')}")),
            *([("curves", Command(f"tensorboard --logdir {shlex.quote(str(self.folder))}"))] if drawn else ()),
        ]
