"""Statistics of seeds as rows of text, for the page of a run and the report of a comparison."""

import math
from collections.abc import Mapping

from esper.measure.seed_log import SeedStats

HEAD = (
    "by",
    "name",
    "planted\nper host",
    "kept\nper host",
    "removed\nper host",
    "rolled back\nper host",
    "churn",
    "epochs\nin slot",
    "contribution\nif it stayed",
    "contribution\nif removed",
)
"""Columns of the rows."""
TITLE = "Seeds by blueprint, slot and kind of host"
LEGEND = (
    "Kept: fossilized; removed: pruned; churn: share of planted seeds that were removed or lost in a rollback; "
    "contribution: the last one measured [pp], mean over seeds ± standard error (over hosts, twins counted "
    "as one; in a comparison, over blocks). A host learns to rely on its seed, so the "
    "contribution can exceed what growing gained"
)
"""What the columns mean."""


def rows_of(stats: Mapping[tuple[str, str], SeedStats], *, empty: bool = True) -> list[list[str]]:
    """Return a row of text per group.

    Args:
        stats: statistics by group and name; see `grouped`.
        empty: if false, leave out groups in which nothing was planted.
    """
    return [
        [
            group,
            name,
            f"{one.planted:.2f}",
            f"{one.kept:.2f}",
            f"{one.removed:.2f}",
            f"{one.rolled_back:.2f}",
            "" if math.isnan(one.churn) else f"{one.churn:.0%}",
            _number(one.epochs),
            _number(one.contribution, one.contribution_error),
            _number(one.contribution_removed),
        ]
        for (group, name), one in stats.items()
        if empty or one.planted
    ]


def _number(value: float, error: float = math.nan) -> str:
    if math.isnan(value):
        return ""
    mean = f"{round(value, 1) + 0.0:.1f}"  # no minus zero
    return mean if math.isnan(error) else f"{mean} ± {error:.1f}"
