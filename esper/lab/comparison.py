"""Comparison of the arms of an experiment: every pair of arms in every outcome."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from esper.config import ConfigError, root_key
from esper.evaluation.held_out import POLICIES
from esper.evaluation.outcomes import ONLINE
from esper.lab.advise import LEAST, LONGER, acting_alike, continuing, measured_spread, next_experiment, states, unfinished
from esper.lab.arms import AA_CONTROL
from esper.lab.cautions import anomalies, early_baselines, other_hosts
from esper.lab.costs import cost_table
from esper.lab.design import FILE, Design, command_of
from esper.lab.integrity import check_runs, mixed, refuse_unlike
from esper.lab.looks import deviations, listed_runs, lost_looks, other_settings, planned, scored_with
from esper.lab.outcomes import (
    OUTCOMES,
    RETURNS,
    REWARD_KEYS,
    CompareConfig,
    OutcomeSpec,
    compared,
    defines_return,
    differing_reward,
)
from esper.lab.power import advice, spread_of
from esper.lab.runs import Run, criterion_of, find_runs, measures_hosts, refuse_unmeasured, samples_actions, with_moved_data
from esper.lab.scoring import Scoring, objective_of, read_scores, score_all, scored_config, scored_file, unseen_kinds
from esper.lab.tables import host_table, seed_table
from esper.stats.power import PlannedTest
from esper.stats.verdict import NOT_NORMAL, Conclusion, PairResult, compare_arms
from esper.telemetry.tags import in_terms_of
from esper.training.config_io import without_paths
from esper.training.provenance import versions


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """An experiment with its outcomes and verdicts."""

    config: CompareConfig
    runs: list[Run]
    outcomes: pd.DataFrame
    """One row per run and outcome, with columns arm, controller (`policy`, or the baseline), block, stratum, outcome and value,
    NaN if not measured."""
    results: dict[str, list[PairResult]]
    """All pairs of arms, by outcome."""
    hosts: pd.DataFrame
    """Outcomes of every held-out host; see `host_table`."""
    seeds: pd.DataFrame
    """Every seed of the held-out hosts; see `seed_table`."""
    costs: pd.DataFrame
    """Costs of every arm; see `cost_table`."""
    controls: dict[str, PairResult]
    """The first arm and its A/A control, by outcome; empty without a control."""
    warnings: list[str]
    """What a reader should know about the runs before believing a verdict."""
    design: Design | None
    """The experiment with its plan; None for loose runs and for several experiments."""
    deviations: list[str]
    """Deviations from the plan. If there are any, the comparison is exploratory and has no verdict."""
    folders: Sequence[Path]
    """Folders of the experiment."""
    overrides: Sequence[str]
    """Evaluation overrides, planned or not."""
    score: str
    """Name of the hosts' score."""
    floor: float
    """Its lowest possible value [%]."""

    @property
    def arms(self) -> list[str]:
        """Names of all arms: trained arms, baselines, A/A control."""
        return self.outcomes["arm"].unique().tolist()

    @property
    def unplanned(self) -> list[str]:
        """Differences from the planned comparison, as overrides: those of the evaluation, and other settings."""
        if self.design is None:
            first, *others = self.folders
            return [*(f"with {folder.name}" for folder in others if (first / FILE).exists()), *self.overrides]
        changes = [one for one in self.overrides if one not in self.design.plan.score_overrides]
        settings = {name: got for name, (got, _) in other_settings(self.design, self.config).items()}
        if "outcome" in settings:
            settings.pop("margin", None)  # which has another unit then
        return [*changes, *(f"no_{name}" if value == "[]" else f"{name}={value}" for name, value in settings.items())]

    @property
    def outcome(self) -> OutcomeSpec:
        """The primary outcome."""
        return OUTCOMES[self.config.outcome]

    def values(self, outcome: str) -> pd.DataFrame:
        """Return one outcome as a table of blocks by arms."""
        return wide(self.outcomes, outcome)

    @cached_property
    def sentences(self) -> list[str]:
        """Return the verdicts and their limitations, most important first."""
        results = self.results[self.config.outcome]
        lines = [self._said(result) for result in results]
        if not results:
            lines = [f"no verdict: {self.arms[0]} is the only arm beside its A/A control: add arms, or baselines=[wait]"]
        if self.deviations:
            lines = [f"exploratory, hence no verdict: {'; '.join(self.deviations)}"]
        else:
            lines += self._next_look()
        lines += self._about_control()
        lines += [f"warning: {warning}" for warning in [*self._pair_warnings(), *self.warnings]]
        if alike := self._alike:
            longer = f", as in updates={self._longer}" if self._longer else ""
            lines.append(
                f"warning: the most probable actions of all arms give the same accuracy in {alike[0]} of "
                f"{alike[1]} blocks: the arms act alike, and more blocks will not tell them apart: train longer{longer}"
            )
        lines += self._advice(results)
        missing = [run for run in self.runs if not run.finished]
        if missing and not self.config.final:
            command, are = continuing(self.design, self.folders), "is" if len(missing) == 1 else "are"
            lines.append(
                f"{len(missing)} of {len(self.runs)} planned runs {are} not finished: set final=true if they never will be, or "
                f"continue with {command}"
            )
        lines += states(missing)
        lines += self._without_outcome()
        lines += [f"all policies were evaluated with {' '.join(self.overrides)}"] if self.overrides else []
        return [in_terms_of(self.score, line) for line in lines]

    def _said(self, result: PairResult) -> str:
        """Return the sentence on a pair. If the arms act alike, it names no number of blocks, since more would not help."""
        pair = result.difference
        if self._is_alike(result):
            return f"undecided between {pair.first} and {pair.second}: their policies have not learned to differ yet"
        return str(result)

    def _advice(self, results: Sequence[PairResult]) -> list[str]:
        """Say whether more hosts or more blocks would help, unless everything is decided."""
        if all(result.decided for result in results):
            return []
        pairs = [(result.difference.first, result.difference.second) for result in results]
        cells = self.values(self.config.outcome)
        for rate in (rate for result in results for rate in result.collapses):  # as verdicts leave them out
            cells.loc[list(rate.blocks), rate.arm] = math.nan
        spread = spread_of(cells, self.hosts, self.config.outcome, pairs)
        lines = measured_spread(spread, self.design, self.outcome)
        looks = self.design.plan.looks if self.design else [max(result.difference.blocks for result in results)]
        test = PlannedTest(margin=results[0].margin, looks=looks, alpha=self.config.alpha, pairs=len(pairs))
        open_ = [result for result in results if not (result.decided or self._is_alike(result))]
        lines += advice(spread, test) if spread and open_ else []
        if not self.deviations:
            lines += next_experiment(open_ or results, self.design, self.folders[0], None if open_ else self._longer)
        return lines

    def _is_alike(self, result: PairResult) -> bool:
        """Return whether a pair is undecided since its arms act alike."""
        arms = {result.difference.first, result.difference.second}
        return self._alike is not None and result.verdict is Conclusion.undecided and arms <= {*self._trained}

    @property
    def _trained(self) -> list[str]:
        """Names of the trained arms, without the A/A control."""
        return [arm for arm in dict.fromkeys(run.arm for run in self.runs) if arm in self.arms and arm != AA_CONTROL]

    @property
    def _alike(self) -> tuple[int, int] | None:
        """Number of blocks in which the trained arms act alike, of how many; None if in few, or if an arm does not sample."""
        if not all(samples_actions(run) for run in self.runs):
            return None
        greedy: Any = self.values("accuracy_greedy")[self._trained]
        return acting_alike(greedy)

    @property
    def _longer(self) -> int | None:
        """Number of updates to propose if arms act alike; None if they do not, or if runs differ in their number of updates."""
        updates = {run.updates for run in self.runs if run.finished}
        return max(LEAST, LONGER * updates.pop()) if self._alike and len(updates) == 1 else None

    def _about_control(self) -> list[str]:
        """Return sentences on the first arm and its A/A control: their difference, and what was left out of it."""
        control = self.controls.get(self.config.outcome)
        if control is None:
            return []
        lines = [f"warning: {control.difference.first} and {AA_CONTROL}: {warning}" for warning in _cautions(control)]
        mean = control.difference.mean
        if mean.mean == control.difference.spread == 0:
            outcome = self.config.outcome.replace("_", " ")
            same = f"its {outcome} equals that of {control.difference.first} in every block"
            return [f"A/A control: {same}, so it shows nothing about null effects", *lines]
        if not math.isfinite(mean.high - mean.low):
            return lines
        interval = f"{mean.mean:.3g} ({mean.low:.3g} to {mean.high:.3g})"
        line = f"A/A control: {control.difference.first} minus its copy with other policy seeds is {interval}"
        if not mean.low <= 0 <= mean.high:
            line = (
                f"warning: {line}. The interval excludes 0, which happens in 5 % of comparisons without an effect: look for a "
                "cause before you trust the other differences"
            )
        return [line, *lines]

    def _pair_warnings(self) -> list[str]:
        """Return the warnings on pairs whose own sentence does not hold them."""
        results = [result for result in self.results[self.config.outcome] if result.verdict is not Conclusion.withheld]
        pairs = [(result.difference, warning) for result in results for warning in _cautions(result)]
        return [f"{pair.first} and {pair.second}: {warning}" for pair, warning in pairs]

    def _next_look(self) -> list[str]:
        """Say where the next look is, if blocks must be added for it, or that blocks were added after the last one."""
        if self.design is None:
            return []
        if self.design.late:
            return self.design.late
        later = next((look for look in self.design.plan.looks if look > self.design.blocks), None)
        if later is None or all(result.decided for result in self.results[self.config.outcome]):
            return []
        more = command_of(self.design, self.folders[0], blocks=later)
        return [f"the next look, which may give a verdict, is at {later} blocks: {more}"]

    def _without_outcome(self) -> list[str]:
        """Name the arms whose runs are finished but lack the primary outcome."""
        finished = {(run.arm, run.block) for run in self.runs if run.finished}
        lines: list[str] = []
        cells: Any = self.outcomes[self.outcomes["outcome"] == self.config.outcome]
        for arm, rows in cells.groupby("arm", sort=False):
            lacking = [block for block in rows.loc[rows["value"].isna(), "block"] if (arm, block) in finished]
            if lacking or ((rows["controller"] != "policy").all() and rows["value"].isna().all()):
                blocks = f"block{'s' * (len(lacking) != 1)} {', '.join(map(str, lacking))}" if lacking else "any block"
                lines.append(
                    f"{arm} has no {self.config.outcome} in {blocks}: remove this arm, choose another outcome, or set final=true"
                )
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
        overrides: evaluation overrides for all policies, such as task=mnist5k, beside those that were planned.
        log: receives a line per scored run.
    """
    scored_with(folders, without_paths(overrides), config.outcome)  # refuses what does not fit before it reads any run
    listed, design = listed_runs(folders), planned(folders)
    alike_by_plan = design.plan.score_overrides if design else []
    runs = [replace(run, listed=run.folder in listed) for run in find_runs(folders, config.strata)]
    runs, overrides = with_moved_data(runs, overrides)
    overrides = scored_with(folders, overrides, config.outcome)
    finished = [run for run in runs if run.finished]
    refuse_unlike(finished, config.strata, planned=design is not None, overrides=overrides)
    warnings = [*check_runs(runs, folders), *lost_looks(folders), *anomalies(finished, alike_by_plan)]
    warnings += other_hosts(finished, config.baselines, overrides)
    warnings += early_baselines(finished, config.baselines, overrides)
    if len(finished) < len(runs) and not config.final:
        log(unfinished(runs, design, folders))
    if warnings and not all(scored_file(run, config.hosts, overrides).exists() for run in finished):  # before a long time
        log("\n".join(f"warning: {warning}" for warning in warnings))
    online, arm = config.outcome == ONLINE, runs[0].arm
    by = criterion_of(config.outcome, runs[0])
    scoring = Scoring(hosts=config.hosts, baselines=config.baselines, arm=arm, online=online, overrides=overrides, by=by)
    outcomes = _outcomes(runs, config, scoring, log)
    alike = {(run.arm, run.stratum): run for run in finished}
    objectives = {objective_of(run, overrides) for run in alike.values()}
    floor = 100.0 * min(one.floor for one in objectives)
    margins = {name: spec.margin for name, spec in OUTCOMES.items()} | ({config.outcome: config.margin} if config.margin else {})
    tables: dict[str, Any] = {name: outcomes[outcomes["outcome"] == name] for name in OUTCOMES}
    deviating, looks = deviations(design, config, overrides), design.plan.looks if design else None
    return Comparison(
        config=config,
        runs=runs,
        outcomes=outcomes,
        results={
            name: _verdicts(name, rows, config, margin=margins[name], floor=floor, looks=looks, exploratory=bool(deviating))
            for name, rows in tables.items()
        },
        hosts=host_table(finished, scoring),
        seeds=seed_table(finished, scoring),
        costs=cost_table(finished, scoring),
        controls=_controls(tables, margins, config.alpha),
        warnings=[*warnings, *_rescored(finished, scoring), *unseen_kinds(finished, scoring)],
        design=design,
        deviations=deviating,
        folders=folders,
        overrides=overrides,
        score=" or ".join(sorted({one.score for one in objectives})),
        floor=floor,
    )


def _verdicts(
    name: str,
    rows: Any,
    config: CompareConfig,
    *,
    margin: float,
    floor: float,
    looks: Sequence[int] | None,
    exploratory: bool,
) -> list[PairResult]:
    """Return all pairs of arms in one outcome; only the primary one has looks, and a verdict unless all is exploratory."""
    spec, primary = OUTCOMES[name], name == config.outcome
    if not primary:  # an arm that cannot have this outcome takes none from the others
        rows = rows[rows.groupby("arm")["value"].transform("count") > 0]
        arms = {*rows["arm"]} - {AA_CONTROL}
        if len(arms) < 2 or config.against not in (None, *arms):
            return []
    return compare_arms(
        rows[rows["arm"] != AA_CONTROL],
        margin=margin,
        higher_is_better=spec.higher_is_better,
        alpha=config.alpha,
        against=config.against,
        withheld=Conclusion.exploratory if exploratory or not primary else None,
        looks=looks if primary else None,
        final=config.final,
        unit="" if spec.difference == "1" else spec.difference,
        bounds=spec.bounds and (floor, spec.bounds[1]),
    )


def _controls(tables: Mapping[str, Any], margins: Mapping[str, float], alpha: float) -> dict[str, PairResult]:
    """Return the difference of the first arm to its A/A control, if there is one, by outcome."""
    controls: dict[str, PairResult] = {}
    for name, rows in tables.items():
        if AA_CONTROL in (arms := rows["arm"].unique().tolist()):
            own, better = rows[rows["arm"].isin([arms[0], AA_CONTROL])], OUTCOMES[name].higher_is_better
            (pair,) = compare_arms(own, margin=margins[name], higher_is_better=better, alpha=alpha)
            controls |= {name: pair} if pair.difference.blocks >= 2 else {}
    return controls


def _outcomes(runs: Sequence[Run], config: CompareConfig, scoring: Scoring, log: Callable[[str], None]) -> pd.DataFrame:
    """Return the table of outcomes of all arms, with the baselines on the hosts of the first arm; the A/A control comes last."""
    trained = list(dict.fromkeys(run.arm for run in runs))
    finished = [run for run in runs if run.finished]
    paid_alike = _paid_alike(finished, scoring.overrides)
    _check(config, trained, finished, paid_alike)
    scores = score_all(finished, scoring, workers=config.workers, log=log)
    by_cell = {(run.arm, run.block): found for run, found in zip(finished, scores, strict=True)}
    measured = [name for name in OUTCOMES if paid_alike or name not in RETURNS]
    rows: list[dict[str, Any]] = []
    for arm in [*(arm for arm in trained if arm != AA_CONTROL), *config.baselines, *({AA_CONTROL} & {*trained})]:
        baseline = arm in config.baselines
        for run in (run for run in runs if run.arm == (trained[0] if baseline else arm)):
            values = by_cell.get((run.arm, run.block), {}).get(arm, {})
            cell = {"arm": arm, "controller": arm if baseline else "policy", "block": run.block, "stratum": run.stratum}
            rows.append({**cell, **{name: values.get(name) if name in measured else None for name in OUTCOMES}})
    by_run = pd.DataFrame(rows).astype(dict.fromkeys(OUTCOMES, float))
    return by_run.melt(id_vars=["arm", "controller", "block", "stratum"], var_name="outcome")


def _check(config: CompareConfig, trained: Sequence[str], finished: Sequence[Run], paid_alike: bool) -> None:
    """Raise ConfigError if the config does not fit the arms of the experiment."""
    refuse_unmeasured(config.outcome, finished)
    if len(compared(trained, config.baselines, config.against)) < 2 and AA_CONTROL not in trained:
        raise ConfigError("there is only one arm: name the folders of others, or add baselines, as in baselines=[static]")
    if config.outcome in RETURNS and not paid_alike:
        remedy = "choose outcome=accuracy" if measures_hosts(finished[0]) else "compare arms that have the same"
        raise ConfigError(f"outcome={config.outcome} cannot compare arms with different {', '.join(REWARD_KEYS)}: {remedy}")


def _rescored(runs: Sequence[Run], scoring: Scoring) -> list[str]:
    """Return a warning if stored scores come from different code versions, or from another one than this."""
    files = [(run, path) for run in runs if (path := scoring.file(run)).exists()]
    stored = {str(path): read_scores(run, path)["esper"] for run, path in files}
    shown = (*POLICIES, *map(scoring.key, scoring.baselines))
    found = {path: [version for name, version in one.items() if name in shown] for path, one in stored.items()}
    return mixed(found | {"this command": [versions()]}, "scored", "remove the files, and the runs are scored again")


def _paid_alike(runs: Sequence[Run], overrides: Sequence[str]) -> bool:
    """Return whether each key of the reward has one value in the evaluations of all runs that have this key."""
    pays = any(root_key(one) == "task" or defines_return(one.partition("=")[0]) for one in overrides)  # a task brings a governor
    return differing_reward([scored_config(run, overrides) if pays else run.config for run in runs]) is None


def _cautions(result: PairResult) -> list[str]:
    """Return the warnings on a pair, with what they mean for its interval."""
    meaning = {NOT_NORMAL: f"{NOT_NORMAL}: read the interval with care (docs/statistics.md#collapse)"}
    return [meaning.get(warning, warning) for warning in result.warnings]
