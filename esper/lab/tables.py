"""Tables of a comparison for other programs: one row per held-out host, and the differences in LaTeX."""

from collections.abc import Sequence
from math import isfinite
from typing import Any

import pandas as pd

from esper.lab.evaluation import POLICIES
from esper.lab.runs import Run
from esper.lab.scoring import Scoring, read_scores, scored_file


def host_table(runs: Sequence[Run], scoring: Scoring) -> pd.DataFrame:
    """Return one row per arm, controller, block and held-out host, with its kind and all outcomes: the columns of hosts.csv.

    Args:
        runs: finished runs, scored with these settings.
        scoring: settings.
    """
    parts: list[pd.DataFrame] = []
    for run in runs:
        scored = read_scores(run, scored_file(run, scoring.hosts, scoring.overrides))
        for name, rows in scored["rows"].items():
            if name in POLICIES or (name in scoring.baselines and run.arm == scoring.arm):
                cell = {"arm": run.arm if name in POLICIES else name, "controller": name, "block": run.block}
                values = {key: rows[key] for key in ("instance", *scoring.outcomes) if key in rows}
                parts.append(pd.DataFrame({**cell, "host": range(scoring.hosts), **values}))
    return pd.concat(parts, ignore_index=True)


def blocks_of(row: Any) -> str:
    """Return the number of blocks of a row of differences.csv, and of those that it leaves out, as in `9 (1 collapsed)`."""
    reasons = {"collapsed": row.collapsed, "with a missing run": row.missing, "after the look": row.after_look}
    left_out = ", ".join(f"{count} {reason}" for reason, count in reasons.items() if count)
    return f"{row.blocks} ({left_out})" if left_out else str(row.blocks)


def p_of(value: float) -> str:
    """Return a p value as text; below 0.0001 its digits mean nothing, as 0 for differences that do not vary."""
    return "< 0.0001" if value < 0.0001 else f"{value:.3g}"


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
            "95 % interval": f"{row.low:.4g} to {row.high:.4g}" if isfinite(row.low) else "",
            "p": p_of(row.p if row.verdict == "control" else row.p_holm),  # a control needs no correction
            "p within": p_of(row.p_equivalence if row.verdict == "control" else row.p_equivalence_holm),
            "verdict": row.verdict,
        }
        for row in measured.itertuples()
    ]
    return pd.DataFrame(rows).to_latex(index=False, escape=True, column_format="lllrrrrrl")
