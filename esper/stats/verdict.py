"""Verdicts on all pairs of an experiment's arms, from a table of outcomes in which cells may be missing."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations

import numpy as np
import pandas as pd

from esper.seeding import stream
from esper.stats.paired import MIN_BLOCKS, Difference, blocks_needed, paired_difference


class Conclusion(StrEnum):
    """The verdict on two arms, or the reason why there is none."""

    better = "better"
    """The arms differ, and the sign of the difference tells which one is better."""
    equivalent = "equivalent"
    """The arms differ by less than the margin, significantly or not."""
    undecided = "undecided"
    """Neither a difference nor equivalence is shown."""
    too_few = "too few blocks"
    """No verdict: fewer than `MIN_BLOCKS` blocks."""
    unfinished = "unfinished"
    """No verdict: planned runs are missing, and optional stopping inflates the error rate."""
    void = "void"
    """No verdict: the experiment is void."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PairResult:
    """The difference of two arms, and the verdict on it given all other pairs of the experiment."""

    difference: Difference
    p_holm: float
    """p value of the difference, corrected for the number of pairs (Holm 1979)."""
    p_equivalence_holm: float
    """p value of equivalence, corrected in the same way."""
    verdict: Conclusion
    higher_is_better: bool
    margin: float
    needed: int | None
    """Blocks at which a difference of the margin is detected with a power of 80 % among as many pairs; None if nothing is known
    about this pair."""

    @property
    def winner(self) -> str | None:
        """The better arm, if the verdict names one."""
        if self.verdict is not Conclusion.better:
            return None
        ahead = (self.difference.mean.mean > 0) == self.higher_is_better
        return self.difference.first if ahead else self.difference.second

    def __str__(self) -> str:
        pair, margin = self.difference, f"{self.margin:g}"
        power = "" if self.needed is None else f"detecting a difference of {margin} takes {self.needed} blocks"
        match self.verdict:
            case Conclusion.better:
                return f"{self.winner} is better than {pair.second if self.winner == pair.first else pair.first}"
            case Conclusion.equivalent:
                return f"{pair.first} and {pair.second} differ by less than {margin}"
            case Conclusion.undecided:
                return f"undecided between {pair.first} and {pair.second}: {power}"
            case Conclusion.too_few:
                shared = f"they share {pair.blocks} of at least {MIN_BLOCKS} blocks"
                remedy = power or "run them on the same seeds, as sweep=ab does"
                return f"no verdict on {pair.first} and {pair.second}: {shared}; {remedy}"
            case Conclusion.unfinished | Conclusion.void:
                return f"no verdict on {pair.first} and {pair.second}: the experiment is {self.verdict.value}"


def compare_arms(
    cells: pd.DataFrame,
    *,
    margin: float,
    higher_is_better: bool = True,
    alpha: float = 0.05,
    against: str | None = None,
    withheld: Conclusion | None = None,
    seed: int = 0,
) -> list[PairResult]:
    """Compare every pair of arms in one outcome, over the blocks that they share.

    The probability of any wrong claim is at most `alpha`, for differences and for equivalences alike.

    Args:
        cells: one row per run, with columns `arm`, `block`, `value` (NaN if not measured) and `stratum`, to which the block
            belongs. Arms are compared in the order of their first rows.
        margin: smallest difference that matters, in the unit of the outcome, above 0.
        higher_is_better: if true, the arm with the higher outcome is the better one.
        alpha: family-wise error rate, in (0, 1).
        against: arm that all others are compared with; None compares every pair.
        withheld: reason why there can be no verdict, if any.
        seed: seed of the resamples.
    """
    assert margin > 0
    measured = cells.dropna(subset="value")
    values = {arm: measured[measured["arm"] == arm].set_index("block").sort_index() for arm in cells["arm"].unique()}
    pairs = combinations(values, 2) if against is None else [(against, arm) for arm in values if arm != against]
    differences = [_difference(pair, values[pair[0]], values[pair[1]], margin, seed) for pair in pairs]
    p_holm = _holm([one.p for one in differences])
    p_equivalence_holm = _holm([one.p_equivalence for one in differences])
    results: list[PairResult] = []
    for one, p, p_equivalence in zip(differences, p_holm, p_equivalence_holm, strict=True):
        if withheld is not None:
            verdict = withheld
        elif one.blocks < MIN_BLOCKS:
            verdict = Conclusion.too_few
        elif p_equivalence < alpha:  # even if significant: a difference below the margin does not matter
            verdict = Conclusion.equivalent
        else:
            verdict = Conclusion.better if p < alpha else Conclusion.undecided
        results.append(
            PairResult(
                difference=one,
                p_holm=p,
                p_equivalence_holm=p_equivalence,
                verdict=verdict,
                higher_is_better=higher_is_better,
                margin=margin,
                needed=blocks_needed(one.spread, margin, alpha=alpha / len(differences)) if np.isfinite(one.spread) else None,
            )
        )
    return results


def _difference(names: tuple[str, str], first: pd.DataFrame, second: pd.DataFrame, margin: float, seed: int) -> Difference:
    """Return the difference of two arms, given their measured runs by block."""
    generator = stream(seed, "comparison", *names)
    shared = first.index.intersection(second.index)
    one, other, strata = first.loc[shared, "value"], second.loc[shared, "value"], first.loc[shared, "stratum"]
    return paired_difference(names, one, other, margin=margin, generator=generator, strata=strata)


def _holm(p_values: Sequence[float]) -> list[float]:
    """Return p values after Holm's correction. multipletests of statsmodels calls gc.collect(), 0.1 s each time."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p)
    corrected = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)).clip(max=1.0)
    return corrected[np.argsort(order)].tolist()
