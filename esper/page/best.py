"""The best update of a run by its return in training, and whether the policy has become worse since."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from esper.text import counted

LAST = 5
"""Updates at the end of a run whose mean return is compared."""
BESIDE = 2
"""Updates on each side of the best one that are compared. The best one itself is left out: it was chosen for its luck, too."""
RETURN = "policy/return"


def best_update(best: Mapping[str, Any] | None) -> str:
    """Return the sentence that names the checkpoint with the highest return in training; empty before the first update.

    Args:
        best: `best` of a checkpoint.
    """
    if not best:
        return ""
    who = "which tried it" if _played(best) == best["update"] else f"by the policy after {counted(best['update'], 'update')}"
    update, checkpoint = _played(best), _where(best["update"])
    return f"The highest return in training is {best['return']:.1f} points, in update {update}, {who}: {checkpoint}."


def decline(records: Sequence[Mapping[str, float]], best: Mapping[str, Any] | None) -> str:
    """Return a sentence if the last updates return less than those beside the best one, by Welch's 95 % interval; else "", as for
    a search, whose updates try candidates that have nothing to do with each other."""
    if best and _played(best) == best["update"]:
        return ""
    played = [record for record in records if np.isfinite(record.get(RETURN, np.nan))]
    place = next((i for i, record in enumerate(played) if best and record["update"] == _played(best)), None)
    if place is None or best is None or place + BESIDE >= len(played) - LAST:
        return ""
    beside = [one[RETURN] for one in [*played[max(0, place - BESIDE) : place], *played[place + 1 : place + 1 + BESIDE]]]
    last = [record[RETURN] for record in played[-LAST:]]
    if min(len(beside), len(last)) < 2 or np.ptp(beside) + np.ptp(last) == 0:
        return ""
    low, high = stats.ttest_ind(beside, last, equal_var=False).confidence_interval()
    if not low > 0:
        return ""
    first, end = (round(played[i]["update"]) for i in (max(0, place - BESIDE), place + BESIDE))
    fall = f"{np.mean(beside) - np.mean(last):.1f} less ({low:.1f} to {high:.1f})"
    return (
        f"Returns in training have fallen since the best one: the last {LAST} recorded updates return {np.mean(last):.1f} points "
        f"on average, {fall} than updates {first} to {end} without the best, update {_played(best)}. "
        f"{_where(best['update'])} is the policy of that time: evaluate it to see whether it does better on held-out hosts, too."
    )


def _played(best: Mapping[str, Any]) -> int:
    """Return the update in which the best policy acted; a policy that learns acts in the update after that of its checkpoint."""
    return best.get("played", best["update"] + 1)


def _where(update: int) -> str:
    return f"checkpoint=FOLDER/best (checkpoint_{update:06d}.pt)"
