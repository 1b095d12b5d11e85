"""Search space of a tuning: the keys, their values and the seeds."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from esper.config import ConfigError
from esper.lab.design import Cell
from esper.seeding import stream

BASELINE = "baseline"
"""Name of the arm that all trials are compared with: the config without tuned values."""
_NUMBER = r"[-+]?(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?"
_RANGE = re.compile(rf"({_NUMBER})\.\.({_NUMBER})( log)?")
_USAGE = "write tune='agent.learning_rate: 1e-4..1e-2 log, agent.hidden: 32|64|128'"


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchParam:
    """A tuned key."""

    key: str
    choices: tuple[str, ...] = ()
    """Allowed values; empty for a range."""
    low: float = 0.0
    high: float = 0.0
    whole: bool = False
    """If true, sample whole numbers."""
    log: bool = False
    """If true, sample on a log scale."""

    @property
    def ends(self) -> list[str]:
        """Overrides with all choices, or with both ends of the range."""
        values = self.choices or tuple(self.shown(end) for end in (self.low, self.high))
        return [f"{self.key}={value}" for value in values]

    def shown(self, value: float | str) -> str:
        """Return a value as it is typed: four digits, within the range."""
        if isinstance(value, str):
            return value
        if self.whole:
            return str(round(value))
        return repr(min(max(float(f"{value:.4g}"), self.low), self.high))

    def read(self, text: str) -> float | int | str:
        """Return the value of a text that `shown` returned."""
        if self.choices:
            return text
        return int(text) if self.whole else float(text)


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchSpace:
    """A tuning before it is run."""

    params: tuple[SearchParam, ...]
    trials: int
    root: int
    """Root seed of the blocks and of the proposed values."""
    seeds: list[int]
    """Seed of each block."""
    outcome: str
    score_hosts: int
    at_once: int
    common: list[str]
    """Overrides of all runs."""

    def cells(self, arms: Mapping[str, Sequence[str]]) -> list[Cell]:
        """Return the runs of arms, block after block.

        Args:
            arms: overrides of each arm, by its name.
        """
        return [
            Cell(arm=arm, block=block, overrides=(*self.common, *overrides, f"seed={seed}"))
            for block, seed in enumerate(self.seeds)
            for arm, overrides in arms.items()
        ]

    def previews(self) -> list[list[str]]:
        """Return the overrides of the baseline, and of every tuned key at its ends."""
        ends = ((), *((end,) for param in self.params for end in param.ends))
        return [[*self.common, *more, f"seed={self.seeds[0]}"] for more in ends]


def search_space(
    tune: str | Mapping[str, Any] | None,
    *,
    trials: int,
    blocks: int,
    root: int,
    outcome: str,
    score_hosts: int,
    at_once: int,
    common: Sequence[str] = (),
) -> SearchSpace:
    """Return the search space of a tuning; see `esper.config.TuneConfig` for the arguments.

    Raises:
        ConfigError: the arguments describe no tuning.
    """
    for name, value, meaning in (
        ("trials", trials, "it is the number of sets of values to try"),
        ("blocks", blocks, "a trial is scored by the mean over its blocks, and 3 is a good start"),
        ("at_once", at_once, "it is the number of trials that start together"),
    ):
        if value < 1:
            raise ConfigError(f"{name} must be 1 or more, got {value}: {meaning}")
    if score_hosts < 2:
        raise ConfigError(f"score_hosts must be 2 or more, got {score_hosts}: 96 is a good start")
    params = _params(tune)
    tuned = [param.key for param in params]
    for override in [*common, *tuned]:
        key = override.partition("=")[0].lstrip("+~")
        if key in ("seed", "policy_seed"):
            raise ConfigError(f"{key} cannot be set or tuned here, because blocks draw their seeds from root: set root instead")
        if override in common and key in tuned:
            raise ConfigError(f"{override} sets a tuned key: remove it, or remove {key} from tune")
    return SearchSpace(
        params=tuple(params),
        trials=trials,
        seeds=stream(root, "blocks").choice(2**31, size=blocks, replace=False).tolist(),
        root=root,
        outcome=outcome,
        score_hosts=score_hosts,
        at_once=at_once,
        common=list(common),
    )


def _params(tune: str | Mapping[str, Any] | None) -> list[SearchParam]:
    if isinstance(tune, Mapping):
        parts = [(str(key), str(value)) for key, value in tune.items()]
    else:
        found = [part.partition(":") for part in re.split(r",(?![^\[]*\])", tune or "") if part.strip()]
        if lost := [key for key, colon, _ in found if not colon]:
            raise ConfigError(f"cannot read {lost[0].strip()!r} in tune: the colon is missing, {_USAGE}")
        parts = [(key.strip(), value.strip()) for key, _, value in found]
    if not parts:
        raise ConfigError(f"there is nothing to tune: {_USAGE}")
    keys = [key for key, _ in parts]
    if twice := [key for key in keys if keys.count(key) > 1]:
        raise ConfigError(f"tune names {twice[0]} twice: give it one range, or one list of choices")
    return [_param(key, text) for key, text in parts]


def _param(key: str, text: str) -> SearchParam:
    choices = [choice.strip() for choice in text.split("|")]
    if len(choices) > 1:
        if "" in choices or len({*choices}) < len(choices):
            raise ConfigError(f"the choices of {key} in tune, {text}, must differ and must not be empty")
        return SearchParam(key=key, choices=tuple(choices))
    match = _RANGE.fullmatch(text)
    if not match:
        raise ConfigError(
            f"cannot read {key}: {text!r} in tune: write {key}: 0.1..0.9 for a range (append log for a log scale), or "
            f"{key}: a|b for choices"
        )
    low, high = float(match[1]), float(match[2])
    if low >= high:
        raise ConfigError(f"the range of {key} in tune, {text}, is empty: write the smaller number first")
    if match[3] and low <= 0:
        raise ConfigError(f"the range of {key} in tune, {text}, has no logarithm at {match[1]}: start above 0, or remove log")
    whole = all(re.fullmatch(r"[-+]?\d+", end) for end in (match[1], match[2]))
    return SearchParam(key=key, low=low, high=high, whole=whole, log=bool(match[3]))
