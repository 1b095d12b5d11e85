"""Transfer of a run's config to an evaluation: permitted overrides, and the changes that they make.

Overrides have the syntax of `esper.train`: groups, as in task=mnist5k, which come with their defaults, and keys, as in steps=40.
Everything else stays as in training, such as rent, gates and blueprints.
"""

import re
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, fields
from hashlib import sha256

from esper.cli.help import as_typed
from esper.cli.overrides import check_over
from esper.cli.readiness import ready
from esper.config import ALIASES, Config, ConfigError, root_key
from esper.task.loading import load_task
from esper.training.config_io import flat, is_path, to_plain

TRANSFERABLE = (
    "task",
    "host",
    "optimiser",
    "slots",
    "gates",
    "blueprint",
    "devices",
    "cluster",
    "reward",
    "governor",
    "steps",
    "seed",
)
"""Root keys that an evaluation may change."""
DRAWS_AND_DEVICES = ("seed", "devices", "cluster")
"""Root keys among `TRANSFERABLE` that do not change the kind of hosts."""
_REFUSED = {
    "agent": "a policy is evaluated as it was trained: leave it out, or name others to compare with in controllers",
    "env": "the policy would observe or do other things than in training: leave it out",
    "hosts": "the number of hosts is set elsewhere: hosts= of esper.evaluate, num_envs of make_vec_env",
    **dict.fromkeys(("experiment", "sweep"), "it is a preset for training: name groups and keys, as in task=digits steps=40"),
    **dict.fromkeys(
        ("updates", "resume", "telemetry", "checkpoints", "policy_seed", "counterfactuals", "buffer"),
        "it has no effect on an evaluation: leave it out",
    ),
}
"""Root key that an evaluation may not change -> reason and remedy."""


def slug(overrides: Iterable[str]) -> str:
    """Return overrides as part of a file name; empty if there are none."""
    whole = "_".join(overrides)
    name = re.sub(r"[^\w=.+-]+", "_", whole).strip("_")
    if len(name) > 80:
        return f"{name[:72]}_{sha256(name.encode()).hexdigest()[:7]}"
    if re.search(r"[^\w=.+,\[\]-]", whole):  # lists can be told from their parts, but a/b looks like a_b
        return f"{name[:72]}_{sha256(whole.encode()).hexdigest()[:7]}"
    return name


@dataclass(frozen=True, kw_only=True, slots=True)
class Transfer:
    """The settings that an evaluation changes, as overrides: their values in training and in the evaluation."""

    source: tuple[str, ...]
    target: tuple[str, ...]

    @property
    def title(self) -> str:
        """Title such as "transfer from task=digits to task=mnist5k"; empty if the kind of hosts is unchanged."""
        if not any(root_key(override) not in DRAWS_AND_DEVICES for override in self.target):
            return ""
        return f"transfer from {' '.join(self.source)} to {' '.join(self.target)}"

    @property
    def slug(self) -> str:
        """The settings of the evaluation as part of a file name; empty if nothing changed."""
        return slug(self.target)


def is_run_override(override: str) -> bool:
    """Return whether an override changes the config of the run, rather than a key of the evaluation."""
    return root_key(override) in {*(entry.name for entry in fields(Config)), *ALIASES, *_REFUSED, "hydra"} - {"hosts"}


def transferred(saved: Config, overrides: list[str]) -> Config:
    """Return the config of a run with overrides, after checking that this machine has its data and devices. A teacher is not
    looked up: the trained policy acts without it.

    Raises:
        ConfigError: an override asks for a change that is not permitted, or does not fit.
    """
    config = fitted(saved, overrides)
    ready(config, trains=False)
    return config


def relocated(saved: Config, overrides: Sequence[str], fingerprint: object) -> tuple[Config, list[str]]:
    """Return the config of a run whose data has moved, and the overrides that change something.

    The path of a run's data, such as task.file, may be given anew. If the same data lies there, it is no change of the run;
    other data makes a transfer, so that nothing is done here.

    Args:
        saved: the config of the training.
        overrides: overrides of an evaluation.
        fingerprint: fingerprint of the data of the training.

    Raises:
        TaskError: there is no data under the path.
        ConfigError: an override asks for a change that is not permitted, or does not fit.
    """
    paths = [one for one in overrides if is_path(one)]
    if not paths or any(one.startswith("task=") for one in overrides):
        return saved, [*overrides]
    config = fitted(saved, paths)
    if load_task(config.task, config.host).data.fingerprint() != fingerprint:
        return saved, [*overrides]
    return config, [one for one in overrides if one not in paths]


def moved(saved: Config, paths: Sequence[str], fingerprint: object) -> Config:
    """Return the config of a run with the new path of its data; see `relocated`.

    Raises:
        ConfigError: other data is there.
    """
    config, others = relocated(saved, paths, fingerprint)
    if others:
        raise ConfigError(f"{' '.join(others)} is other data than the run was trained on: give the path of the same data")
    return config


def check_transferable(overrides: Iterable[str]) -> None:
    """Raise ConfigError if an override asks for a change that no evaluation permits."""
    for override in overrides:
        key = root_key(override)
        if key in _REFUSED:
            raise ConfigError(f"{override} cannot be changed in an evaluation, since {_REFUSED[key]}")
        if override[:1] in "+~" or key == "hydra":
            raise ConfigError(f"{override} cannot be given to an evaluation: write key=value, as in task=mnist5k or steps=40")


def fitted(saved: Config, overrides: list[str]) -> Config:
    """Return the config of a run with overrides, without checking this machine.

    Raises:
        ConfigError: an override asks for a change that is not permitted, or does not fit.
    """
    check_transferable(overrides)
    acting = copy(saved)
    acting.agent = saved.agent.acting()
    config = check_over(acting, overrides)
    config.agent = saved.agent
    config.resume = None  # the folder that the training resumed may be gone
    return config


def _is_in(key: str, typed: Iterable[str]) -> bool:
    """Return whether a key of a group was typed, or is inside one whose value is a dict."""
    return any("." in one and f"{key}.".startswith(f"{one}.") for one in typed)


def changes(saved: Config, config: Config, overrides: list[str]) -> Transfer:
    """Return what differs between the configs of a training and of an evaluation, in the order of the config.

    Args:
        saved: the config of the training.
        config: the config of the evaluation.
        overrides: as typed. In a group with another choice only typed keys are listed, since all of its values differ.
    """
    typed = {override.partition("=")[0] for override in overrides}
    a, b = flat(to_plain(saved)), flat(to_plain(config))
    chosen = {group for group in to_plain(config)["choices"] if a[group] != b[group]}
    different = [
        key
        for key in dict.fromkeys([*b, *a])
        if a.get(key) != b.get(key)
        and key != "resume"
        and (key in chosen or key.split(".")[0] not in chosen or (key in b and _is_in(key, typed)))
    ]
    source = tuple(f"{key}={as_typed(a[key])}" for key in different if key in a)
    return Transfer(source=source, target=tuple(f"{key}={as_typed(b[key])}" for key in different if key in b))
