"""Verdicts on all pairs of an experiment's arms, from a table of outcomes in which cells may be missing."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from esper.seeding import stream
from esper.stats.collapse import CollapseRate, collapse_p, collapsed, irregularities
from esper.stats.looks import levels, repeated_p
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
    """No verdict: runs of the first planned look are missing, and optional stopping inflates the error rate."""
    exploratory = "exploratory"
    """No verdict: the comparison was not planned before the experiment."""
    withheld = "withheld"
    """No verdict: the data do not permit what they seem to show; the warnings tell why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PairResult:
    """The difference of two arms, and the verdict on it given all other pairs of the experiment."""

    difference: Difference
    """Difference in the blocks of the look, without those in which a run collapsed."""
    p_holm: float
    """p value of the difference, corrected for the number of looks and, by Holm's (1979) method, of pairs."""
    p_equivalence_holm: float
    """p value of equivalence, corrected in the same way."""
    verdict: Conclusion
    higher_is_better: bool
    margin: float
    needed: int | None
    """Blocks of a new experiment that detects a difference of the margin with a power of 80 % among as many pairs; None if
    nothing is known about this pair."""
    look: int | None = None
    """Number of blocks of the look that decided, or else of the last look; None before the first look."""
    looks: tuple[int, ...] = ()
    """Planned numbers of blocks."""
    collapses: tuple[CollapseRate, ...] = ()
    """Collapsed runs of both arms; empty if an arm has no measured run."""
    p_collapse: float = 1.0
    """p value of equal rates of collapse (exact McNemar test), of this pair and look alone."""
    warnings: tuple[str, ...] = ()
    """Reasons for caution, such as collapsed runs, outliers and missing runs."""

    @property
    def decided(self) -> bool:
        """If true, later looks do not change the verdict."""
        return self.verdict in (Conclusion.better, Conclusion.equivalent)

    @property
    def winner(self) -> str | None:
        """The better arm, if the verdict names one."""
        if self.verdict is not Conclusion.better:
            return None
        ahead = (self.difference.mean.mean > 0) == self.higher_is_better
        return self.difference.first if ahead else self.difference.second

    def __str__(self) -> str:
        pair, margin = self.difference, f"{self.margin:g}"
        names = f"{pair.first} and {pair.second}"
        power = "" if self.needed is None else f"detecting a difference of {margin} takes {self.needed} new blocks"
        collapses = f"; collapsed runs: {', '.join(map(str, self.collapses))}"
        match self.verdict:
            case Conclusion.better:
                return f"{self.winner} is better than {pair.second if self.winner == pair.first else pair.first}{collapses}"
            case Conclusion.equivalent:
                return f"{names} differ by less than {margin}{collapses}"
            case Conclusion.undecided:
                later = [look for look in self.looks if self.look is not None and look > self.look]
                remedy = f"the next look is at {later[0]} blocks" if later else power
                return f"undecided between {names}: {remedy}"
            case Conclusion.too_few:
                shared = f"they share {pair.blocks} of at least {MIN_BLOCKS} blocks"
                remedy = power or "run them on the same seeds, as sweep=ab does"
                return f"no verdict on {names}: {shared}; {remedy}"
            case Conclusion.unfinished | Conclusion.exploratory:
                return f"no verdict on {names}: the comparison is {self.verdict.value}"
            case Conclusion.withheld:
                return f"no verdict on {names}: {'; '.join(self.warnings) or 'it is withheld'}"


def compare_arms(
    cells: pd.DataFrame,
    *,
    margin: float,
    higher_is_better: bool = True,
    alpha: float = 0.05,
    against: str | None = None,
    withheld: Conclusion | None = None,
    looks: Sequence[int] | None = None,
    final: bool = False,
    bounds: tuple[float, float] | None = None,
    seed: int = 0,
) -> list[PairResult]:
    """Compare every pair of arms in one outcome, over the blocks that they share.

    The probability of any wrong claim is at most `alpha`, for differences and for equivalences alike, over all planned looks.
    Every look is computed from the first blocks, whatever blocks follow, and the first look that decides on a pair stands.

    Args:
        cells: one row per planned run, with columns `arm`, `block`, `value` (NaN if not measured) and `stratum`, to which the
            block belongs. Arms are compared in the order of their first rows.
        margin: smallest difference that matters, in the unit of the outcome, above 0.
        higher_is_better: if true, the arm with the higher outcome is the better one.
        alpha: family-wise error rate, in (0, 1).
        against: arm that all others are compared with; None compares every pair.
        withheld: reason why there can be no verdict, if any.
        looks: increasing numbers of blocks at which a verdict may be given; None allows a single look at all blocks. A look takes
            place when all runs of its blocks are measured.
        final: if true, missing runs will never be measured. Looks take place without them, and a verdict is given if it holds
            whatever they would have shown.
        bounds: lowest and highest possible value, for missing runs; without them, a pair that lacks a run gets no verdict.
        seed: seed of the resamples.
    """
    assert margin > 0
    blocks = np.unique(cells["block"])
    planned = tuple(looks) if looks is not None else (len(blocks),)
    missing = blocks[np.isin(blocks, cells.loc[cells["value"].isna(), "block"])]
    complete = len(blocks) if final or len(missing) == 0 else int(np.searchsorted(blocks, missing[0]))
    taken = [look for look in planned if look <= complete]
    if not taken:
        withheld = withheld or Conclusion.unfinished
    arms = cells["arm"].unique().tolist()
    pairs = list(combinations(arms, 2)) if against is None else [(against, arm) for arm in arms if arm != against]
    rule = _Rule(margin=margin, higher_is_better=higher_is_better, bounds=bounds if final else None, looks=planned, seed=seed)
    found: list[_Evidence] = [_Evidence(difference=Difference(first=one, second=other, blocks=0)) for one, other in pairs]
    results: dict[int, PairResult] = {}
    for look in taken or [None]:
        table: Any = cells[cells["block"].isin(blocks[:look])]
        open_pairs = [pair for pair in range(len(pairs)) if pair not in results or not results[pair].decided]
        for pair in open_pairs:
            found[pair] = _evidence(table, pairs[pair], rule, look)
        p_holm, p_equivalence_holm = _holm([one.p for one in found]), _holm([one.p_equivalence for one in found])
        for pair in open_pairs:
            one, difference = found[pair], found[pair].difference
            known = np.isfinite(difference.spread)
            result = PairResult(
                difference=difference,
                p_holm=p_holm[pair],
                p_equivalence_holm=p_equivalence_holm[pair],
                verdict=withheld or Conclusion.undecided,
                higher_is_better=higher_is_better,
                margin=margin,
                needed=blocks_needed(difference.spread, margin, alpha=alpha / len(pairs)) if known else None,
                look=look,
                looks=planned,
                collapses=one.collapses,
                p_collapse=one.p_collapse,
                warnings=one.warnings,
            )
            results[pair] = result if withheld else _conclude(result, alpha, one.lost)
    return [results[pair] for pair in range(len(pairs))]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Rule:
    """What all pairs and looks of a comparison have in common; the fields are arguments of `compare_arms`."""

    margin: float
    higher_is_better: bool
    bounds: tuple[float, float] | None
    looks: tuple[int, ...]
    seed: int


