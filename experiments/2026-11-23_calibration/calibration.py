"""Calibration of `esper.compare` on simulated experiments whose truth is known.

    python experiments/2026-11-23_calibration/calibration.py               # 250 experiments per setting
    python experiments/2026-11-23_calibration/calibration.py --quick       # one experiment per setting
    python experiments/2026-11-23_calibration/calibration.py 200 blocks    # only the recommended number of blocks and its power

A simulated run is block + arm: the block's part is shared by all arms and correlates them, the arm's part has the noise of the
setting. Effects are in standard deviations of a run. Collapse happens to runs of the last arm, which is the better one.
"""

# B blocks, A arms

import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from itertools import product

import numpy as np
import pandas as pd
from scipy import stats

from esper.seeding import stream
from esper.stats.collapse import collapsed
from esper.stats.verdict import Conclusion, PairResult, compare_arms

MARGIN = 0.5
"""Smallest difference that matters [sd]."""
BOUNDS = (-40.0, 10.0)
"""Bounds of the outcome [sd], as of an accuracy of 80 % with a standard deviation of 2."""
LOST = 0.1
"""Share of runs that are lost."""
TINY = 0.02
"""Difference that counts as none: where arms collapse, the true one is known to 0.002 [sd]."""
DEPTHS = (3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
"""Losses of a run that collapses [sd]."""
LOOKS = (10, 20, 30)
PEEKS = range(10, 31)
"""Numbers of blocks after which somebody compares the arms who cannot wait."""
PILOT = 12
"""Blocks of the pilot whose spread determines the recommended number of blocks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """Distribution of simulated experiments."""

    noise: str = "normal"
    """Noise of runs: normal; heavy (Student's t with 3 degrees of freedom); unequal (a last arm twice as noisy); skewed
    (a last arm with an exponential tail towards low outcomes)."""
    collapse: float = 0.0
    """Probability that a run of the last arm collapses."""
    depth: float = 0.0
    """Loss of a run that collapses [sd]."""
    both: bool = False
    """If true, runs of all arms collapse."""
    lost: str = ""
    """Runs that are lost: `random` ones of all arms, or the `worst` ones of the last arm."""
    effect: float = 0.0
    """Advantage of the last arm over the others, in runs that do not collapse [sd of a run]."""
    correlation: float = 0.5
    """Correlation of two runs of a block."""
    blocks: int = 12
    arms: int = 2
    looks: tuple[int, ...] = ()
    """Planned looks; none for a single one."""

    def __str__(self) -> str:
        parts = [self.noise] if self.noise != "normal" or not (self.collapse or self.lost) else []
        parts += [f"{self.lost} lost"] if self.lost else []
        parts += (
            [f"{'both arms' if self.both else 'one arm'} {100 * self.collapse:g} % by {self.depth:g}"] if self.collapse else []
        )
        return ", ".join([*parts, *([f"{self.arms} arms"] if self.arms > 2 else [])])

    def gain(self) -> float:
        """Return the advantage of the last arm in the mean of all runs."""
        return self.effect - (0.0 if self.both else self.collapse * self.depth)

    def declared_gain(self) -> float:
        """Return the advantage of the last arm in the mean of runs that do not collapse by `collapsed`, were there very many."""
        if not self.collapse or self.both:
            return self.effect
        own = simulate(replace(self, effect=0.0, blocks=1_000_000), np.random.default_rng(0))[-1]
        return self.effect + float(own[~collapsed(own, np.zeros(len(own)), margin=MARGIN)].mean())


@dataclass(kw_only=True, slots=True)
class Tally:
    """Counts of claims over many experiments."""

    experiments: int = 0
    wrong: int = 0
    """Experiments with at least one wrong claim about the mean of runs that do not collapse."""
    wrong_of_all: int = 0
    """Experiments with at least one claim that is wrong about the mean of all runs."""
    pairs: int = 0
    regular: int = 0
    """Pairs without warnings."""
    covered: int = 0
    """Pairs without warnings whose interval covers the true difference."""
    different: int = 0
    """Pairs with a true difference."""
    found: int = 0
    """Pairs with a true difference whose better arm was named."""

    @property
    def coverage(self) -> float:
        return self.covered / self.regular if self.regular else float("nan")

    @property
    def missed(self) -> float:
        """Share of all pairs whose interval misses the true difference without a warning."""
        return (self.regular - self.covered) / self.pairs

    @property
    def power(self) -> float:
        """Share of true differences that were found; NaN without any."""
        return self.found / self.different if self.different else float("nan")

    def wrong_at_most(self, confidence: float = 0.99) -> float:
        """Return an upper bound of the share of experiments with a wrong claim (Clopper, Pearson 1934)."""
        interval = stats.binomtest(self.wrong, self.experiments, alternative="less").proportion_ci(confidence)
        return float(interval.high)

    def faults(self) -> tuple[bool, bool, bool]:
        """Return whether more than 5 % of experiments make wrong claims, whether more than 5 % of the intervals miss without a
        warning, and whether coverage of those without a warning is outside 93 to 97 %.

        Only what the chance of this simulation does not explain counts, at p < 5 % on each side.
        """
        wrong = stats.binomtest(self.wrong, self.experiments, 0.05, alternative="greater").pvalue
        missed = stats.binomtest(self.regular - self.covered, self.pairs, 0.05, alternative="greater").pvalue
        low = stats.binomtest(self.covered, self.regular, 0.93, alternative="less").pvalue if self.regular else 1.0
        high = stats.binomtest(self.covered, self.regular, 0.97, alternative="greater").pvalue if self.regular else 1.0
        return bool(wrong < 0.05), bool(missed < 0.05), bool(min(low, high) < 0.05)

    def add(self, other: "Tally") -> None:
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


def simulate(setting: Setting, generator: np.random.Generator) -> np.ndarray:
    """Return the outcomes of an experiment `[A, B]`; NaN for a lost run."""
    shape = (setting.arms, setting.blocks)
    heavy = setting.noise == "heavy"  # a t distribution with 3 degrees of freedom has variance 3
    own = generator.standard_t(3, shape) / np.sqrt(3.0) if heavy else generator.standard_normal(shape)
    if setting.noise == "unequal":
        own[-1] *= 2.0
    if setting.noise == "skewed":
        own[-1] = 1 - generator.exponential(size=setting.blocks)
    shared = generator.standard_normal(setting.blocks)
    outcome = np.sqrt(setting.correlation) * shared + np.sqrt(1 - setting.correlation) * own
    outcome[-1] += setting.effect
    down = generator.random(shape) < setting.collapse
    outcome -= setting.depth * (down if setting.both else down * (np.arange(setting.arms) == setting.arms - 1)[:, None])
    if setting.lost == "random":
        outcome[generator.random(shape) < LOST] = np.nan
    if setting.lost == "worst":
        outcome[-1, np.argsort(outcome[-1])[: round(LOST * setting.blocks)]] = np.nan
    return outcome


def is_wrong(result: PairResult, true: float) -> bool:
    """Return whether the verdict claims what is not so, given the true difference of first and second arm."""
    if result.verdict is Conclusion.better:
        return abs(true) < TINY or result.winner != (result.difference.first if true > 0 else result.difference.second)
    return result.verdict is Conclusion.equivalent and abs(true) >= MARGIN - TINY


def tally(setting: Setting, experiments: int, seed: int, gain: float | None = None) -> Tally:
    """Count the claims about this many simulated experiments, whose truth is the declared gain if it is not given."""
    counts, best = Tally(), f"arm{setting.arms - 1}"
    gain = setting.declared_gain() if gain is None else gain
    for index in range(experiments):
        cells = cells_of(simulate(setting, stream(seed, "simulated_experiment", repr(setting), index)))
        wrong, wrong_of_all = False, False
        for result in compare_arms(cells, margin=MARGIN, looks=setting.looks or None, final=True, bounds=BOUNDS):
            pair = result.difference
            side = (pair.first == best) - (pair.second == best)
            true, true_of_all = side * gain, side * setting.gain()
            wrong |= is_wrong(result, true)
            wrong_of_all |= is_wrong(result, true_of_all)
            counts.pairs += 1
            counts.regular += not result.warnings
            counts.covered += not result.warnings and pair.mean.low <= true <= pair.mean.high
            counts.different += abs(true) >= TINY
            counts.found += abs(true) >= TINY and result.winner is not None and not is_wrong(result, true)
        counts.experiments += 1
        counts.wrong += wrong
        counts.wrong_of_all += wrong_of_all
    return counts


def settings() -> Iterator[Setting]:
    """Yield the settings of the report."""
    kinds = [Setting(noise=noise) for noise in ("normal", "heavy", "unequal", "skewed")]
    kinds += [Setting(lost=lost) for lost in ("random", "worst")]
    kinds += [Setting(collapse=rate, depth=depth) for depth in DEPTHS for rate in (0.05, 0.2)]
    kinds += [Setting(collapse=0.1, depth=10.0, both=True), Setting(arms=3)]
    for kind, effect, blocks in product(kinds, (0.0, 0.25, 0.5, 1.0), (12, 20)):
        yield replace(kind, effect=effect, blocks=blocks)
    kinds = [Setting(), Setting(noise="heavy"), Setting(collapse=0.05, depth=10.0)]
    for kind, effect in product(kinds, (0.0, 0.25, 0.5, 1.0)):
        yield replace(kind, effect=effect, blocks=LOOKS[-1])
        yield replace(kind, effect=effect, blocks=LOOKS[-1], looks=LOOKS)


def peeks(effect: float, experiments: int, seed: int) -> dict[str, list[bool]]:
    """Return whether somebody who compares after every block, and believes the first verdict, believes a wrong one."""
    setting = Setting(effect=effect, blocks=PEEKS[-1])
    wrong: dict[str, list[bool]] = {"one look planned": [], "every look planned": [], "nothing planned": []}
    for index in range(experiments):
        cells = cells_of(simulate(setting, stream(seed, "peeked_experiment", repr(setting), index)))
        (planned,) = compare_arms(cells, margin=MARGIN, looks=PEEKS)
        wrong["every look planned"].append(is_wrong(planned, -effect))
        for name, looks in (("one look planned", PEEKS[-1:]), ("nothing planned", None)):
            verdict = False
            for blocks in PEEKS:
                seen = (
                    cells.assign(value=cells["value"].where(cells["block"] < blocks)) if looks else cells[cells["block"] < blocks]
                )
                (result,) = compare_arms(seen, margin=MARGIN, looks=looks)
                if result.decided:
                    verdict = is_wrong(result, -effect)
                    break
            wrong[name].append(verdict)
    return wrong


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
        pilot = cells_of(simulate(setting, stream(seed, "pilot", repr(setting), index)))
        needed = compare_arms(pilot, margin=effect)[-1].needed
        assert needed is not None
        outcome = simulate(replace(setting, blocks=needed), stream(seed, "main", repr(setting), index))
        results = compare_arms(cells_of(outcome), margin=effect / 10)
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


def show(*cells: object) -> None:
    """Print a row of a table; NaN is an empty cell."""
    print(f"| {' | '.join('' if cell != cell else str(cell) for cell in cells)} |", flush=True)


def percent(share: float) -> str | float:
    return f"{100 * share:.1f}" if share == share else share


def report(experiments: int) -> None:
    """Print the tally of every setting, and their sum."""
    columns = ("setting", "effect [sd]", "blocks", "looks", "wrong claims", "wrong of all runs")
    columns += ("coverage", "missed", "warned", "power")
    show(*columns)
    show(*["---"] * len(columns))
    whole, faults = Tally(), np.zeros(3, dtype=int)
    for setting in settings():
        counts = tally(setting, experiments, seed=0)
        whole.add(counts)
        faults += counts.faults()
        of_all = counts.wrong_of_all / counts.experiments if setting.collapse and not setting.both else float("nan")
        warned = 1 - counts.regular / counts.pairs
        shares = [counts.wrong / counts.experiments, of_all, counts.coverage, counts.missed, warned, counts.power]
        show(setting, f"{setting.effect:g}", setting.blocks, len(setting.looks) or 1, *map(percent, shares))
    wrong, most = 100 * whole.wrong / whole.experiments, 100 * whole.wrong_at_most()
    print(f"\nOf {whole.experiments} experiments {wrong:.1f} % make a wrong claim (at most {most:.1f} %, 99 % confidence).")
    print(f"Intervals without a warning hold the truth in {percent(whole.coverage)} %; {percent(whole.missed)} % of all miss so.")
    print(f"Beyond chance (p < 5 % each), more than 5 % of claims are wrong in {faults[0]} settings, more than 5 % of all")
    print(f"intervals miss without a warning in {faults[1]}, and coverage is outside 93 to 97 % in {faults[2]}.\n")


def report_limit(experiments: int) -> None:
    """Print the coverage that a perfect detector of collapse has left: that of experiments in which no run collapsed.

    Their runs are distributed like those of an arm that never collapses, but the true mean is that of the arm that does.
    """
    show("collapse", "blocks", "no collapsed run", "true shift [sd]", "coverage then")
    show(*["---"] * 5)
    for rate, depth, blocks in product((0.05, 0.2), (4.0, 5.0, 6.0), (12, 20, 30)):
        setting = Setting(collapse=rate, depth=depth, blocks=blocks)
        gain = setting.declared_gain()
        clean = tally(Setting(blocks=blocks), experiments, seed=0, gain=gain)
        show(setting, blocks, percent((1 - rate) ** blocks), f"{gain:.2f}", percent(clean.coverage))
    print()


def report_peeks(experiments: int) -> None:
    """Print how often somebody who compares after every block believes a wrong claim."""
    print(f"Compared after each of {PEEKS[0]} to {PEEKS[-1]} blocks, {experiments} experiments: wrong claims\n")
    show("plan", "effect 0", "effect 0.5")
    show("---", "---", "---")
    none, half = (peeks(effect, experiments, seed=0) for effect in (0.0, MARGIN))
    for name in none:
        show(name, *(percent(float(np.mean(one[name]))) for one in (none, half)))
    print()


def report_blocks(experiments: int) -> None:
    """Print the number of blocks that a pilot recommends, and the power of an experiment of that size."""
    show("arms", "effect [sd]", "correlation", f"blocks by a pilot of {PILOT}", "power [%]")
    show(*["---"] * 5)
    for arms, effect, correlation in product((2, 4), (0.5, 1.0), (0.0, 0.5, 0.8)):
        power, blocks = power_at_recommendation(effect, correlation, arms=arms, experiments=experiments, seed=0)
        show(arms, f"{effect:g}", correlation, f"{blocks:.0f}", f"{100 * power:.0f}")


def main(arguments: list[str]) -> None:
    """Print the report: `--quick` or a number of experiments per setting, then optionally `blocks` for the third table only."""
    quick = arguments[:1] == ["--quick"]
    experiments = 1 if quick else int(arguments[0]) if arguments else 250
    if arguments[1:] == ["blocks"]:
        report_blocks(experiments)
    else:
        report(experiments)
        report_limit(experiments)
        report_peeks(experiments)


if __name__ == "__main__":
    main(sys.argv[1:])
