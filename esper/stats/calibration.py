"""Experiments with a known truth: does `compare` say what is so?

    python -m esper.stats.calibration               # 200 experiments in each setting, an hour or so
    python -m esper.stats.calibration 200 blocks    # how many blocks are recommended, and whether they are enough

Runs are drawn as block + arm: the block's part is shared by all arms and makes their correlation, the arm's part has the noise of
the setting, and effects are in standard deviations of a run.
"""

# B blocks, A arms

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from scipy import stats

from esper.seeding import stream
from esper.stats.experiment import compare
from esper.stats.verdict import Verdict

FAILING = 0.1
"""Share of runs that are lost in the setting `failed`."""
MARGIN = 0.5
"""Smallest difference that matters [sd]."""
NOISES = ("normal", "heavy", "unequal", "failed")
"""Of runs: normal; Student's t with 3 degrees of freedom; the second arm twice as noisy; normal, and some runs lost."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """Where experiments come from."""

    noise: str = "normal"
    effect: float = 0.0
    """By which the last arm is better than the others [sd of a run]."""
    correlation: float = 0.5
    """Of two runs of a block."""
    blocks: int = 12
    arms: int = 3


@dataclass(kw_only=True, slots=True)
class Tally:
    """What was said in many experiments of one setting."""

    experiments: int = 0
    wrong: int = 0
    """Experiments with at least one claim that is not so."""
    pairs: int = 0
    held: int = 0
    """Pairs whose interval of the mean held the true difference."""
    held_iqm: int = 0
    different: int = 0
    """Pairs that do differ."""
    found: int = 0
    """Of which the better one was named."""

    @property
    def coverage(self) -> float:
        return self.held / self.pairs

    @property
    def power(self) -> float:
        """NaN where no arms differ."""
        return self.found / self.different if self.different else float("nan")

    def wrong_at_most(self, confidence: float = 0.99) -> float:
        """Upper bound of the share of experiments with a wrong claim (Clopper, Pearson 1934)."""
        return float(stats.beta.ppf(confidence, self.wrong + 1, self.experiments - self.wrong))

    def add(self, other: "Tally") -> None:
        for name in ("experiments", "wrong", "pairs", "held", "held_iqm", "different", "found"):
            setattr(self, name, getattr(self, name) + getattr(other, name))


def runs(setting: Setting, generator: np.random.Generator) -> np.ndarray:
    """Outcomes of an experiment `[A, B]`; NaN where a run was lost."""
    shape = (setting.arms, setting.blocks)
    heavy = setting.noise == "heavy"  # a t with 3 degrees of freedom has a variance of 3
    own = generator.standard_t(3, shape) / np.sqrt(3.0) if heavy else generator.standard_normal(shape)
    if setting.noise == "unequal":
        own[1] *= 2.0
    shared = generator.standard_normal(setting.blocks)
    outcome = np.sqrt(setting.correlation) * shared + np.sqrt(1 - setting.correlation) * own
    outcome[-1] += setting.effect
    if setting.noise == "failed":
        outcome[generator.random(shape) < FAILING] = np.nan
    return outcome


def try_out(setting: Setting, experiments: int, seed: int) -> Tally:
    """What is said of so many experiments."""
    tally = Tally()
    for index in range(experiments):
        outcome = runs(setting, stream(seed, "simulated_experiment", str(setting), index))
        table = _table(outcome)
        truth = {name: setting.effect if arm == setting.arms - 1 else 0.0 for arm, name in enumerate(table)}
        wrong = False
        for told in compare(table, margin=MARGIN, seed=index).judgements:
            apart = told.difference
            true = truth[apart.first] - truth[apart.second]
            tally.pairs += 1
            tally.held += apart.mean.low <= true <= apart.mean.high
            tally.held_iqm += apart.iqm.low <= true <= apart.iqm.high
            tally.different += true != 0
            better = apart.first if true > 0 else apart.second
            tally.found += true != 0 and told.winner == better
            wrong |= told.verdict is Verdict.better and (true == 0 or told.winner != better)
            wrong |= told.verdict is Verdict.equivalent and abs(true) >= MARGIN
        tally.experiments += 1
        tally.wrong += wrong
    return tally


def settings() -> Iterator[Setting]:
    """Those of the report."""
    for noise, effect, blocks in product(NOISES, (0.0, 0.25, 0.5, 1.0), (12, 20)):
        yield Setting(noise=noise, effect=effect, blocks=blocks)


PILOT = 12
"""Blocks from whose spread the number of blocks is recommended."""


def power_at_recommendation(
    effect: float, correlation: float, *, arms: int = 2, paired: bool = True, experiments: int, seed: int
) -> tuple[float, float]:
    """How often the arm that is better is found so, with the blocks that a pilot recommends; and the mean of their number.

    Args:
        effect: by which the last arm is better than each of the others [sd of a run].
        correlation: of two runs of a block.
        arms: 2 or more, of which every pair is compared; the recommendation is for the last two.
        paired: do arms share blocks? Else the pilot and the experiment are taken for runs that have nothing in common.
        experiments: pilots, each with its experiment.
        seed: of all of them.
    """
    found, pairs, blocks = 0, 0, 0
    for index in range(experiments):
        setting = Setting(effect=effect, correlation=correlation, arms=arms, blocks=PILOT)
        pilot = compare(_table(runs(setting, stream(seed, "pilot", str(setting), index)), paired), margin=effect, seed=index)
        needed = pilot.judgements[-1].needed
        assert needed is not None
        outcome = runs(replace(setting, blocks=needed), stream(seed, "main", str(setting), index))
        told = compare(_table(outcome, paired), margin=effect / 10, seed=index).judgements
        better = [one.winner for one in told if one.difference.second == f"arm{arms - 1}"]
        found += better.count(f"arm{arms - 1}")
        pairs += len(better)
        blocks += needed
    return found / pairs, blocks / experiments


def _table(outcome: np.ndarray, paired: bool = True) -> dict[str, dict[int, float]]:
    """Arm -> block -> outcome; where they are not paired, no two arms have a block in common."""
    first = 0 if paired else outcome.shape[1]
    return {f"arm{arm}": dict(enumerate(row.tolist(), start=arm * first)) for arm, row in enumerate(outcome)}


def report(experiments: int) -> Tally:
    """Prints what was said in every setting; the sum of all."""
    print("| noise | effect [sd] | blocks | wrong claims [%] | coverage, mean [%] | coverage, IQM [%] | power [%] |")
    print("|---|---|---|---|---|---|---|")
    whole = Tally()
    for setting in settings():
        tally = try_out(setting, experiments, seed=0)
        whole.add(tally)
        power = "" if np.isnan(tally.power) else f"{100 * tally.power:.0f}"
        shares = [tally.wrong / tally.experiments, tally.coverage, tally.held_iqm / tally.pairs]
        cells = [setting.noise, f"{setting.effect:g}", str(setting.blocks), *(f"{100 * share:.1f}" for share in shares), power]
        print(f"| {' | '.join(cells)} |", flush=True)
    return whole


def main(words: list[str]) -> None:
    """Prints the report; the first word is the number of experiments in each setting, a second, "blocks", leaves out all but
    how many blocks are recommended."""
    experiments = int(words[0]) if words else 200
    if words[1:] != ["blocks"]:
        whole = report(experiments)
        wrong, most = 100 * whole.wrong / whole.experiments, 100 * whole.wrong_at_most()
        held, held_iqm = 100 * whole.coverage, 100 * whole.held_iqm / whole.pairs
        print(f"\nOf {whole.experiments} experiments {wrong:.1f} % make a wrong claim (at most {most:.1f} %, 99 % confidence).")
        print(f"Intervals hold the truth in {held:.1f} % (IQM: {held_iqm:.1f} %).\n")
    recommended(experiments)


def recommended(experiments: int) -> None:
    """Prints how many blocks a pilot recommends, with pairs and without, and the power that they have."""
    print(f"| arms | effect [sd] | correlation | blocks by a pilot of {PILOT} | power [%] | without pairs | power [%] | times |")
    print("|---|---|---|---|---|---|---|---|")
    for arms, effect, correlation in product((2, 4), (0.5, 1.0), (0.0, 0.5, 0.8)):
        told = [
            power_at_recommendation(effect, correlation, arms=arms, paired=paired, experiments=experiments, seed=0)
            for paired in (True, False)
        ]
        shown = " | ".join(f"{blocks:.0f} | {100 * power:.0f}" for power, blocks in told)
        print(f"| {arms} | {effect:g} | {correlation:g} | {shown} | {told[1][1] / told[0][1]:.1f} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
