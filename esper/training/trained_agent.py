"""Builds trained controllers from what a run has saved: for evaluation, and as teachers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from esper.agent.base import AgentConfig, Controller, Learner
from esper.checkpoint import load_run
from esper.config import GROUPS, Config, ConfigError, did_you_mean, standalone_agents
from esper.env.actions import EnvSpec
from esper.plugins import load_plugins
from esper.training.config_io import from_plain
from esper.training.resume import find_checkpoint, may_hold_checkpoint


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
    except (KeyError, TypeError, AttributeError, IndexError, RuntimeError) as error:
        what = " ".join(str(error).split())[:200]
        raise ConfigError(f"the state of agent={option} in the checkpoint is damaged ({what}): use another checkpoint") from error
    return built


def teacher_checkpoint(named: str | None) -> Path | None:
    """Return the checkpoint of a teacher; None for no teacher, and for an agent that needs no training.

    Raises:
        ConfigError: there is neither such an agent nor a run of this name.
    """
    if named is None or named in (agents := standalone_agents()):
        return None
    if not may_hold_checkpoint(named):
        known = f"the folder of a run nor an agent that needs no training ({', '.join(agents)})"
        raise ConfigError(f"agent.teacher={named} is neither {known}{did_you_mean(named, list(agents))}")
    return find_checkpoint(named, "agent.teacher")


def find_teacher(config: Config, spec: EnvSpec) -> Controller | None:
    """Return the controller that the agent of a run imitates at first; None if there is none.

    Raises:
        ConfigError: there is no such controller, or it does not fit the run.
    """
    named = config.agent.imitates
    if named is None:
        return None
    if (checkpoint := teacher_checkpoint(named)) is None:
        option, agent, state = named, GROUPS["agent"][named](gamma=config.agent.gamma), {}
    else:
        saved = load_run(checkpoint)
        load_plugins(saved["config"]["values"].get("plugins", ()))
        run = from_plain(saved["config"])
        option, agent, state = run.choice("agent"), run.agent.acting(), saved["agent"]
    if unseen := agent.unseen(config.env):
        raise ConfigError(f"agent.teacher={named} reads {unseen}, and this run has none: choose another teacher")
    try:
        return trained_agent(agent, state, spec, seed=config.seed, option=option)
    except ConfigError as error:
        raise ConfigError(f"agent.teacher={named}: {error}") from error
