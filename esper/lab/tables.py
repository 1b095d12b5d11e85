"""Tables of a comparison for other programs: one row per held-out host, and the differences in LaTeX."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

import pandas as pd

from esper.evaluation.held_out import POLICIES
from esper.lab.runs import Run
from esper.lab.scoring import Scoring
from esper.measure.seed_log import Seed, SeedStats, grouped
from esper.task.kinds import condensed


def host_table(runs: Sequence[Run], scoring: Scoring) -> pd.DataFrame:
    """Return one row per arm, controller, block and held-out host, with its kind and all outcomes: the columns of hosts.csv.

    Args:
        runs: finished runs, scored with these settings.
        scoring: settings.
    """
    parts: list[pd.DataFrame] = []
    for run, name, arm, rows in _controllers(runs, scoring, POLICIES):
        cell = {"arm": arm, "controller": name, "block": run.block}
        values = {"kind": rows["instance"]} | {key: rows[key] for key in scoring.outcomes if key in rows}
        parts.append(pd.DataFrame({**cell, "host": range(scoring.hosts), **values}))
    return pd.concat(parts, ignore_index=True)


def seed_table(runs: Sequence[Run], scoring: Scoring) -> pd.DataFrame:
    """Return one row per seed that an arm planted in a held-out host: the columns of seeds.csv.

    Runs that were scored before seeds were recorded have none.

    Args:
        runs: finished runs, scored with these settings.
        scoring: settings.
    """
    found: list[dict[str, Any]] = []
    for run, _, arm, rows in _controllers(runs, scoring, ("policy",)):
        for host, seeds in enumerate(rows.get("seeds", [])):
            found += [{"arm": arm, "block": run.block, "kind": rows["instance"][host], "host": host, **seed} for seed in seeds]
    return pd.DataFrame(found, columns=["arm", "block", "kind", *(entry.name for entry in fields(Seed))])


def _controllers(runs: Sequence[Run], scoring: Scoring, policies: Sequence[str]) -> Iterator[tuple[Run, str, str, Any]]:
    """Yield what was scored of each run: the run, the controller, its arm, and its rows. Baselines grow the hosts of one arm.

    Args:
        runs: finished runs, scored with these settings.
        scoring: settings.
        policies: names of the controllers that belong to the arm of their run.
    """
    for run in runs:
        for name, rows in scoring.read(run)["rows"].items():
            if name in policies:
                yield run, name, run.arm, rows
            elif name in scoring.baselines and run.arm == scoring.arm:
                yield run, name, name, rows


def grown(hosts: pd.DataFrame, seeds: pd.DataFrame) -> dict[str, dict[tuple[str, str], SeedStats]]:
    """Return the statistics of the seeds of each arm, by blueprint, slot and kind of host; standard errors are over blocks, since
    each has its own policy.

    Args:
        hosts: the columns of hosts.csv.
        seeds: those of seeds.csv.
    """
    found: dict[str, dict[tuple[str, str], SeedStats]] = {}
    for arm in seeds["arm"].unique():
        own: Any = hosts[(hosts["arm"] == arm) & (hosts["controller"] != "policy_greedy")]
        rank = {cell: index for index, cell in enumerate(zip(own["block"], own["host"], strict=True))}
        chosen: Any = seeds[seeds["arm"] == arm]
        blueprints, slots = (sorted(chosen[name].unique()) for name in ("blueprint", "slot"))
        listed = [
            Seed(
                host=rank[row.block, row.host],
                slot=slots.index(row.slot),
                blueprint=blueprints.index(row.blueprint),
                planted=row.planted,
                epochs=row.epochs,
                fate=row.fate,
                contribution=math.nan if row.contribution is None else row.contribution,
            )
            for row in chosen.itertuples()
        ]
        kinds = [condensed(kind) for kind in own["kind"]]
        found[arm] = grouped(listed, blueprints, slots, kinds, own["block"].tolist())
    return found


def blocks_of(row: Any) -> str:
    """Return the number of blocks of a row of differences.csv, and of those that it leaves out, as in `9 (1 collapsed)`."""
    reasons = {"collapsed": row.collapsed, "with a missing run": row.missing, "after the look": row.after_look}
    left_out = ", ".join(f"{count} {reason}" for reason, count in reasons.items() if count)
    return f"{row.blocks} ({left_out})" if left_out else str(row.blocks)


def p_values(row: Any) -> tuple[str, str]:
    """Return the p values of a row of differences.csv as text: of the difference, and of its being within the margin.

    They are corrected for the number of pairs, except for an A/A control, which needs none, and empty without a test.
    """
    if not tested(row):
        return "", ""
    pair = (row.p, row.p_equivalence) if row.verdict == "control" else (row.p_holm, row.p_equivalence_holm)
    return _p_of(pair[0]), _p_of(pair[1])


def _p_of(value: float) -> str:
    return "< 0.0001" if value < 0.0001 else f"{value:.3g}"


def tested(row: Any) -> bool:
    """Return whether a row of differences.csv has a test: not before a look, nor where all differences are 0."""
    return varies(row) and (row.verdict == "control" or not pd.isna(row.look))


def varies(row: Any) -> bool:
    """Return whether a row has differences to test: at least two blocks, and differences that are not all 0."""
    return row.blocks >= 2 and (row.mean != 0 or spreads(row))


def spreads(row: Any) -> bool:
    """Return whether the differences of a row vary, or would in the worst cases of missing runs."""
    return row.spread > 0 or 0 < row.high - row.low < math.inf


def latex(differences: pd.DataFrame) -> str:
    """Return the differences of arms as a LaTeX table, which needs the package booktabs.

    Args:
        differences: the columns of differences.csv.
    """
    measured: Any = differences[differences["blocks"] >= 2]
    rows = [
        {
            "outcome": row.outcome,
            "first": row.first,
            "second": row.second,
            "blocks": blocks_of(row),
            "difference": f"{row.mean:.4g}",
            "95 % interval": f"{row.low:.4g} to {row.high:.4g}" if math.isfinite(row.low) else "",
            **dict(zip(("p", "p within"), p_values(row), strict=True)),
            "verdict": row.verdict,
        }
        for row in measured.itertuples()
    ]
    return pd.DataFrame(rows).to_latex(index=False, escape=True, column_format="lllrrrrrl")
