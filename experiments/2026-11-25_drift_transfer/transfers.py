"""Policies on worlds that they have not seen, against rivals fitted there, by the rule of README.md.

    python experiments/2026-11-25_drift_transfer/transfers.py [FILE ...]

Reads the comparison.csv of each world that was measured: WORLD.csv beside it, or the named files. Needs the extra compare.
"""

import sys
from pathlib import Path

import pandas as pd

from esper.stats.intervals import Interval
from esper.stats.sign_flip import sign_flip

HERE = Path(__file__).parent
WORLDS = ("kinds", "timetable", "data", "size")
RIVALS = ("react_bandit", "fixed")
"""Arms fitted in the world itself."""
MARGIN = 1.0
"""Points of return by which a policy may be worse than its best rival and still count as transferred."""


def returns(file: Path) -> pd.DataFrame:
    """Return the return of every run in a world, blocks by arms."""
    return pd.read_csv(file).pivot(index="block", columns="arm", values="return")


def difference(table: pd.DataFrame, first: str, second: str) -> Interval:
    """Return the mean paired difference in return of two arms, with its 95 % interval."""
    values = table[first].to_numpy() - table[second].to_numpy()
    return sign_flip(values).interval


def best_rival(table: pd.DataFrame) -> str:
    """Return the rival with the highest mean return."""
    return str(table[list(RIVALS)].mean().idxmax())


def main(*files: str) -> None:
    for file in [Path(file) for file in files] or [HERE / f"{world}.csv" for world in WORLDS]:
        table = returns(file)
        rival = best_rival(table)
        print(f"{file.stem}: {', '.join(f'{arm} {mean:.1f}' for arm, mean in table.mean().items())}; {len(table)} blocks")
        for policy in ("ppo", "forest"):
            found = difference(table, policy, rival)
            verdict = "transfers" if found.low > -MARGIN else "not shown"
            print(f"  {policy} - {rival}: {found.mean:.1f} ({found.low:.1f} to {found.high:.1f}): {verdict}")
        found = difference(table, "ppo", "forest")
        print(f"  ppo - forest: {found.mean:.1f} ({found.low:.1f} to {found.high:.1f})")


if __name__ == "__main__":
    main(*sys.argv[1:])
