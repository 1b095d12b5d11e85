"""Power of a planned experiment, and the parts of the variance of a difference that hosts and runs cause."""

# B blocks, H hosts of a block

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy import stats

from esper.seeding import stream
from esper.stats.looks import levels
from esper.stats.paired import MIN_BLOCKS, POWER, blocks_needed, t_test_power

EXPERIMENTS = 20_000
"""Simulated experiments for a plan with several looks. The standard error of a power is at most 0.4 %."""


def detection_power(spread: float, effect: float, looks: Sequence[int], levels: Sequence[float]) -> list[float]:
    """Return the probability that a paired t test has detected a true difference by each look.

    For one look it is that of the non-central t distribution, for several looks that of `EXPERIMENTS` simulated experiments with
    normal differences.

    Args:
        spread: standard deviation of the differences, at least 0.
        effect: true difference in the same unit, above 0.
        looks: numbers of blocks, increasing, each at least 2.
        levels: two-sided significance level of each look, in [0, 1).
    """
    ratio = effect / max(spread, effect / 100)  # beyond 100, the power is 1
    if len(looks) == 1:
        return [t_test_power(ratio, looks[0], levels[0])]
    generator, shape = stream(0, "power"), (EXPERIMENTS,)
    mean, squares, known = np.zeros(shape), np.zeros(shape), 0
    detected, found = np.zeros(shape, dtype=np.bool_), list[float]()
    for blocks, level in zip(looks, levels, strict=True):
        new = blocks - known
        shift = generator.normal(ratio, 1 / math.sqrt(new), shape) - mean
        squares += generator.chisquare(new - 1, shape) if new > 1 else 0.0
        squares += shift**2 * known * new / blocks  # Chan, Golub, LeVeque 1983: join two samples
        mean += shift * new / blocks
        known = blocks
        t = mean / np.sqrt(squares / (blocks - 1) / blocks)
        detected |= np.abs(t) > stats.t.ppf(1 - level / 2, blocks - 1)
        found.append(float(detected.mean()))
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedTest:
    """The test of one pair of arms among several, at the planned looks.

    Its power is that at alpha / pairs. Holm's method detects at least as much, since it tests only the pair with the smallest p
    value at this level.
    """

    margin: float
    """Difference to detect, above 0."""
    looks: Sequence[int]
    """Planned numbers of blocks, increasing."""
    alpha: float = 0.05
    """Family-wise error rate over all pairs and looks, in (0, 1)."""
    pairs: int = 1
    """Number of pairs of arms, at least 1."""

    def powers(self, spread: float, scale: float = 1.0) -> list[float]:
        """Return the probability that the margin has been detected by each look.

        Args:
            spread: standard deviation of the difference in a block.
            scale: factor on the number of blocks of every look.
        """
        looks = tuple(math.ceil(look * scale) for look in self.looks)
        nominal = [2 * level for level in levels(looks, self.alpha / 2 / self.pairs)]
        # A sign-flip test of n blocks has p >= 2 / 2^n.
        possible = [look >= MIN_BLOCKS and 2.0 ** (1 - look) <= level for look, level in zip(looks, nominal, strict=True)]
        if not any(possible):
            return [0.0 for _ in looks]
        return detection_power(spread, self.margin, looks, np.where(possible, nominal, 0.0).tolist())

    def blocks_needed(self, spread: float) -> int:
        """Return the number of blocks at the last look for a power of 80 %. Earlier looks keep their fractions of it; looks that
        coincide count once."""
        count = blocks_needed(spread, self.margin, alpha=self.alpha / self.pairs)
        while len(self.looks) > 1 and self._of(count).powers(spread)[-1] < POWER:
            count += 1 + count // 50
        return count

    def _of(self, count: int) -> "PlannedTest":
        """Return this test with `count` blocks at the last look, and earlier looks in proportion."""
        return replace(self, looks=sorted({max(2, math.ceil(look * count / self.looks[-1])) for look in self.looks}))


@dataclass(frozen=True, kw_only=True, slots=True)
class VarianceParts:
    """The variance of a difference of two arms in one block: the part of the runs, and that of the hosts they grow."""

    runs: float
    """Variance that remains with infinitely many hosts, at least 0."""
    hosts: float
    """Variance due to the choice of the hosts, at least 0: that between hosts, divided by their number."""
    num_hosts: int
    """Hosts per run."""

    @property
    def share(self) -> float:
        """Share of the hosts in the whole, in [0, 1]."""
        return self.hosts / (self.runs + self.hosts) if self.hosts else 0.0

    def spread(self, num_hosts: int) -> float:
        """Return the standard deviation of a difference with this many hosts per run."""
        return math.sqrt(self.runs + self.hosts * self.num_hosts / num_hosts)


def variance_parts(pairs: Sequence[npt.ArrayLike]) -> VarianceParts:
    """Return the variance components of paired differences, pooled over pairs of arms.

    Both arms of a block grow the same hosts, drawn independently: d_bh = mu + run_b + host_bh. The variance between hosts is
    estimated within blocks; the part of the runs is the variance of the block means minus that of the hosts / H, at least 0.

    Args:
        pairs: differences `[B, H]` of each pair of arms, B and H at least 2.
    """
    tables = [np.asarray(pair, dtype=np.float64) for pair in pairs]
    num_hosts = tables[0].shape[1]
    whole = float(np.mean([table.mean(axis=1).var(ddof=1) for table in tables]))
    hosts = float(np.mean([table.var(axis=1, ddof=1).mean() for table in tables])) / num_hosts
    return VarianceParts(runs=max(0.0, whole - hosts), hosts=min(hosts, whole), num_hosts=num_hosts)
