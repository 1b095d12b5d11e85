"""Calibration of `esper.compare` on simulated experiments whose truth is known.

    python experiments/2026-11-21_calibration/calibration.py               # 200 experiments per setting, about an hour
    python experiments/2026-11-21_calibration/calibration.py 200 blocks    # only the recommended number of blocks and its power

A simulated run is block + arm: the block's part is shared by all arms and correlates them, the arm's part has the noise of the
setting. Effects are in standard deviations of a run.
"""

# B blocks, A arms

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pandas as pd
from scipy import stats

from esper.seeding import stream
from esper.stats.verdict import Conclusion, compare_arms

LOST = 0.1
"""Share of runs that are lost in the setting `failed`."""
MARGIN = 0.5
"""Smallest difference that matters [sd]."""
NOISES = ("normal", "heavy", "unequal", "failed")
"""Noise of runs: normal; Student's t with 3 degrees of freedom; a second arm twice as noisy; normal with some runs lost."""
PILOT = 12
"""Blocks of the pilot whose spread determines the recommended number of blocks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """Distribution of simulated experiments."""

    noise: str = "normal"
    effect: float = 0.0
    """Advantage of the last arm over the others [sd of a run]."""
    correlation: float = 0.5
    """Correlation of two runs of a block."""
    blocks: int = 12
    arms: int = 3


@dataclass(kw_only=True, slots=True)
class Tally:
    """Counts of claims over many experiments."""

    experiments: int = 0
    wrong: int = 0
    """Experiments with at least one wrong claim."""
    pairs: int = 0
    covered: int = 0
    """Pairs whose interval of the mean covers the true difference."""
    covered_iqm: int = 0
    different: int = 0
    """Pairs with a true difference."""
    found: int = 0
    """Pairs with a true difference whose better arm was named."""

    @property
    def coverage(self) -> float:
        return self.covered / self.pairs

    @property
    def power(self) -> float:
        """Share of true differences that were found; NaN without any."""
        return self.found / self.different if self.different else float("nan")

    def wrong_at_most(self, confidence: float = 0.99) -> float:
        """Return an upper bound of the share of experiments with a wrong claim (Clopper, Pearson 1934)."""
        interval = stats.binomtest(self.wrong, self.experiments, alternative="less").proportion_ci(confidence)
        return float(interval.high)

    def add(self, other: "Tally") -> None:
        for name in ("experiments", "wrong", "pairs", "covered", "covered_iqm", "different", "found"):
            setattr(self, name, getattr(self, name) + getattr(other, name))


def simulate(setting: Setting, generator: np.random.Generator) -> np.ndarray:
    """Return the outcomes of an experiment `[A, B]`; NaN for a lost run."""
    shape = (setting.arms, setting.blocks)
    heavy = setting.noise == "heavy"  # a t distribution with 3 degrees of freedom has variance 3
    own = generator.standard_t(3, shape) / np.sqrt(3.0) if heavy else generator.standard_normal(shape)
    if setting.noise == "unequal":
        own[1] *= 2.0
    shared = generator.standard_normal(setting.blocks)
    outcome = np.sqrt(setting.correlation) * shared + np.sqrt(1 - setting.correlation) * own
    outcome[-1] += setting.effect
    if setting.noise == "failed":
        outcome[generator.random(shape) < LOST] = np.nan
    return outcome


def tally(setting: Setting, experiments: int, seed: int) -> Tally:
    """Count the claims about this many simulated experiments."""
    counts = Tally()
    best = f"arm{setting.arms - 1}"
    for index in range(experiments):
        outcome = simulate(setting, stream(seed, "simulated_experiment", str(setting), index))
        wrong = False
        for result in compare_arms(cells_of(outcome), margin=MARGIN, seed=index):
            pair = result.difference
            true = setting.effect * ((pair.first == best) - (pair.second == best))
            better = pair.first if true > 0 else pair.second
            counts.pairs += 1
            counts.covered += pair.mean.low <= true <= pair.mean.high
            counts.covered_iqm += pair.iqm.low <= true <= pair.iqm.high
            counts.different += true != 0
            counts.found += true != 0 and result.winner == better
            wrong |= result.verdict is Conclusion.better and (true == 0 or result.winner != better)
            wrong |= result.verdict is Conclusion.equivalent and abs(true) >= MARGIN
        counts.experiments += 1
        counts.wrong += wrong
    return counts


def settings() -> Iterator[Setting]:
    """Yield the settings of the report."""
    for noise, effect, blocks in product(NOISES, (0.0, 0.25, 0.5, 1.0), (12, 20)):
        yield Setting(noise=noise, effect=effect, blocks=blocks)


def power_at_recommendation(
    effect: float, correlation: float, *, arms: int = 2, experiments: int, seed: int
) -> tuple[float, float]:
    """Return the power of experiments with the number of blocks that a pilot recommends, and the mean of that number.

    Args:
        effect: advantage of the last arm over each of the others [sd of a run].
        correlation: correlation of two runs of a block.
        arms: number of arms, at least 2; every pair is compared, and the recommendation is for the last one.
        experiments: number of pilots, each followed by its experiment.
        seed: root seed.
    """
    found, pairs, blocks = 0, 0, 0
    for index in range(experiments):
        setting = Setting(effect=effect, correlation=correlation, arms=arms, blocks=PILOT)
        pilot = cells_of(simulate(setting, stream(seed, "pilot", str(setting), index)))
        needed = compare_arms(pilot, margin=effect, seed=index)[-1].needed
        assert needed is not None
        outcome = simulate(replace(setting, blocks=needed), stream(seed, "main", str(setting), index))
        results = compare_arms(cells_of(outcome), margin=effect / 10, seed=index)
        winners = [result.winner for result in results if result.difference.second == f"arm{arms - 1}"]
        found += winners.count(f"arm{arms - 1}")
        pairs += len(winners)
        blocks += needed
    return found / pairs, blocks / experiments


def cells_of(outcome: np.ndarray) -> pd.DataFrame:
    """Return outcomes `[A, B]` as rows."""
    arms, blocks = (index.ravel() for index in np.indices(outcome.shape))
    names = np.char.add("arm", arms.astype(str))
    return pd.DataFrame({"arm": names, "block": blocks, "stratum": "", "value": outcome.ravel()})


def report(experiments: int) -> Tally:
    """Print the tally of every setting, and return their sum."""
    print("| noise | effect [sd] | blocks | wrong claims [%] | coverage, mean [%] | coverage, IQM [%] | power [%] |")
    print("|---|---|---|---|---|---|---|")
    whole = Tally()
    for setting in settings():
        counts = tally(setting, experiments, seed=0)
        whole.add(counts)
        power = "" if np.isnan(counts.power) else f"{100 * counts.power:.0f}"
        shares = [counts.wrong / counts.experiments, counts.coverage, counts.covered_iqm / counts.pairs]
        cells = [setting.noise, f"{setting.effect:g}", str(setting.blocks), *(f"{100 * share:.1f}" for share in shares), power]
        print(f"| {' | '.join(cells)} |", flush=True)
    return whole


def report_blocks(experiments: int) -> None:
    """Print the number of blocks that a pilot recommends, and the power of an experiment of that size."""
    print(f"| arms | effect [sd] | correlation | blocks by a pilot of {PILOT} | power [%] |\n|---|---|---|---|---|")
    for arms, effect, correlation in product((2, 4), (0.5, 1.0), (0.0, 0.5, 0.8)):
        power, blocks = power_at_recommendation(effect, correlation, arms=arms, experiments=experiments, seed=0)
        print(f"| {arms} | {effect:g} | {correlation:g} | {blocks:.0f} | {100 * power:.0f} |", flush=True)


def main(arguments: list[str]) -> None:
    """Print the report: an optional number of experiments per setting, then optionally `blocks` for the second table only."""
    experiments = int(arguments[0]) if arguments else 200
    if arguments[1:] != ["blocks"]:
        whole = report(experiments)
        wrong, most = 100 * whole.wrong / whole.experiments, 100 * whole.wrong_at_most()
        mean, iqm = 100 * whole.coverage, 100 * whole.covered_iqm / whole.pairs
        print(f"\nOf {whole.experiments} experiments {wrong:.1f} % make a wrong claim (at most {most:.1f} %, 99 % confidence).")
        print(f"Intervals cover the truth in {mean:.1f} % (IQM: {iqm:.1f} %).\n")
    report_blocks(experiments)


if __name__ == "__main__":
    main(sys.argv[1:])
