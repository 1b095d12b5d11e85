"""Verdicts on all pairs of an experiment's arms, from a table of outcomes in which cells may be missing."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from esper.stats.collapse import CollapseRate, collapsed_pair, irregular
from esper.stats.looks import levels, repeated_p
from esper.stats.paired import MIN_BLOCKS, Difference, blocks_needed, paired_difference
from esper.text import alike, si

NOT_NORMAL = "the differences are not normal"
"""Warning on a pair whose differences `irregular` finds."""


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
    """No verdict: the data does not permit what they seem to show; the warnings tell why."""


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
    look: int | None
    """Number of blocks of the look that decided, or else of the last look; None before the first look."""
    looks: tuple[int, ...]
    """Planned numbers of blocks."""
    collapses: tuple[CollapseRate, CollapseRate]
    """Collapsed runs of both arms; 0 for costs, of which less is better."""
    unit: str = ""
    """Unit of the margin, for sentences."""
    warnings: tuple[str, ...]
    """Reasons for caution about the interval of the mean, such as collapsed runs, irregular differences and missing runs."""

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

    @property
    def _loser(self) -> str:
        return self.difference.second if self.winner == self.difference.first else self.difference.first

    @property
    def _amount(self) -> str:
        """The size of the difference with its interval, both without sign."""
        mean = self.difference.mean
        size, low, high = alike(abs(mean.mean), *((mean.low, mean.high) if mean.mean > 0 else (-mean.high, -mean.low)))
        return f"{size}{self._unit} ({low} to {high})"

    @property
    def _unit(self) -> str:
        return f" {self.unit}" if self.unit else ""

    @property
    def _margin(self) -> str:
        return f"{si(self.margin) if self.margin >= 1e4 else f'{self.margin:g}'}{self._unit}"

    @property
    def needs(self) -> str:
        """How many blocks a new experiment takes to detect a difference of the margin; empty if nothing is known."""
        if self.needed is None:
            return ""
        difference = f"a difference of {self._margin}"
        return f"a new experiment takes {self.needed} blocks to detect {difference} with a power of 80 %"

    def __str__(self) -> str:
        pair, names = self.difference, f"{self.difference.first} and {self.difference.second}"
        collapses = f"; collapsed runs: {', '.join(map(str, self.collapses))}" if self.higher_is_better else ""
        match self.verdict:
            case Conclusion.better:
                return f"{self.winner} is better than {self._loser} by {self._amount}{collapses}"
            case Conclusion.equivalent:
                return f"{names} differ by less than {self._margin}{collapses}"
            case Conclusion.undecided:
                later = [look for look in self.looks if self.look is not None and look > self.look]
                return f"undecided between {names}: {f'the next look is at {later[0]} blocks' if later else self.needs}"
            case Conclusion.too_few:
                left_out = f", and {pair.collapsed} more with a collapsed run" if pair.collapsed else ""
                shared = f"they share {pair.blocks} of the {MIN_BLOCKS} blocks needed{left_out}"
                return f"no verdict on {names}: {shared}; {self.needs or 'run them from the same random seeds, as sweep=ab does'}"
            case Conclusion.unfinished:
                return f"no verdict on {names} yet: {self._still_missing}"
            case Conclusion.exploratory:
                return f"no verdict on {names}: the comparison is {self.verdict.value}"
            case Conclusion.withheld:
                return f"no verdict on {names}: {'; '.join(self.warnings) or 'it is withheld'}"

    @property
    def _still_missing(self) -> str:
        """What the first look still lacks."""
        done, first = self.difference.blocks + self.difference.collapsed, self.looks[0]
        if self.difference.missing:
            return f"runs are missing ({done} of {max(first, done + self.difference.missing)} blocks are finished)"
        if done >= first:
            return "runs of other arms are missing"
        return f"{done} of {first} blocks {'is' if done == 1 else 'are'} finished"


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
    unit: str = "",
) -> list[PairResult]:
    """Compare every pair of arms in one outcome, over the blocks that they share.

    The probability of any wrong "better" is at most `alpha` over all pairs and looks, and so is that of any wrong "equivalent";
    two arms cannot earn both. Each look is computed from the first blocks, and the first one that decides on a pair stands.

    Args:
        cells: one row per planned run, with columns `arm`, `block`, `value` (NaN if not measured) and `stratum`, to which the
            block belongs. Arms are compared in the order of their first rows.
        margin: smallest difference that matters, above 0, in `unit`, which sentences name.
        higher_is_better: if true, the arm with the higher outcome is the better one.
        alpha: family-wise error rate of each kind of claim, in (0, 1).
        against: arm that all others are compared with; None compares every pair.
        withheld: reason why there can be no verdict, if any.
        looks: increasing numbers of blocks at which a verdict may be given, once their runs are measured; None is one look.
        final: if true, missing runs will never be measured: a verdict is given if it holds whatever they would have shown.
        bounds: lowest and highest possible value, for missing runs; without them, a pair that lacks a run gets no verdict.
    """
    assert margin > 0
    blocks, complete = _blocks(cells, final=final)
    planned = tuple(looks) if looks is not None else (len(blocks),)
    taken = [look for look in planned if look <= complete]
    arms = cells["arm"].unique().tolist()
    pairs = list(combinations(arms, 2)) if against is None else [(against, arm) for arm in arms if arm != against]
    rule = _Rule(
        margin=margin,
        higher_is_better=higher_is_better,
        alpha=alpha,
        pairs=len(pairs),
        looks=planned,
        bounds=bounds if final else None,
        worst="" if not final else " (taken at their worst)" if bounds else " (the outcome has no worst value)",
        withheld=withheld if taken else withheld or Conclusion.unfinished,
        unit=unit,
    )
    found: dict[tuple[str, str], _Evidence] = {}
    results: dict[tuple[str, str], PairResult] = {}
    for look in taken or [None]:
        seen: Any = cells[cells["block"].isin(blocks[:look].tolist())]
        runs = {arm: seen[seen["arm"] == arm].set_index("block").sort_index() for arm in arms}
        undecided = [pair for pair in pairs if pair not in results or not results[pair].decided]
        found |= {pair: _evidence(runs, pair, rule, look) for pair in undecided}
        p, same = _holm([found[pair].p for pair in pairs]), _holm([found[pair].p_equivalence for pair in pairs])
        results |= {pair: _conclude(found[pair], p[i], same[i], rule, look) for i, pair in enumerate(pairs) if pair in undecided}
    return [results[pair] for pair in pairs]


def _blocks(cells: pd.DataFrame, *, final: bool) -> tuple[Any, int]:
    """Return the blocks, and how many of the first ones are complete; with `final`, all are."""
    blocks = np.unique(cells["block"])
    missing = np.isin(blocks, cells.loc[cells["value"].isna(), "block"])
    return blocks, len(blocks) if final or not missing.any() else int(np.argmax(missing))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Rule:
    """What all pairs and looks of a comparison have in common; most fields are arguments of `compare_arms`."""

    margin: float
    higher_is_better: bool
    alpha: float
    pairs: int
    """Number of pairs that are compared."""
    looks: tuple[int, ...]
    bounds: tuple[float, float] | None
    """Bounds of missing runs that will never be measured."""
    worst: str
    """Remark on these runs."""
    withheld: Conclusion | None
    unit: str


@dataclass(frozen=True, kw_only=True, slots=True)
class _Evidence:
    """What a look shows about a pair of arms."""

    difference: Difference
    p: float
    """p value of the difference, corrected for the looks."""
    p_equivalence: float
    """p value of equivalence, corrected for the looks."""
    collapses: tuple[CollapseRate, CollapseRate]
    irregular: bool
    """If true, the differences are not normal."""
    missing: int
    """Number of missing runs."""


def _evidence(runs: dict[str, pd.DataFrame], names: tuple[str, str], rule: _Rule, look: int | None) -> _Evidence:
    """Return what the blocks of a look show about two arms, given the runs of every arm by block."""
    one, other = (runs[name] for name in names)
    shared = one.index.intersection(other.index)
    strata = np.asarray(one.loc[shared, "stratum"])
    values = [np.asarray(arm.loc[shared, "value"], dtype=np.float64) for arm in (one, other)]
    # Costs such as parameters vary by choice of the policy: a high one is no failure.
    down = [arm & rule.higher_is_better for arm in collapsed_pair(values[0], values[1], strata, margin=rule.margin)]
    whole, measured = ~(down[0] | down[1]), np.isfinite(values)
    index = None if look is None else rule.looks.index(look)
    difference = paired_difference(
        names,
        *values,
        margin=rule.margin,
        strata=strata,
        collapsed=~whole,
        confidence=0.95 if index is None or len(rule.looks) == 1 else 1 - 2 * levels(rule.looks, 0.025)[index],
        bounds=rule.bounds,
    )
    p, p_equivalence = 1.0, 1.0
    if index is not None and (measured.all() or rule.bounds is not None):
        p = min(1.0, 2 * repeated_p(difference.p / 2, rule.looks, index))
        p_equivalence = repeated_p(difference.p_equivalence, rule.looks, index)
    first, second = (
        CollapseRate(arm=name, collapsed=int(fallen.sum()), runs=int(there.sum()), blocks=tuple(shared[fallen].tolist()))
        for name, fallen, there in zip(names, down, measured, strict=True)
    )
    return _Evidence(
        difference=difference,
        p=p,
        p_equivalence=p_equivalence,
        collapses=(first, second),
        irregular=irregular((values[0] - values[1])[whole], strata[whole], margin=rule.margin),
        missing=int((~measured).sum()),
    )


def _conclude(one: _Evidence, p: float, p_equivalence: float, rule: _Rule, look: int | None) -> PairResult:
    """Return the verdict on a pair, given its corrected p values.

    Collapsed runs and irregular differences withhold "equivalent". "Better" is withheld if the better arm collapsed more often,
    or if the differences left after a collapse are irregular: more runs are then likely to have collapsed than were found.
    """
    difference, (first, second) = one.difference, one.collapses
    gain = difference.mean.mean if rule.higher_is_better else -difference.mean.mean
    risk, fallen = first.collapsed - second.collapsed, first.collapsed + second.collapsed > 0
    if rule.withheld is not None:
        verdict = rule.withheld
    elif difference.blocks < MIN_BLOCKS:
        verdict = Conclusion.too_few
    elif p_equivalence < rule.alpha:  # even if significant: a difference below the margin does not matter
        verdict = Conclusion.withheld if fallen or one.irregular else Conclusion.equivalent
    elif p < rule.alpha:
        verdict = Conclusion.withheld if gain * risk > 0 or (fallen and one.irregular) else Conclusion.better
    else:
        verdict = Conclusion.withheld if one.missing else Conclusion.undecided
    warnings = [
        f"{rate.arm} collapsed in {rate.collapsed} of {rate.runs} runs ({rate.where})" for rate in one.collapses if rate.blocks
    ]
    warnings += [NOT_NORMAL] if one.irregular and difference.blocks >= MIN_BLOCKS else []
    if one.missing:
        warnings.append(f"{one.missing} run{'s are' if one.missing > 1 else ' is'} missing{rule.worst}")
    known = np.isfinite(difference.spread)
    return PairResult(
        difference=difference,
        p_holm=p,
        p_equivalence_holm=p_equivalence,
        verdict=verdict,
        higher_is_better=rule.higher_is_better,
        margin=rule.margin,
        needed=blocks_needed(difference.spread, rule.margin, alpha=rule.alpha / rule.pairs) if known else None,
        look=look,
        looks=rule.looks,
        collapses=one.collapses,
        unit=rule.unit,
        warnings=tuple(warnings),
    )


def _holm(p_values: Sequence[float]) -> list[float]:
    """Return p values after Holm's correction. multipletests of statsmodels calls gc.collect(), 0.1 s each time."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p)
    corrected = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)).clip(max=1.0)
    return corrected[np.argsort(order)].tolist()
