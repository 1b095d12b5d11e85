"""Builds trained controllers from what a run has saved: for evaluation, and as teachers."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from esper.agent.base import AgentConfig, Controller, Learner, remedy
from esper.checkpoint import Checkpoints, digest_of, load_run
from esper.config import GROUPS, Config, ConfigError, did_you_mean, standalone_agents
from esper.env.spec import EnvSpec
from esper.lifecycle.stages import BoolArray
from esper.notices import UserNotice
from esper.plugins import load_plugins
from esper.training.config_io import from_plain
from esper.training.resume import find_checkpoint, may_hold_checkpoint

_RESTORE = "restore that file, or start a new run"
"""Remedy for a teacher that differs from the one that taught a run so far."""


def trained_agent(config: AgentConfig, state: Mapping[str, Any], spec: EnvSpec, *, seed: int, option: str) -> Controller:
    """Return a controller in the state that training left it in.

    Args:
        state: state of the trained agent, empty for a controller that does not learn.
        spec: sizes and names of observations and actions.
        seed: root seed.
        option: name of the agent, for messages.

    Raises:
        ConfigError: the agent does not fit these observations and actions, or its state is damaged.
    """
    try:
        built = config.build(spec, seed=seed)
        if isinstance(built, Learner):
            built.load_state_dict(dict(state))
    except ValueError as error:  # its message is always one sentence for the user
        raise ConfigError(str(error)) from error
    except KeyError as error:
        raise ConfigError(
            f"the state of agent={option} in the checkpoint lacks {error}: another version of Esper saved it; train it again"
        ) from error
    except (TypeError, AttributeError, IndexError, RuntimeError) as error:
        what = " ".join(str(error).split())[:200]
        raise ConfigError(f"the state of agent={option} in the checkpoint is damaged ({what}): use another checkpoint") from error
    return built


@dataclass(frozen=True, kw_only=True, slots=True)
class Teacher:
    """The controller that the agent of a run imitates at first."""

    named: str
    """Value of `agent.teacher`, as typed."""
    source: Mapping[str, str]
    """The `file` of its checkpoint and the `digest` of that; empty for an agent that needs no training."""
    option: str
    """Name of its agent."""
    config: AgentConfig
    state: Mapping[str, Any]
    """What training left; empty for an agent that needs none."""
    seed: int
    """Root seed of the run that it teaches."""

    def check_hosts(self, *, slots: Sequence[str], in_use: BoolArray, cap: int, blueprints: Sequence[str], hosts: int) -> None:
        """Raise ConfigError if the teacher does not fit the hosts; see `AgentConfig.check_hosts`."""
        try:
            self.config.check_hosts(slots=slots, in_use=in_use, cap=cap, blueprints=blueprints, hosts=hosts)
        except ValueError as error:
            raise ConfigError(f"agent.teacher={self.named}: {error}") from error

    def build(self, spec: EnvSpec) -> Controller:
        """Return the controller for these observations and actions.

        Raises:
            ConfigError: it does not fit them.
        """
        try:
            return trained_agent(self.config, self.state, spec, seed=self.seed, option=self.option)
        except ConfigError as error:
            raise ConfigError(f"agent.teacher={self.named}: {error}") from error


def teacher_of(config: Config, checkpoints: Checkpoints) -> Teacher | None:
    """Return the teacher of a run, new or begun, with these checkpoints; see `find_teacher`."""
    newest = checkpoints.latest() if config.agent.imitates is not None else None
    return find_teacher(config, load_run(newest) if newest else None)


def find_teacher(config: Config, begun: Mapping[str, Any] | None = None) -> Teacher | None:
    """Return the teacher of a run; None if there is none, and for a run that needs it no more.

    Args:
        config: config of the run.
        begun: newest state of the run; None for a new one. It names the checkpoint that taught it so far.

    Raises:
        ConfigError: there is no such controller, it differs from the one that taught the run so far, or it reads what this run
            does not provide.
    """
    named = config.agent.imitates
    source = begun.get("teacher", {}) if begun else {}  # runs of earlier versions have no entry
    if named is None or source is None:
        return None
    file = Path(source["file"]) if source else _checkpoint(named)
    if file is None:
        option, agent, state = named, GROUPS["agent"][named](gamma=config.agent.gamma), {}
    else:
        if not file.is_file():
            raise ConfigError(f"agent.teacher={named}: {file}, which has taught this run so far, no longer exists: {_RESTORE}")
        if source and digest_of(file) != source["digest"]:
            raise ConfigError(f"agent.teacher={named}: {file} has changed since it taught this run: {_RESTORE}")
        saved = load_run(file)
        source = {"file": str(file.absolute()), "digest": digest_of(file)}
        load_plugins(saved["config"]["values"].get("plugins", ()))
        run = from_plain(saved["config"])
        option, agent, state = run.choice("agent"), run.agent.acting(), saved["agent"]
        if state:
            newest = Checkpoints(file.parent).latest() == file
            _check_training(named, run, saved["update"], config, new=begun is None, newest=newest)
    if unseen := agent.unseen(config.env):
        raise ConfigError(f"agent.teacher={named} reads {unseen}, which this run does not have: {remedy(unseen, 'teacher')}")
    return Teacher(named=named, source=source, option=option, config=agent, state=state, seed=config.seed)


def _check_training(named: str, run: Config, done: int, config: Config, *, new: bool, newest: bool) -> None:
    """Raise ConfigError if a teacher that learned cannot know what a run shows and lets it do; say if it is still learning.

    Args:
        run: config of the teacher's run.
        done: its finished updates.
        config: config of the run that it teaches.
        new: false if that run already has this teacher.
        newest: true for the newest checkpoint of the teacher's run, which may be going on, and not its best.
    """
    was, here = (str(getattr(one.env, "potential", None)).lower() for one in (run, config))
    if was != here:
        raise ConfigError(f"agent.teacher={named} was trained with env.potential={was}, and this run has {here}: make them equal")
    freed = run.agent.heads.pinned.keys() - config.agent.heads.pinned.keys() if run.agent.greedy else ()
    if freed:
        free = " ".join(f"agent.heads.{head.name.lower()}=free" for head in sorted(freed))
        raise ConfigError(f"agent.teacher={named} was trained without {free}: leave that out here, or train the teacher with it")
    if new and not done:
        raise ConfigError(f"agent.teacher={named} has not finished an update: let it learn first")
    if new and newest and done < run.updates:
        text = f"agent.teacher={named} has finished {done} of its {run.updates} updates, and teaches what it has learned so far"
        warnings.warn(text, UserNotice, stacklevel=2)


def _checkpoint(named: str) -> Path | None:
    """Return the checkpoint of a teacher now; None for an agent that needs no training.

    Raises:
        ConfigError: there is neither such an agent nor a run of this name.
    """
    if named in (agents := standalone_agents()):
        return None
    if named in GROUPS["agent"] and not Path(named).is_dir():
        raise ConfigError(
            f"agent.teacher={named} must be trained first: run agent={named} hydra.run.dir=FOLDER, and set agent.teacher=FOLDER"
        )
    if not may_hold_checkpoint(named):
        known = f"the folder of a run nor an agent that needs no training ({', '.join(agents)})"
        raise ConfigError(f"agent.teacher={named} is neither {known}{did_you_mean(named, list(agents))}")
    return find_checkpoint(named, "agent.teacher")
