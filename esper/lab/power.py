"""Power of an experiment before it runs, and whether more hosts or more blocks would raise it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from esper.config import FORMER, ConfigError, standalone_agents
from esper.lab.design import AnalysisPlan, Design
from esper.lab.outcomes import BASELINES, OUTCOMES, compared
from esper.stats.collapse import collapsed_pair
from esper.stats.paired import MIN_BLOCKS, likely_spread
from esper.stats.power import PlannedTest, VarianceParts, variance_parts
from esper.text import percent

Pairs = Sequence[tuple[str, str]]
ENOUGH = 0.95
"""Power above which more hosts or blocks are not advised."""
LEAST_BLOCKS = 5
"""Fewest blocks from which a variance is estimated."""


@dataclass(frozen=True, slots=True)
class Typical:
    """How much outcomes vary in a task, from records in experiments/."""

    spreads: Mapping[str, float]
    """Standard deviation of the difference of two controllers in a block, by outcome, rounded to two digits."""
    sizes: Mapping[str, tuple[str, ...]]
    """Setting that affects how much outcomes vary -> its values in the records."""


TYPICAL = {
    "digits": Typical(
        {
            "accuracy": 2.3,
            "accuracy_greedy": 12.0,
            "validation": 2.4,
            "parameters": 50.0,
            "flops": 2000.0,
            "training_flops": 1.2e8,
            "return": 1.9,
            "learning": 1.5,
            "rollbacks": 0.0034,
        },
        {"updates": ("25", "50"), "hosts": ("32",), "steps": ("20",), "score_hosts": ("96",)},
    ),
    "digits_drift": Typical(
        {"accuracy": 4.6, "validation": 4.6, "return": 1.4},
        {"updates": ("120",), "hosts": ("32",), "steps": ("20",), "score_hosts": ("64",)},
    ),
    "mnist5k_drift": Typical(
        {"accuracy": 3.8, "validation": 3.7, "return": 1.8},
        {"updates": ("60",), "hosts": ("32",), "steps": ("20",), "score_hosts": ("64",)},
    ),
}
"""By task: the median over the records that compare trained policies on `digits`, and over the baselines of PPO in the study of
each task with drift."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """The standard deviation of the difference of two arms in a block."""

    value: float
    parts: VarianceParts | None = None
    """Its sources; None if unknown."""


def spread_of(cells: pd.DataFrame, hosts: pd.DataFrame, outcome: str, pairs: Pairs) -> Spread | None:
    """Return the spread of an outcome, pooled over pairs of arms; None if no pair shares `LEAST_BLOCKS`.

    Args:
        cells: values of runs, blocks by arms.
        hosts: columns of hosts.csv; may be empty. Only hosts of runs with a value count.
        outcome: name of the outcome.
        pairs: pairs of arms.
    """
    known = [(first, second) for first, second in pairs if {first, second} <= {*cells.columns}]
    shared = {(first, second): (cells[first] - cells[second]).dropna() for first, second in known}
    shared = {pair: values for pair, values in shared.items() if len(values) >= LEAST_BLOCKS}
    if not shared:
        return None
    value = math.sqrt(np.mean(np.square([likely_spread(values) for values in shared.values()])))
    parts = _parts(hosts, outcome, {pair: values.index for pair, values in shared.items()})
    if parts and (whole := parts.runs + parts.hosts):
        parts = replace(parts, runs=parts.runs * value**2 / whole, hosts=parts.hosts * value**2 / whole)
    return Spread(value=value, parts=parts)


def _parts(hosts: pd.DataFrame, outcome: str, blocks: Mapping[tuple[str, str], pd.Index]) -> VarianceParts | None:
    """Return the sources of the variance of a difference, given the blocks of each pair of arms; None for outcomes that are not
    measured host by host."""
    column = outcome.removesuffix("_greedy")
    if column not in hosts:
        return None
    rows: Any = hosts[(hosts["controller"] == "policy_greedy") == outcome.endswith("_greedy")]
    wide = rows.pivot(index=["block", "host"], columns="arm", values=column)
    known = {(first, second): own for (first, second), own in blocks.items() if {first, second} <= {*wide.columns}}
    tables = [(wide[first] - wide[second]).unstack("host").dropna() for first, second in known]
    tables = [table[table.index.isin(own)] for table, own in zip(tables, known.values(), strict=True)]
    tables = [table.to_numpy() for table in tables if len(table) >= LEAST_BLOCKS]
    return variance_parts(tables) if tables else None


def advice(spread: Spread, test: PlannedTest) -> list[str]:
    """Say whether more hosts or more blocks raise the power, if the sources of the variance are known."""
    parts = spread.parts
    if parts is None:
        return []
    test = replace(test, looks=sorted({max(MIN_BLOCKS, look) for look in test.looks}))
    now, hosts = (test.powers(value)[-1] for value in (spread.value, parts.spread(4 * parts.num_hosts)))
    if now > ENOUGH:
        return []
    return [
        f"{percent(parts.share)} of the variance of a difference comes from the {parts.num_hosts} hosts: "
        f"with {test.looks[-1]} blocks, 4x hosts raise the power from {percent(now)} to {percent(hosts)}, "
        f"2x blocks to {percent(test.powers(spread.value, 2.0)[-1])}"
    ]


def expected_power(design: Design) -> list[str]:
    """Return the lines about the power of an experiment that are printed before its first run.

    Raises:
        ConfigError: the pilot cannot be used.
    """
    plan = design.plan
    pairs = [pair for pair in combinations(compared(design.arms, plan.baselines), 2) if plan.against in (None, *pair)]
    if not pairs:
        return []
    if plan.pilot is not None:
        spread, source = _pilot_spread(plan, pairs), f"from {plan.pilot}{_elsewhere(plan)}"
    elif (task := _task(design)) and (assumed := assumed_spread(design)) is not None:
        unlike = _unlike(design, TYPICAL[task].sizes)
        caveat = f" as recorded, but a guess for {' '.join(unlike)}" if unlike else ""
        spread = Spread(value=assumed)
        source = f"typical of {task}{caveat}; pilot=FOLDER takes it from an experiment"
    else:
        return [f"power unknown: no record tells how {plan.outcome} varies here; pilot=FOLDER takes it from an experiment"]
    test = PlannedTest(margin=plan.margin, looks=plan.looks, alpha=plan.alpha, pairs=len(pairs))
    *earlier, (last, power) = zip(test.looks, test.powers(spread.value), strict=True)
    unit = OUTCOMES[plan.outcome].difference
    effect = f"a difference of {plan.margin:g}{'' if unit == '1' else f' {unit}'} in {plan.outcome}"
    line = f"{last} blocks detect {effect} with a power of {percent(power)}"
    line += "".join(f", the first {look} of them with a power of {percent(before)}" for look, before in earlier)
    level = f"at a level of {percent(plan.alpha)} / {len(pairs)} pairs; " if len(pairs) > 1 else ""
    known = f"({level}standard deviation of a difference {spread.value:.2g}, {source})"
    return [f"{line} {known}; a power of 80 % takes {test.blocks_needed(spread.value)} blocks", *advice(spread, test)]


def _unlike(design: Design, recorded: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the settings of the arms, typed or not, that differ from those of the records."""
    arms = [cell.config() for cell in design.firsts()]
    found = {key: [getattr(arm, key) for arm in arms] for key in recorded if key != "score_hosts"}
    found["score_hosts"] = [design.plan.score_hosts]
    pairs = dict.fromkeys((key, str(value)) for key, values in found.items() for value in values)
    return [f"{key}={value}" for key, value in pairs if value not in recorded[key]]


