"""Every pair of an experiment's arms, from a table of outcomes in which some cells may be missing."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from esper.seeding import stream
from esper.stats.paired import Difference, paired_difference, unknown_difference, unpaired_difference
from esper.stats.verdict import Judgement, Verdict, judge

Outcomes = Mapping[str, Mapping[int, float]]
"""Arm -> block -> outcome. A cell that is missing, or NaN, was not measured."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """All pairs of arms in one outcome."""

    judgements: tuple[Judgement, ...]
    missing: tuple[tuple[str, int], ...]
    """Cells that some other arm has and this one lacks; their blocks count in no pair of which they are part."""


def compare(
    outcomes: Outcomes,
    *,
    margin: float,
    higher_is_better: bool = True,
    alpha: float = 0.05,
    against: str | None = None,
    strata: Mapping[int, str] | None = None,
    withheld: Verdict | None = None,
    seed: int = 0,
) -> Comparison:
    """Compares every pair of arms, in pairs of runs where they share at least two blocks.

    Args:
        outcomes: of each arm and block.
        margin: smallest difference that matters, in the unit of the outcome, above 0.
        higher_is_better: which sign is good.
        alpha: chance of any wrong claim.
        against: the arm that all others are compared with; None compares every pair.
        strata: to which setting, such as a task, each block belongs; None for one setting.
        withheld: what is said in place of every verdict, where none may be given.
        seed: of the resamples; the same gives the same numbers.
    """
    assert margin > 0
    there = {arm: {block for block, value in cells.items() if np.isfinite(value)} for arm, cells in outcomes.items()}
    blocks = sorted(set().union(*(outcomes[arm] for arm in outcomes))) if outcomes else []
    missing = [(arm, block) for arm in outcomes for block in blocks if block not in there[arm]]
    if len({frozenset(cells) for cells in outcomes.values()}) > 1 and not set.intersection(*there.values()):
        missing = [(arm, block) for arm, block in missing if block in outcomes[arm]]  # arms that were never meant to share blocks
    differences: list[Difference] = []
    pairs = combinations(outcomes, 2) if against is None else [(against, arm) for arm in outcomes if arm != against]
    for first, second in pairs:
        shared = sorted(there[first] & there[second])
        generator = stream(seed, "comparison", first, second)
        if len(shared) >= 2:
            differences.append(
                paired_difference(
                    (first, second),
                    [outcomes[first][block] for block in shared],
                    [outcomes[second][block] for block in shared],
                    margin=margin,
                    generator=generator,
                    strata=None if strata is None else [strata[block] for block in shared],
                )
            )
        elif min(len(there[first]), len(there[second])) >= 2:
            values = [[outcomes[arm][block] for block in sorted(there[arm])] for arm in (first, second)]
            differences.append(unpaired_difference((first, second), *values, margin=margin, generator=generator))
        else:
            differences.append(unknown_difference((first, second), len(shared)))
    judged = judge(differences, margin=margin, higher_is_better=higher_is_better, alpha=alpha, withheld=withheld)
    return Comparison(judgements=tuple(judged), missing=tuple(missing))