@dataclass(frozen=True, kw_only=True, slots=True)
class _Evidence:
    """What a look shows about a pair of arms."""

    difference: Difference
    p: float = 1.0
    """p value of the difference, corrected for the looks."""
    p_equivalence: float = 1.0
    """p value of equivalence, corrected for the looks."""
    collapses: tuple[CollapseRate, ...] = ()
    p_collapse: float = 1.0
    warnings: tuple[str, ...] = ()
    lost: bool = False
    """If true, runs are missing for which there is no worst case."""


def _evidence(cells: pd.DataFrame, names: tuple[str, str], rule: _Rule, look: int | None) -> _Evidence:
    """Return what the blocks of a look show about two arms."""
    one, other = (cells[cells["arm"] == name].set_index("block").sort_index() for name in names)
    shared = one.index.intersection(other.index)
    one, other = one.loc[shared], other.loc[shared]
    values = [np.asarray(arm["value"], dtype=np.float64) for arm in (one, other)]
    fallen = [collapsed(arm, one["stratum"], margin=rule.margin, higher_is_better=rule.higher_is_better) for arm in values]
    measured, whole = np.isfinite(values), ~(fallen[0] | fallen[1])
    index = None if look is None else rule.looks.index(look)
    difference = paired_difference(
        names,
        values[0][whole],
        values[1][whole],
        margin=rule.margin,
        generator=stream(rule.seed, "comparison", *names),
        strata=one["stratum"][whole],
        confidence=0.95 if index is None or len(rule.looks) == 1 else 1 - 2 * levels(rule.looks, 0.025)[index],
        bounds=rule.bounds,
    )
    collapses = [
        CollapseRate(arm=name, collapsed=int(down.sum()), runs=int(there.sum()))
        for name, down, there in zip(names, fallen, measured, strict=True)
    ]
    missing = int((~measured).sum())
    effect = "taken at their worst" if rule.bounds else "whose worst case is unknown"
    odd = irregularities((values[0] - values[1])[whole & measured.all(axis=0)], rule.margin)
    return _Evidence(
        difference=difference,
        p=difference.p if index is None else min(1.0, 2 * repeated_p(difference.p / 2, rule.looks, index)),
        p_equivalence=difference.p_equivalence if index is None else repeated_p(difference.p_equivalence, rule.looks, index),
        collapses=tuple(one for one in collapses if one.runs),
        p_collapse=collapse_p(*fallen),
        warnings=(
            *(f"collapsed runs: {one}" for one in collapses if one.collapsed),
            *odd,
            *([f"{missing} missing runs, {effect}"] if missing else []),
        ),
        lost=missing > 0 and rule.bounds is None,
    )


def _conclude(result: PairResult, alpha: float, lost: bool) -> PairResult:
    """Return the result with its verdict.

    Collapsed runs, outliers and skew withhold "equivalent"; "better" is withheld if the better arm collapsed more often.
    """
    verdict = Conclusion.undecided
    if result.difference.blocks < MIN_BLOCKS:
        verdict = Conclusion.too_few
    elif lost:
        verdict = Conclusion.withheld
    elif result.p_equivalence_holm < alpha:  # even if significant: a difference below the margin does not matter
        verdict = Conclusion.withheld if result.warnings else Conclusion.equivalent
    elif result.p_holm < alpha:
        winner = replace(result, verdict=Conclusion.better).winner
        behind, ahead = sorted(result.collapses, key=lambda one: one.arm == winner)
        verdict = Conclusion.withheld if ahead.collapsed > behind.collapsed else Conclusion.better
    return replace(result, verdict=verdict)


def _holm(p_values: Sequence[float]) -> list[float]:
    """Return p values after Holm's correction. multipletests of statsmodels calls gc.collect(), 0.1 s each time."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p)
    corrected = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)).clip(max=1.0)
    return corrected[np.argsort(order)].tolist()