def assumed_spread(design: Design) -> float | None:
    """Return the typical spread that the power of an experiment without a pilot assumes; None if none is known for its task."""
    task = _task(design)
    return TYPICAL[task].spreads.get(design.plan.outcome) if task and design.plan.pilot is None else None


def _task(design: Design) -> str | None:
    """Return the task of all arms if its typical spreads are known; None otherwise, and if there are `score_overrides`."""
    tasks: set[str] = set()
    for own in design.arms.values():
        settings = (one.partition("=") for one in (*design.common, *own))
        tasks |= {value for key, _, value in settings if key in ("task", "experiment")} or {"digits"}
    every = [*design.common, *(override for own in design.arms.values() for override in own)]
    growth = all(override == "env=growth" for override in every if override.startswith("env="))
    alike = growth and len(tasks) == 1 and not design.plan.score_overrides
    return tasks.pop() if alike and tasks <= TYPICAL.keys() else None


def _pilot_spread(plan: AnalysisPlan, pairs: Pairs) -> Spread:
    """Return the spread in the pilot: of the planned pairs that it has, or else of all pairs of its trained arms."""
    folder = Path(str(plan.pilot))
    table, hosts = folder / "comparison.csv", _read_hosts(folder / "hosts.csv")
    cells, trained = read_outcomes(table, plan.outcome), read_outcomes(table, plan.outcome, trained=True).columns
    for chosen in (pairs, list(combinations(trained, 2))):
        if spread := spread_of(_without_collapses(cells, table, plan, chosen), hosts, plan.outcome, chosen):
            if spread.parts is None:
                return spread
            parts = replace(spread.parts, hosts=spread.parts.hosts * spread.parts.num_hosts / plan.score_hosts)
            return Spread(value=spread.parts.spread(plan.score_hosts), parts=replace(parts, num_hosts=plan.score_hosts))
    raise ConfigError(
        f"pilot={folder} has no two arms with {plan.outcome} in {LEAST_BLOCKS} blocks: name another folder, or leave pilot out"
    )


