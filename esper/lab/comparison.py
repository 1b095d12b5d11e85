"""Comparison of the arms of an experiment: every pair of arms in every outcome."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from esper.config import ConfigError
from esper.lab.design import AA_CONTROL, FILE, Design
from esper.lab.runs import OUTCOMES, REWARD_KEYS, SEARCHED, CompareConfig, OutcomeSpec, Run, defines_return, faults, find_runs
from esper.lab.scoring import TRAINING, Scoring, score_all
from esper.stats.paired import MIN_BLOCKS, Difference
from esper.stats.verdict import Conclusion, PairResult, compare_arms


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """An experiment with its outcomes and verdicts."""

    config: CompareConfig
    runs: list[Run]
    outcomes: pd.DataFrame
    """One row per run and outcome, with columns arm, controller (`policy`, or the baseline), block, stratum, outcome and value,
    NaN if not measured."""
    results: dict[str, list[PairResult]]
    """All pairs of arms, by outcome."""
    controls: dict[str, Difference]
    """Difference of the first arm to its A/A control, by outcome; empty without a control."""
    faults: list[str]
    """Reasons why the experiment is void."""
    preregistration: str | None = None
    """Text written before the first run."""
    overrides: Sequence[str] = ()
    """Evaluation overrides."""

    @property
    def arms(self) -> list[str]:
        """Names of all arms: trained arms, baselines, A/A control."""
        return self.outcomes["arm"].unique().tolist()

    @property
    def outcome(self) -> OutcomeSpec:
        """The primary outcome."""
        return OUTCOMES[self.config.outcome]

    def values(self, outcome: str) -> pd.DataFrame:
        """Return one outcome as a table of blocks by arms."""
        return wide(self.outcomes, outcome)

    def sentences(self) -> list[str]:
        """Return the verdicts and their limitations, most important first."""
        results = self.results[self.config.outcome]
        lines = [f"void: {fault}" for fault in self.faults] + [str(result) for result in results]
        missing = [run for run in self.runs if not run.finished]
        if any(result.verdict is Conclusion.unfinished for result in results):
            lines.append(
                f"{len(missing)} of {len(self.runs)} planned runs are not finished: repeat the command that started them, "
                "or set final=true if they never will be"
            )
        lines += [f"{run.arm}, block {run.block}: {run.status}" for run in missing]
        lines += self._without_outcome()
        return lines + ([f"all policies were evaluated with {' '.join(self.overrides)}"] if self.overrides else [])

    def _without_outcome(self) -> list[str]:
        """Name the arms whose runs are finished but lack the primary outcome."""
        finished = {(run.arm, run.block) for run in self.runs if run.finished}
        lines: list[str] = []
        cells: Any = self.outcomes[self.outcomes["outcome"] == self.config.outcome]
        for arm, rows in cells.groupby("arm", sort=False):
            lacking = [block for block in rows.loc[rows["value"].isna(), "block"] if (arm, block) in finished]
            if lacking or ((rows["controller"] != "policy").all() and rows["value"].isna().all()):
                blocks = f"block{'s' * (len(lacking) != 1)} {', '.join(map(str, lacking))}" if lacking else "any block"
                lines.append(f"{arm} has no {self.config.outcome} in {blocks}: remove it, or choose another outcome")
        return lines


def wide(outcomes: pd.DataFrame, outcome: str) -> pd.DataFrame:
    """Return one outcome of a tidy table as a table of blocks by arms."""
    cells: Any = outcomes[outcomes["outcome"] == outcome]
    return cells.pivot(index="block", columns="arm", values="value")[cells["arm"].unique()]


def compare(
    folders: Sequence[Path], config: CompareConfig, *, overrides: Sequence[str] = (), log: Callable[[str], None] = lambda _: None
) -> Comparison:
    """Read the runs in these folders, score them and compare their arms.

    Args:
        folders: folders of experiments, or of runs.
        config: settings of the comparison.
        overrides: evaluation overrides for all policies, such as task=mnist5k.
        log: receives a line per scored run.
    """
    if overrides and config.outcome in TRAINING:
        raise ConfigError(
            f"outcome={config.outcome} is measured in training, which {overrides[0]} does not change: choose another outcome"
        )
    runs = find_runs(folders, config.strata)
    outcomes = _outcomes(runs, config, overrides, folders[0] if folders else Path(), log)
    margins = {name: spec.margin for name, spec in OUTCOMES.items()}
    if config.margin is not None:
        margins[config.outcome] = config.margin
    tables: dict[str, Any] = {name: outcomes[outcomes["outcome"] == name] for name in OUTCOMES}
    controls: dict[str, Difference] = {}
    if AA_CONTROL in (arms := outcomes["arm"].unique().tolist()):
        for name, rows in tables.items():
            (pair,) = compare_arms(rows[rows["arm"].isin([arms[0], AA_CONTROL])], margin=margins[name], alpha=config.alpha)
            controls |= {name: pair.difference} if pair.difference.blocks >= 2 else {}
    found = [*faults([run for run in runs if run.finished]), *_control_fault(controls.get(config.outcome))]
    unfinished = not config.final and any(not run.finished for run in runs)
    results = {
        name: compare_arms(
            rows[rows["arm"] != AA_CONTROL],
            margin=margins[name],
            higher_is_better=OUTCOMES[name].higher_is_better,
            alpha=config.alpha,
            against=config.against,
            withheld=Conclusion.void if found else Conclusion.unfinished if unfinished else None,
        )
        for name, rows in tables.items()
    }
    return Comparison(
        config=config,
        runs=runs,
        outcomes=outcomes,
        results=results,
        controls=controls,
        faults=found,
        preregistration=_preregistration(folders),
        overrides=overrides,
    )


def _outcomes(
    runs: Sequence[Run], config: CompareConfig, overrides: Sequence[str], folder: Path, log: Callable[[str], None]
) -> pd.DataFrame:
    """Return the table of outcomes of all arms, with the baselines on the hosts of the first arm; the A/A control comes last."""
    trained = list(dict.fromkeys(run.arm for run in runs))
    finished = [run for run in runs if run.finished]
    paid_alike = _paid_alike(finished)
    _check(config, trained, paid_alike)
    scoring = Scoring(hosts=config.hosts, baselines=config.baselines, arm=trained[0], folder=folder, overrides=overrides)
    scores = score_all(finished, scoring, workers=config.workers, log=log)
    by_cell = {(run.arm, run.block): found for run, found in zip(finished, scores, strict=True)}
    measured = [name for name in OUTCOMES if paid_alike or name != "return"]
    rows: list[dict[str, Any]] = []
    for arm in [*(arm for arm in trained if arm != AA_CONTROL), *config.baselines, *({AA_CONTROL} & {*trained})]:
        baseline = arm in config.baselines
        for run in (run for run in runs if run.arm == (trained[0] if baseline else arm)):
            values = by_cell.get((run.arm, run.block), {}).get(arm, {})
            cell = {"arm": arm, "controller": arm if baseline else "policy", "block": run.block, "stratum": run.stratum}
            rows.append({**cell, **{name: values.get(name) if name in measured else None for name in OUTCOMES}})
    by_run = pd.DataFrame(rows).astype(dict.fromkeys(OUTCOMES, float))
    return by_run.melt(id_vars=["arm", "controller", "block", "stratum"], var_name="outcome")


def _check(config: CompareConfig, trained: Sequence[str], paid_alike: bool) -> None:
    """Raise ConfigError if the config does not fit the arms of the experiment."""
    if clash := set(trained) & set(config.baselines):
        raise ConfigError(f"baselines={clash.pop()} is already an arm: remove it from baselines")
    arms = [arm for arm in (*trained, *config.baselines) if arm != AA_CONTROL]
    if len(arms) < 2 and AA_CONTROL not in trained:
        raise ConfigError(f"{arms[0]} is the only arm: name the folders of others, or add baselines, as in baselines=[static]")
    if config.against not in (None, *arms):
        raise ConfigError(f"against={config.against} is not an arm: choose from {', '.join(arms)}")
    if config.outcome == "return" and not paid_alike:
        raise ConfigError(
            f"outcome=return cannot compare arms that are paid by different {', '.join(REWARD_KEYS)}: choose outcome=accuracy"
        )
    if config.strata and (searched := set(config.baselines) & set(SEARCHED)):
        raise ConfigError(f"baselines={searched.pop()} is chosen for a single setting: remove it, or compare without strata")


def _preregistration(folders: Sequence[Path]) -> str | None:
    """Return the preregistrations of the experiments in these folders."""
    designs = [Design.load(folder) for folder in folders if (folder / FILE).is_file()]
    return "\n\n".join(design.preregistration for design in designs if design.preregistration is not None) or None


def _paid_alike(runs: Sequence[Run]) -> bool:
    """Return whether every key of the reward has the same value in all runs that have it."""
    keys = {key for run in runs for key in run.config if defines_return(key)}
    return all(len({str(run.config[key]) for run in runs if key in run.config}) == 1 for key in keys)


def _control_fault(control: Difference | None) -> list[str]:
    """Return the reason why the A/A control makes the experiment void, if any."""
    if control is None or control.blocks < MIN_BLOCKS or control.mean.low <= 0 <= control.mean.high:
        return []
    return [f"{control.first} differs from its A/A control by {control.mean.low:.2g} to {control.mean.high:.2g}"]
