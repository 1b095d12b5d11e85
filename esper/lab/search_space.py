"""Search space of a tuning: swept overrides as Optuna distributions, and the seeds of its blocks."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, Override, RangeSweep

from esper.config import ConfigError
from esper.lab.cell import Cell
from esper.lab.design import draw_seeds, refuse_seeds
from esper.sweeps import TuneConfig

if TYPE_CHECKING:
    import numpy as np
    from optuna.distributions import BaseDistribution

BASELINE = "baseline"
"""Name of the arm that all trials are compared with: the config without tuned values."""
_USAGE = "sweep over a key, as in 'agent.learning_rate=tag(log, interval(1e-4, 1e-2))' or agent.hidden=32,64,128"


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchSpace:
    """A tuning before it is run."""

    config: TuneConfig
    params: "dict[str, BaseDistribution]"
    """Distribution of each tuned key."""
    seeds: list[int]
    """Random seed of each block, never that of a block of an experiment (but for chance), on which the result is tested."""
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

    @property
    def size(self) -> float:
        """Number of different sets of values; infinite if a key may have any value in an interval."""
        return math.prod(math.inf if (values := values_of(one)) is None else len(values) for one in self.params.values())

    def previews(self) -> list[list[str]]:
        """Return the overrides of the baseline, and of every tuned key with each choice or at both ends of its range."""
        ends = [[f"{key}={value}"] for key, one in self.params.items() for value in _ends(one)]
        return [[*self.common, *more, f"seed={self.seeds[0]}"] for more in ([], *ends)]


def search_space(config: TuneConfig, overrides: Sequence[str]) -> SearchSpace:
    """Return the search space of a tuning.

    Args:
        config: the config of the sweeper.
        overrides: overrides of the command. Those that sweep over a key define its distribution, the others are common to all
            runs.

    Raises:
        ConfigError: the arguments do not describe a tuning.
    """
    for name, least in (("trials", 1), ("blocks", 1), ("at_once", 1), ("score_hosts", 2)):
        if (value := getattr(config, name)) < least:
            raise ConfigError(f"{name} must be at least {least}, got {value}")
    refuse_seeds(overrides)
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    swept = [override for override in parsed if override.is_sweep_override()]
    if not swept:
        raise ConfigError(f"there is nothing to tune: {_USAGE}")
    keys = [override.key_or_group for override in parsed]
    if twice := next((override for override in swept if keys.count(override.key_or_group) > 1), None):
        raise ConfigError(f"{twice.key_or_group} is set twice: keep only {twice.input_line}")
    return SearchSpace(
        config=config,
        params={override.get_key_element(): distribution(override) for override in swept},
        seeds=draw_seeds(config.root, config.blocks, "tuning_block"),
        common=[str(override.input_line) for override in parsed if not override.is_sweep_override()],
    )


def distribution(override: Override) -> "BaseDistribution":
    """Return the distribution of a swept override, read as by hydra-optuna-sweeper, but `range` excludes its end as in Hydra.

    Raises:
        ConfigError: Optuna is not installed, or there is no such distribution.
    """
    try:
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution  # late: takes half a second
    except ImportError as error:
        raise ConfigError("sweep=tune needs optuna: pip install -c constraints.txt -e '.[tune]'") from error
    value: Any = override.value()
    log = "log" in getattr(value, "tags", ())
    try:
        if isinstance(value, ChoiceSweep):
            choices = list(override.sweep_string_iterator())
            if twice := next((one for one in choices if choices.count(one) > 1), None):
                raise ValueError(f"it lists {twice} twice")
            return CategoricalDistribution(choices)
        ends: list[Any] = [value.start, value.end] if isinstance(value, IntervalSweep) else []
        steps = {}
        if isinstance(value, RangeSweep):
            ends, steps = list(value.range()), {"step": value.step}
        if not ends:
            raise ValueError("it names no values")
        kind: Any = IntDistribution if isinstance(ends[0], int) else FloatDistribution
        return kind(ends[0], ends[-1], log=log, **steps)
    except ValueError as error:
        raise ConfigError(f"cannot tune {override.input_line} ({error}): {_USAGE}") from error


def values_of(one: Any) -> Sequence[Any] | None:
    """Return all values of a distribution; None if there are infinitely many."""
    if hasattr(one, "choices"):
        return list(one.choices)
    if isinstance(one.low, int):
        return range(one.low, one.high + 1, one.step)
    if one.low == one.high:
        return [one.low]
    if one.step is None:
        return None
    return [one.low + rank * one.step for rank in range(1 + round((one.high - one.low) / one.step))]


def draw_value(one: Any, rng: "np.random.Generator") -> Any:
    """Return a random value of a distribution: uniform, or log-uniform in an interval with the tag log."""
    values = values_of(one)
    if values is not None:
        return values[int(rng.integers(len(values)))]
    if one.log:
        return math.exp(rng.uniform(math.log(one.low), math.log(one.high)))
    return float(rng.uniform(one.low, one.high))


def _ends(one: Any) -> tuple[Any, ...]:
    """Return the choices of a distribution, or both ends of its range."""
    return one.choices if hasattr(one, "choices") else (one.low, one.high)