def _without_collapses(cells: pd.DataFrame, path: Path, plan: AnalysisPlan, pairs: Pairs) -> pd.DataFrame:
    """Return the outcomes of a comparison.csv, NaN for runs that collapsed, which verdicts leave out."""
    if not OUTCOMES[plan.outcome].higher_is_better:
        return cells
    table: Any = pd.read_csv(path)
    strata = table.groupby("block")["stratum"].first().fillna("") if "stratum" in table else pd.Series("", cells.index)
    left = cells.copy()
    for pair in (pair for pair in pairs if {*pair} <= {*cells.columns}):
        both = cells[[*pair]].dropna(how="all")
        down = collapsed_pair(both[pair[0]], both[pair[1]], strata.reindex(both.index), margin=plan.margin)
        for arm, fallen in zip(pair, down, strict=True):
            left.loc[both.index[fallen], arm] = math.nan
    return left


def _elsewhere(plan: AnalysisPlan) -> str:
    """Return what to add to the name of a pilot that was scored on other hosts than planned."""
    pilot = Design.find(Path(str(plan.pilot)))
    known = pilot.plan.score_overrides if pilot else []
    return "" if known == plan.score_overrides else ", which was scored with other overrides"


def read_outcomes(path: Path, outcome: str, *, trained: bool = False) -> pd.DataFrame:
    """Return one outcome of a comparison.csv as a table of blocks by arms.

    Args:
        path: the file.
        outcome: name of the outcome.
        trained: if true, leave baselines out. Files of earlier versions do not name controllers: there they are known by name.

    Raises:
        ConfigError: the file cannot be read, or lacks the outcome.
    """
    try:
        table: Any = pd.read_csv(path).rename(columns={old: new for old, new in FORMER.items() if new in OUTCOMES})
        if trained:
            known = (*BASELINES, *standalone_agents())
            table = table[table["controller"] == "policy" if "controller" in table else ~table["arm"].isin(known)]
        return table.pivot(index="block", columns="arm", values=outcome).astype(float)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(
            f"pilot={path.parent} has no {path.name} with {outcome}: run python -m esper.compare on it, or choose another folder"
        ) from error


def _read_hosts(path: Path) -> pd.DataFrame:
    """Return the columns of a hosts.csv, checked; an empty table if there is none.

    Raises:
        ConfigError: the file is not what a comparison writes.
    """
    if not path.is_file():
        return pd.DataFrame()
    try:
        table = pd.read_csv(path)
        if table.set_index(["arm", "controller", "block", "host"]).index.has_duplicates:
            raise ValueError("a host appears twice")
        return table.astype({name: float for name in table.columns if name in OUTCOMES})
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"{path} is damaged ({error}): run python -m esper.compare on {path.parent} again") from error
