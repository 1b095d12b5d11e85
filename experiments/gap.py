"""Share of the gap between the best simple rival and an oracle that a policy closes.

python experiments/gap.py comparison.csv [POLICY] prints the share, by default of `ppo`, and its 95 % interval over blocks.
Needs the extra compare.
"""

# B blocks, A arms, R resamples

import sys
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

RIVALS = ("fixed", "bandit", "react")
"""Arms of which the best one, by its mean, is where the gap begins."""
RESAMPLES = 20_000


def closed(table: pd.DataFrame, policy: str, rivals: Sequence[str], oracle: str) -> tuple[float, float, float]:
    """Return the share of the gap that a policy closes, and its 95 % interval: percentiles of a bootstrap over blocks.

    Every resample chooses its best rival anew, so that the choice is part of the uncertainty. The interval of a ratio is wide
    where the gap is small; a resample without a gap counts as NaN and makes the interval NaN.

    Args:
        table: return of every run, blocks by arms `[B, A]`, without missing runs.
        policy: arm of the policy.
        rivals: arms of the simple rivals.
        oracle: arm of the oracle.
    """
    blocks = np.random.default_rng(0).integers(len(table), size=(RESAMPLES, len(table)))
    resampled = {arm: table[arm].to_numpy()[blocks].mean(axis=1) for arm in (policy, *rivals, oracle)}
    whole = {arm: table[arm].to_numpy().mean(keepdims=True) for arm in resampled}
    low, high = np.percentile(_share(resampled, policy, rivals, oracle), [2.5, 97.5])
    return float(_share(whole, policy, rivals, oracle)[0]), float(low), float(high)


def _share(means: dict[str, npt.NDArray[np.float64]], policy: str, rivals: Sequence[str], oracle: str) -> npt.NDArray[np.float64]:
    best_R = np.max([means[arm] for arm in rivals], axis=0)
    gap_R = means[oracle] - best_R
    return np.where(gap_R > 0, (means[policy] - best_R) / np.where(gap_R > 0, gap_R, 1.0), np.nan)


def main(path: str, policy: str = "ppo") -> None:
    table = pd.read_csv(path).pivot(index="block", columns="arm", values="return")
    share, low, high = closed(table, policy, RIVALS, "oracle")
    best = table[list(RIVALS)].mean().idxmax()
    print(f"{policy} closes {share:.0%} ({low:.0%} to {high:.0%}) of the gap between {best} and oracle, {len(table)} blocks")


if __name__ == "__main__":
    main(*sys.argv[1:])
