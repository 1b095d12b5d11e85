"""The oracle and the late oracle on the same blocks: python foresight.py STUDY.csv LATE.csv

Prints the mean return of both, their difference, the lead of each over the best of schedule, bandit and rule, and the share of
that lead that learned policies close. Differences have 95 % intervals of Student's t over blocks.
"""

import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import stats

sys.path.append(str(Path(__file__).parent.parent))
from gap import RIVALS, closed


def interval(difference_B: npt.NDArray[np.float64]) -> str:
    """Return the mean of paired differences `[B]` with its 95 % interval."""
    mean, blocks = difference_B.mean(), len(difference_B)
    half = stats.t.ppf(0.975, blocks - 1) * difference_B.std(ddof=1) / blocks**0.5
    return f"{mean:.2f} ({mean - half:.2f} to {mean + half:.2f})"


def merged(study: str, late: str) -> pd.DataFrame:
    """Return the return of every run, blocks by arms, of the blocks that both files have."""
    tables = [
        pd.read_csv(path).query("status == 'finished'").pivot(index="block", columns="arm", values="return")
        for path in (study, late)
    ]
    return tables[0].join(tables[1][["late"]], how="inner").dropna()


def main(study: str, late: str) -> None:
    table = merged(study, late)
    best = table[list(RIVALS)].mean().idxmax()
    means = ", ".join(f"{arm} {table[arm].mean():.2f}" for arm in ("oracle", "late", best))
    print(f"{len(table)} blocks: {means}")
    for one, other in (("oracle", "late"), ("oracle", best), ("late", best), *(("late", arm) for arm in ("react_bandit",))):
        print(f"{one} - {other}: {interval((table[one] - table[other]).to_numpy())}")
    for policy in ("ppo", "mlp", "forest"):
        if policy in table:
            print(f"late - {policy}: {interval((table['late'] - table[policy]).to_numpy())}")
            for oracle in ("oracle", "late"):
                share, low, high = closed(table, policy, RIVALS, oracle)
                print(f"{policy} closes {share:.0%} ({low:.0%} to {high:.0%}) of the gap between {best} and {oracle}")


if __name__ == "__main__":
    main(*sys.argv[1:])
