"""What an experiment says of each pair of arms: one of three verdicts, or none."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from esper.stats.paired import LEAST_BLOCKS, Difference, blocks_needed


class Verdict(StrEnum):
    """What is said of two arms."""

    better = "better"
    """They differ, and by the sign of the difference one is better."""
    equivalent = "equivalent"
    """They differ by less than the margin, whether or not they differ."""
    undecided = "undecided"
    """Neither is shown."""
    too_few = "too few blocks"
    """Nothing is said. Nor is it in these two:"""
    unfinished = "unfinished"
    """Not all runs are there that were planned, and who looks after every one is wrong more often than alpha."""
    void = "void"
    """The experiment does not show what it was made for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """A difference, and what it comes to beside all others of the experiment."""

    difference: Difference
    p_holm: float
    """p of the difference, corrected for the number of pairs (Holm 1979)."""
    p_equivalence_holm: float
    verdict: Verdict
    higher_is_better: bool
    margin: float
    needed: int | None
    """Blocks at which a difference as large as the margin would be found in four of five experiments with so many pairs; None
    where nothing is known of the pair."""

    @property
    def winner(self) -> str | None:
        """The better arm, where there is one."""
        if self.verdict is not Verdict.better:
            return None
        ahead = (self.difference.mean.mean > 0) == self.higher_is_better
        return self.difference.first if ahead else self.difference.second

    def __str__(self) -> str:
        apart, margin = self.difference, f"{self.margin:g}"
        enough = "" if self.needed is None else f"a difference of {margin} takes {self.needed} blocks"
        match self.verdict:
            case Verdict.better:
                loser = apart.second if self.winner == apart.first else apart.first
                return f"{self.winner} is better than {loser}"
            case Verdict.equivalent:
                return f"{apart.first} and {apart.second} differ by less than {margin}"
            case Verdict.undecided:
                return f"undecided between {apart.first} and {apart.second}: {enough}"
            case Verdict.too_few:
                few = f"{apart.count} {'block is' if apart.count == 1 else 'blocks are'} fewer than {LEAST_BLOCKS}"
                return f"no verdict on {apart.first} and {apart.second}: {few}{enough and ', and '}{enough}"
            case Verdict.unfinished | Verdict.void:
                return f"no verdict on {apart.first} and {apart.second}: the experiment is {self.verdict.value}"


def judge(
    differences: Sequence[Difference],
    *,
    margin: float,
    higher_is_better: bool = True,
    alpha: float = 0.05,
    withheld: Verdict | None = None,
) -> list[Judgement]:
    """Judges all pairs of an experiment's arms together: the chance of any wrong claim is at most `alpha` for either kind.

    Args:
        differences: one for each pair.
        margin: what they were computed with.
        higher_is_better: which sign is good.
        alpha: chance of a wrong claim.
        withheld: what is said in place of every verdict, where none may be given.
    """
    if not differences:
        return []
    by_holm = [_holm([apart.p for apart in differences]), _holm([apart.p_equivalence for apart in differences])]
    found: list[Judgement] = []
    for apart, p, p_equivalence in zip(differences, *by_holm, strict=True):
        if withheld is not None:
            verdict = withheld
        elif apart.count < LEAST_BLOCKS:
            verdict = Verdict.too_few
        elif p_equivalence < alpha:  # a difference that does not matter is none, however sure it is
            verdict = Verdict.equivalent
        else:
            verdict = Verdict.better if p < alpha else Verdict.undecided
        found.append(
            Judgement(
                difference=apart,
                p_holm=p,
                p_equivalence_holm=p_equivalence,
                verdict=verdict,
                higher_is_better=higher_is_better,
                margin=margin,
                needed=blocks_needed(apart.spread, margin, alpha=alpha / len(differences)) if np.isfinite(apart.spread) else None,
            )
        )
    return found


def _holm(p_values: Sequence[float]) -> list[float]:
    """Corrected p: the k-th smallest of m times m - k + 1, and no less than the one before. statsmodels takes 0.1 s for this."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p)
    corrected = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)).clip(max=1.0)
    return corrected[np.argsort(order)].tolist()
