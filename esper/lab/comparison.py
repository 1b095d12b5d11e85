"""An experiment, judged: every pair of its arms in every outcome, and what is to be said of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from esper.config import ConfigError
from esper.lab.design import AGAIN, FILE, Design
from esper.lab.runs import OUTCOMES, PAYING, CompareConfig, Outcome, Run, faults, find_runs, pays
from esper.lab.scoring import LIVED, SEARCHED, Judging, judge_all
from esper.stats.experiment import Comparison, compare
from esper.stats.paired import LEAST_BLOCKS, Difference
from esper.stats.verdict import Verdict


@dataclass(frozen=True, kw_only=True, slots=True)
class Study:
    """An experiment and what it says."""

    config: CompareConfig
    runs: list[Run]
    outcomes: dict[str, dict[str, dict[int, float]]]
    """Outcome -> arm -> block -> value; NaN where it was not reached."""
    comparisons: dict[str, Comparison]
    """Of all pairs of arms, by outcome."""
    controls: dict[str, Difference]
    """The first arm less its repetition, by outcome; empty where there is none."""
    faults: list[str] = field(default_factory=lambda: list[str]())
    """Why it is void; empty where it is not."""
    plan: str | None = None
    """What was written down before the first run."""
    world: Sequence[str] = ()
    """Words of esper.train by which fresh hosts were made, in place of what the policies were trained with."""

    @property
    def arms(self) -> list[str]:
        """All, the repeated one last."""
        return list(next(iter(self.outcomes.values())))

    @property
    def outcome(self) -> Outcome:
        """By which the verdict is given."""
        return OUTCOMES[self.config.outcome]

    def sentences(self) -> list[str]:
        """What is to be said, most important first."""
        told = self.comparisons[self.config.outcome].judgements
        said = [f"void: {fault}" for fault in self.faults] + [str(one) for one in told]
        missing = [run for run in self.runs if not run.finished]
        if any(one.verdict is Verdict.unfinished for one in told):
            said.append(
                f"{len(missing)} of {len(self.runs)} planned runs are not finished: repeat the command that began them, "
                "or set final=true if they never will be"
            )
        said += [f"{run.arm}, block {run.block}: {run.fate}" for run in missing]
        moved = [f"every policy was moved to {' '.join(self.world)}, and all outcomes are from there"] if self.world else []
        return said + self._without_outcome() + moved

    def _without_outcome(self) -> list[str]:
        """Arms whose runs are finished, and have no value of what they are judged by."""
        said: list[str] = []
        done = {(run.arm, run.block) for run in self.runs if run.finished}
        trained = {run.arm for run in self.runs}
        for arm, cells in self.outcomes[self.config.outcome].items():
            lacking = [block for block, value in cells.items() if not np.isfinite(value) and (arm, block) in done]
            if lacking or (arm not in trained and not np.isfinite(list(cells.values())).any()):
                blocks = f"block{'s' * (len(lacking) != 1)} {', '.join(map(str, lacking))}" if lacking else "any block"
                said.append(f"{arm} has no {self.config.outcome} in {blocks}: leave it out, or choose another outcome")
        return said


def study(
    folders: Sequence[Path], config: CompareConfig, *, world: Sequence[str] = (), tell: Callable[[str], None] = lambda _: None
) -> Study:
    """Reads, judges and compares.

    Args:
        world: words of esper.train that move every policy to another world, as task=mnist5k does.
        tell: is told which run is being judged.
    """
    if world and config.outcome in LIVED:
        raise ConfigError(f"outcome={config.outcome} is of training, which {world[0]} does not change: choose another outcome")
    runs = find_runs(folders, config.strata)
    outcomes = _judged(runs, config, world, folders[0] if folders else Path(), tell)
    arms = list(outcomes[config.outcome])
    strata = {run.block: run.stratum for run in runs} if config.strata else None
    margins = {name: outcome.margin for name, outcome in OUTCOMES.items()}
    if config.margin is not None:
        margins[config.outcome] = config.margin
    controls: dict[str, Difference] = {}
    if AGAIN in arms:
        for name, table in outcomes.items():
            pair = {arm: table[arm] for arm in (arms[0], AGAIN)}
            (told,) = compare(pair, margin=margins[name], alpha=config.alpha, strata=strata).judgements
            controls |= {name: told.difference} if told.difference.count >= 2 else {}
    found = [*faults([run for run in runs if run.finished]), *_differs_from_itself(controls.get(config.outcome))]
    unfinished = not config.final and any(not run.finished for run in runs)
    withheld = Verdict.void if found else Verdict.unfinished if unfinished else None
    comparisons = {
        name: compare(
            {arm: cells for arm, cells in outcomes[name].items() if arm != AGAIN},
            margin=margins[name],
            higher_is_better=outcome.higher_is_better,
            alpha=config.alpha,
            against=config.against,
            strata=strata,
            withheld=withheld,
        )
        for name, outcome in OUTCOMES.items()
    }
    return Study(
        config=config,
        runs=runs,
        outcomes=outcomes,
        comparisons=comparisons,
        controls=controls,
        plan=plan_of(folders),
        world=world,
        faults=found,
    )


def _judged(
    runs: Sequence[Run], config: CompareConfig, world: Sequence[str], kept: Path, tell: Callable[[str], None]
) -> dict[str, dict[str, dict[int, float]]]:
    """Outcome -> arm -> block -> value of all arms, and of the rivals of the first one; the repeated arm comes last."""
    trained = list(dict.fromkeys(run.arm for run in runs))
    if clash := set(trained) & set(config.rivals):
        raise ConfigError(f"rivals={clash.pop()} is an arm already: leave it out of rivals")
    arms = sorted([*trained, *config.rivals], key=AGAIN.__eq__)
    if config.against not in (None, *arms) or config.against == AGAIN:
        raise ConfigError(f"against={config.against} is no arm: choose out of {', '.join(arm for arm in arms if arm != AGAIN)}")
    finished = [run for run in runs if run.finished]
    alike = _paid_alike(finished)
    if config.outcome == "return" and not alike:
        raise ConfigError(
            f"outcome=return cannot judge arms that are paid by different {', '.join(PAYING)}: take outcome=accuracy"
        )
    if config.strata and (chosen := set(config.rivals) & set(SEARCHED)):
        raise ConfigError(
            f"rivals={chosen.pop()} is chosen for one setting: leave it out, or leave strata out and compare one setting"
        )
    like = {arm: trained[0] if arm in config.rivals else arm for arm in arms}
    blocks = {arm: [run.block for run in runs if run.arm == like[arm]] for arm in arms}
    outcomes = {name: {arm: dict.fromkeys(blocks[arm], float("nan")) for arm in arms} for name in OUTCOMES}
    judging = Judging(hosts=config.hosts, rivals=config.rivals, rivals_of=trained[0], kept=kept, world=world)
    for run, reached in zip(finished, judge_all(finished, judging, workers=config.workers, tell=tell), strict=True):
        for arm, values in reached.items():
            for name, value in values.items():
                outcomes[name][arm][run.block] = value if alike or name != "return" else float("nan")
    return outcomes


def plan_of(folders: Sequence[Path]) -> str | None:
    """What was planned for the experiments in these folders."""
    plans = [plan for folder in folders if (folder / FILE).is_file() and (plan := Design.load(folder).plan) is not None]
    return "\n\n".join(plans) or None


def _paid_alike(runs: Sequence[Run]) -> bool:
    """Whether all runs that know a key of their pay have the same value of it."""
    keys = {key for run in runs for key in run.config if pays(key)}
    return all(len({str(run.config[key]) for run in runs if key in run.config}) == 1 for key in keys)


def _differs_from_itself(control: Difference | None) -> list[str]:
    """Why the repeated arm says that the experiment is void."""
    if control is None or control.count < LEAST_BLOCKS or control.mean.low <= 0 <= control.mean.high:
        return []
    return [f"{control.first} differs from its own repetition by {control.mean.low:.2g} to {control.mean.high:.2g}"]
