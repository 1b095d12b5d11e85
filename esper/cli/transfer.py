"""A run's config moved to another world: which words may change it for an evaluation, and what they changed.

The words are those of `esper.train`: groups, as in task=mnist5k, which come with their defaults, and keys, as in steps=40. What
is not named stays as it was when the policy was trained: rent, gates, blueprints.
"""

import re
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, fields
from hashlib import sha256
from typing import Any

from esper.cli.overrides import check_over
from esper.config import ALIASES, Config, ConfigError, ready, register
from esper.training.config_io import flat, to_plain

WORLD = ("task", "host", "slots", "gates", "blueprint", "devices", "reward", "governor", "steps", "seed")
"""Roots of the keys that an evaluation may change."""
SAME_WORLD = ("seed", "devices")
"""Those of them that leave the kind of hosts as it was: other draws, and where they are computed."""
_REFUSED = {
    "agent": "a policy is judged as it was trained: leave it out, or name others to compare with in controllers",
    **dict.fromkeys(("experiment", "sweep"), "it is a preset for training: name groups and keys, as in task=digits steps=40"),
    **dict.fromkeys(
        ("updates", "resume", "telemetry", "policy_seed", "counterfactuals"), "it has no effect on an evaluation: leave it out"
    ),
}
"""Roots of the keys that it may not change, and why."""


def slug(words: Iterable[str]) -> str:
    """Words as part of a file's name; empty where there are none."""
    name = re.sub(r"[^\w=.+-]+", "_", "_".join(words)).strip("_")
    return name if len(name) <= 80 else f"{name[:72]}_{sha256(name.encode()).hexdigest()[:7]}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Transfer:
    """From what to what a policy was moved: words as they would be typed."""

    source: tuple[str, ...]
    target: tuple[str, ...]

    @property
    def title(self) -> str:
        """Such as "transfer from task=digits to task=mnist5k"; empty where the world is the one of the training."""
        if not any(_root(word) not in SAME_WORLD for word in self.target):
            return ""
        return f"transfer from {' '.join(self.source)} to {' '.join(self.target)}"

    @property
    def slug(self) -> str:
        """The same as part of a file's name; empty where nothing was changed."""
        return slug(self.target)


def is_of_world(word: str) -> bool:
    """Does a word of a command line speak of the run's config?"""
    return _root(word) in {*(entry.name for entry in fields(Config)), *ALIASES, *_REFUSED, "hydra"} - {"hosts"}


def moved(saved: Config, words: list[str]) -> Config:
    """The config of a run as the words change it; asks this machine whether hosts, data and devices are to be had.

    Raises:
        ConfigError: a word asks for a change that may not be made, or does not fit.
    """
    for word in words:
        key = _root(word)
        if key in _REFUSED:
            raise ConfigError(f"{word} cannot be changed in an evaluation, since {_REFUSED[key]}")
        if word[:1] in "+~" or key == "hydra":
            raise ConfigError(f"{word} cannot be given to an evaluation: write key=value, as in task=mnist5k or steps=40")
    register()
    judged = copy(saved)
    judged.agent = saved.agent.acting()
    config = check_over(judged, words)
    config.agent = saved.agent
    config.resume = None  # of the training: the folder need not be there any more
    ready(config)
    return config


def changes(saved: Config, config: Config, words: list[str]) -> Transfer:
    """What differs between the config of a training and that of an evaluation, in the order of the config.

    Args:
        words: what was typed. Of a group with another choice only what was typed is named: all of its values are others.
    """
    typed = {word.partition("=")[0] for word in words}
    a, b = flat(to_plain(saved)), flat(to_plain(config))
    chosen = {group for group in to_plain(config)["choices"] if a[group] != b[group]}
    different = [
        key
        for key in dict.fromkeys([*b, *a])
        if a.get(key) != b.get(key)
        and key != "resume"
        and (key in chosen or key.split(".")[0] not in chosen or (key in typed and key in b))
    ]
    source = tuple(f"{key}={_shown(a[key])}" for key in different if key in a)
    return Transfer(source=source, target=tuple(f"{key}={_shown(b[key])}" for key in different if key in b))


def _root(word: str) -> str:
    return re.split(r"[=.@:]", word.lstrip("+~"), maxsplit=1)[0].strip()


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ",".join(map(_shown, value)) + "]"
    return {"None": "null", "True": "true", "False": "false"}.get(str(value), str(value))
