"""What Gymnasium's environments are built from: arguments, overrides, and what a program has set for torch."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch

from esper.cli.overrides import config_of
from esper.cli.readiness import check_hosts
from esper.config import ConfigError, root_key
from esper.env.base import Environment
from esper.plugins import load_plugins, split_plugins
from esper.task.instances import Split
from esper.task.loading import load_task
from esper.training.environment import build_env

WITHOUT_EFFECT = ("buffer", "checkpoints", "hydra", "policy_seed", "resume", "sweep", "telemetry", "updates")
"""Root keys of a training run that an environment does not read."""
AGENT_KEYS = ("agent.gamma", "agent.heads")
"""Starts of overrides of keys of an agent that it reads."""


@contextmanager
def usual_torch() -> Generator[None]:
    """Compute with gradients, also within `torch.inference_mode`.

    Raises:
        ConfigError: torch's default type is not that of hosts.
    """
    if torch.get_default_dtype() is not torch.float32:
        raise ConfigError(
            f"torch.set_default_dtype({torch.get_default_dtype()}) is in effect, but hosts need torch.float32: reset it around "
            "their calls, or choose the precision of hosts by devices.auto.precision"
        )
    with torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext():
        yield


def refuse_keys(keys: Mapping[str, Any]) -> None:
    """Raise ConfigError if an environment gets a key of a run as an argument."""
    for name, value in keys.items():
        if name == "num_envs":
            raise ConfigError("an environment of esper.make_env has one host: build several by esper.make_vec_env(num_envs=...)")
        if name == "max_episode_steps":
            raise ConfigError(f"{name} has no effect, since all hosts end an episode together: write overrides=['steps={value}']")
        raise ConfigError(f"{name} is no argument of an environment: write overrides=['{name}={value}']")


def built(preset: Sequence[str], overrides: Sequence[str], *, num_envs: int, split: str) -> Environment:
    """Return the environment of a preset and overrides.

    Raises:
        ConfigError: they or another argument are not valid.
    """
    check_num_envs(num_envs)
    if isinstance(overrides, str):
        raise ConfigError(f"overrides must be a list, got {overrides!r}: write [{overrides!r}]")
    if not isinstance(overrides, Sequence) or not all(isinstance(one, str) for one in overrides):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"overrides must be a list of texts, such as ['steps=30', 'reward=sparse'], got {overrides!r}")
    if split not in list(Split):
        raise ConfigError(f"split must be {' or '.join(Split)}, got {split!r}")
    _check_id(preset, overrides)
    plugins, others = split_plugins([*preset, *overrides])
    load_plugins(plugins)
    for override in others:
        key = root_key(override)
        if key == "hosts":
            raise ConfigError(f"{override} cannot be overridden in an environment: set num_envs of make_vec_env instead")
        if key == "experiment":
            raise ConfigError(f"{override} describes a training run: name what its hosts need instead, as in task=digits_drift")
        ours = override.startswith(("agent=", "agent.")) and not override.startswith(AGENT_KEYS)
        if key in WITHOUT_EFFECT or ours:
            raise ConfigError(f"{override} has no effect in an environment, since another library trains the agent: leave it out")
    try:
        config = config_of(["agent=wait", *others, f"hosts={num_envs}"])
    except ConfigError as error:
        raise ConfigError(f"{error} (hosts is num_envs of make_vec_env)" if "hosts=" in str(error) else str(error)) from error
    with usual_torch():
        if "task" not in config.env.ignores and load_task(config.task, config.host).data.predicts_next:
            try:
                check_hosts(config)  # a seed that reads what its host predicts would look excellent
            except ValueError as error:
                raise ConfigError(str(error)) from error
        return build_env(config, split=Split(split))


def check_num_envs(num_envs: object) -> None:
    """Raise ConfigError if this is no number of hosts."""
    if not isinstance(num_envs, int | np.integer) or num_envs < 1:
        raise ConfigError(f"num_envs must be a whole number of at least 1, got {num_envs!r}")


def _check_id(preset: Sequence[str], overrides: Sequence[str]) -> None:
    """Raise ConfigError if overrides contradict what an id of Gymnasium chooses."""
    for chosen in (one for one in preset if one.startswith(("task=", "env="))):
        if chosen.startswith("task=") and "env=sandbox" in overrides:
            raise ConfigError(f"this id chooses {chosen}, which env=sandbox ignores: use Esper/Sandbox-v0")
        group = root_key(chosen)
        for other in overrides:
            if other.lstrip("+").startswith(f"{group}=") and other != chosen:
                raise ConfigError(
                    f"this id chooses {chosen}, but the overrides have {other}: use the id of that {group}, or esper.make_env"
                )
            if chosen == "env=sandbox" and other.startswith("task="):
                raise ConfigError(f"{other} has no effect with {chosen}: leave it out")


def has_seed(preset: Sequence[str], overrides: Sequence[str]) -> bool:
    """Return whether overrides set the root seed."""
    return any(root_key(override) == "seed" for override in (*preset, *overrides))


def checked_mode(render_mode: str | None) -> str | None:
    if render_mode not in (None, "rgb_array"):
        raise ConfigError(f"render_mode must be rgb_array or None, got {render_mode!r}")
    return render_mode
