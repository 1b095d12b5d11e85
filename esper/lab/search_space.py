"""What a tuning looks for: which keys, among which values, and on which seeds; all of it before anything is run."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from esper.config import ConfigError
from esper.lab.design import Cell
from esper.seeding import stream

BASELINE = "baseline"
"""The arm that all trials are compared with: the config without any word of theirs."""
_NUMBER = r"[-+]?(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?"
_RANGE = re.compile(rf"({_NUMBER})\.\.({_NUMBER})( log)?")
_USAGE = "write tune='agent.learning_rate: 1e-4..1e-2 log, agent.hidden: 32|64|128'"


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchParam:
    """A key that is tuned."""

    key: str
    choices: tuple[str, ...] = ()
    """Its values; none where it has a range."""
    low: float = 0.0
    high: float = 0.0
    whole: bool = False
    """Are only whole numbers in its range?"""
    log: bool = False
    """Is a factor of two as far at one end of the range as at the other?"""

    @property
    def ends(self) -> list[str]:
        """Words whose values bound all others."""
        values = self.choices or tuple(self.shown(end) for end in (self.low, self.high))
        return [f"{self.key}={value}" for value in values]

    def shown(self, value: float | str) -> str:
        """A value as it is typed, in four digits, within the range."""
        if isinstance(value, str):
            return value
        if self.whole:
            return str(round(value))
        return repr(min(max(float(f"{value:.4g}"), self.low), self.high))

    def read(self, text: str) -> float | int | str:
        """The value that `shown` has shown."""
        if self.choices:
            return text
        return int(text) if self.whole else float(text)


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchSpace:
    """A tuning before it is run."""

    knobs: tuple[SearchParam, ...]
    trials: int
    root: int
    """Of the seeds and of what is tried."""
    seeds: list[int]
    """Of the blocks."""
    outcome: str
    judge_hosts: int
    at_once: int
    common: list[str]
    """Words that all runs share."""

    def cells(self, arms: Mapping[str, Sequence[str]]) -> list[Cell]:
        """Runs of arms, block after block.

        Args:
            arms: the words of each by its name.
        """
        return [
            Cell(arm=arm, block=block, words=(*self.common, *words, f"seed={seed}"))
            for block, seed in enumerate(self.seeds)
            for arm, words in arms.items()
        ]

    def looks(self) -> list[list[str]]:
        """Words of the baseline, and of every knob at its ends."""
        return [[*self.common, *more, f"seed={self.seeds[0]}"] for more in ((), *((end,) for k in self.knobs for end in k.ends))]


def search_space(
    tune: str | Mapping[str, Any] | None,
    *,
    trials: int,
    blocks: int,
    root: int,
    outcome: str,
    judge_hosts: int,
    at_once: int,
    common: Sequence[str] = (),
) -> SearchSpace:
    """A tuning; see `esper.config.TuneConfig` for what is asked.

    Raises:
        ConfigError: that is no tuning.
    """
    whys = {
        "trials": "it is how many sets of values are tried",
        "blocks": "a trial is worth the mean of its blocks, and 3 is a good start",
        "at_once": "it is how many trials are begun together",
    }
    for (name, why), value in zip(whys.items(), (trials, blocks, at_once), strict=True):
        if value < 1:
            raise ConfigError(f"{name} must be 1 or more, got {value}: {why}")
    if judge_hosts < 2:
        raise ConfigError(f"judge_hosts must be 2 or more, got {judge_hosts}: 96 is a good start")
    knobs = _knobs(tune)
    tuned = [knob.key for knob in knobs]
    for word in [*common, *tuned]:
        key = word.partition("=")[0].lstrip("+~")
        if key in ("seed", "policy_seed"):
            raise ConfigError(f"{key} cannot be set or tuned here, since blocks have seeds of their own: set root instead")
        if word in common and key in tuned:
            raise ConfigError(f"{word} sets what is tuned: leave it out, or take {key} out of tune")
    return SearchSpace(
        knobs=tuple(knobs),
        trials=trials,
        seeds=stream(root, "blocks").choice(2**31, size=blocks, replace=False).tolist(),
        root=root,
        outcome=outcome,
        judge_hosts=judge_hosts,
        at_once=at_once,
        common=list(common),
    )


def _knobs(tune: str | Mapping[str, Any] | None) -> list[SearchParam]:
    if isinstance(tune, Mapping):
        parts = [(str(key), str(value)) for key, value in tune.items()]
    else:
        found = [part.partition(":") for part in re.split(r",(?![^\[]*\])", tune or "") if part.strip()]
        if lost := [key for key, colon, _ in found if not colon]:
            raise ConfigError(f"cannot read {lost[0].strip()!r} in tune, which has no colon: {_USAGE}")
        parts = [(key.strip(), value.strip()) for key, _, value in found]
    if not parts:
        raise ConfigError(f"there is nothing to tune: {_USAGE}")
    keys = [key for key, _ in parts]
    if twice := [key for key in keys if keys.count(key) > 1]:
        raise ConfigError(f"tune names {twice[0]} twice: give it one range, or one list of choices")
    return [_knob(key, text) for key, text in parts]


def _knob(key: str, text: str) -> SearchParam:
    choices = [choice.strip() for choice in text.split("|")]
    if len(choices) > 1:
        if "" in choices or len({*choices}) < len(choices):
            raise ConfigError(f"the choices of {key} in tune, {text}, must differ, and none may be empty")
        return SearchParam(key=key, choices=tuple(choices))
    match = _RANGE.fullmatch(text)
    if not match:
        raise ConfigError(
            f"cannot read {key}: {text!r} in tune: write {key}: 0.1..0.9 for a range (with log after it, where factors count), "
            f"or {key}: a|b for choices"
        )
    low, high = float(match[1]), float(match[2])
    if low >= high:
        raise ConfigError(f"the range of {key} in tune, {text}, ends before it begins: write the smaller number first")
    if match[3] and low <= 0:
        raise ConfigError(f"the range of {key} in tune, {text}, has no logarithm at {match[1]}: begin above 0, or leave log out")
    whole = all(re.fullmatch(r"[-+]?\d+", end) for end in (match[1], match[2]))
    return SearchParam(key=key, low=low, high=high, whole=whole, log=bool(match[3]))
