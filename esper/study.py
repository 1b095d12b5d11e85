"""An experiment, judged: every pair of its arms in every outcome, and what is to be said of it."""

import csv
import io
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from esper.checkpoint import write_whole
from esper.config import ConfigError
from esper.design import AGAIN, FILE, Design, fingerprint
from esper.judging import judge, judge_rivals
from esper.report import figures, page
from esper.runs import OUTCOMES, CompareConfig, Outcome, Run, faults, find_runs
from esper.stats.experiment import Comparison, compare
from esper.stats.paired import LEAST_BLOCKS, Difference


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
        said = [f"void: {fault}" for fault in self.faults]
        said += [str(told) for told in self.comparisons[self.config.outcome].judgements]
        return said + [f"{run.arm}, block {run.block}: {run.fate}" for run in self.runs if not run.finished]


def study(folders: Sequence[Path], config: CompareConfig, tell: Callable[[str], None] = lambda _: None) -> Study:
    """Reads, judges and compares.

    Args:
        tell: is told which run is being judged.
    """
    runs = find_runs(folders)
    outcomes = _judged(runs, config, folders[0] if folders else Path(), tell)
    arms = list(outcomes[config.outcome])
    comparisons: dict[str, Comparison] = {}
    controls: dict[str, Difference] = {}
    for name, outcome in OUTCOMES.items():
        margin = config.margin if name == config.outcome and config.margin is not None else outcome.margin
        table = {arm: cells for arm, cells in outcomes[name].items() if np.isfinite(list(cells.values())).any()}
        plain = {arm: cells for arm, cells in table.items() if arm != AGAIN}
        against = config.against if config.against in plain else None
        comparisons[name] = compare(
            plain, margin=margin, higher_is_better=outcome.higher_is_better, alpha=config.alpha, against=against
        )
        if AGAIN in table and arms[0] in table:
            pair = compare({arm: table[arm] for arm in (arms[0], AGAIN)}, margin=margin, alpha=config.alpha).judgements
            controls.update((name, told.difference) for told in pair)
    return Study(
        config=config,
        runs=runs,
        outcomes=outcomes,
        comparisons=comparisons,
        controls=controls,
        plan=plan_of(folders),
        faults=[*faults([run for run in runs if run.finished]), *_differs_from_itself(controls.get(config.outcome))],
    )


def _judged(
    runs: Sequence[Run], config: CompareConfig, kept: Path, tell: Callable[[str], None]
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
        raise ConfigError("outcome=return cannot judge arms that are paid by different rewards: take outcome=accuracy")
    like = {arm: trained[0] if arm in config.rivals else arm for arm in arms}
    blocks = {arm: [run.block for run in runs if run.arm == like[arm]] for arm in arms}
    outcomes = {name: {arm: dict.fromkeys(blocks[arm], float("nan")) for arm in arms} for name in OUTCOMES}
    for index, run in enumerate(finished):
        tell(f"judging {index + 1} of {len(finished)}: {run.folder}")
        reached = {run.arm: judge(run, config.hosts)}
        if run.arm == trained[0] and config.rivals:
            reached |= judge_rivals(run, config.hosts, config.rivals, kept)
        for arm, values in reached.items():
            for name, value in values.items():
                outcomes[name][arm][run.block] = value if alike or name != "return" else float("nan")
    return outcomes


def plan_of(folders: Sequence[Path]) -> str | None:
    """What was planned for the experiments in these folders."""
    plans = [plan for folder in folders if (folder / FILE).is_file() and (plan := Design.load(folder).plan) is not None]
    return "\n\n".join(plans) or None


def _paid_alike(runs: Sequence[Run]) -> bool:
    """Whether all runs have the same reward."""
    pays = [{key: value for key, value in run.config.items() if key.split(".")[0] == "reward"} for run in runs]
    return all(pay == pays[0] for pay in pays)


def _differs_from_itself(control: Difference | None) -> list[str]:
    """Why the repeated arm says that the experiment is void."""
    if control is None or control.count < LEAST_BLOCKS or control.mean.low <= 0 <= control.mean.high:
        return []
    return [f"{control.first} differs from its own repetition by {control.mean.low:.2g} to {control.mean.high:.2g}"]


def summary(found: Study) -> dict[str, Any]:
    """All numbers, as plain values."""
    return {
        "sentences": found.sentences(),
        "plan": None if found.plan is None else {"sha256": fingerprint(found.plan), "text": found.plan},
        "config": asdict(found.config),
        "faults": found.faults,
        "runs": [
            {"arm": run.arm, "block": run.block, "folder": str(run.folder), "seed": run.config.get("seed"), "fate": run.fate}
            for run in found.runs
        ],
        "outcomes": found.outcomes,
        "differences": {
            name: [
                asdict(told.difference)
                | {"p_holm": told.p_holm, "p_equivalence_holm": told.p_equivalence_holm, "verdict": told.verdict}
                for told in comparison.judgements
            ]
            for name, comparison in found.comparisons.items()
        },
        "controls": {name: asdict(control) for name, control in found.controls.items()},
        "missing": {name: comparison.missing for name, comparison in found.comparisons.items()},
    }


def tables(found: Study) -> list[dict[str, Any]]:
    """Arms and differences as rows of text, each table with `caption`, `head` and `rows`."""
    finished = Counter(run.arm for run in found.runs if run.finished)
    means = [[arm, str(finished[arm]), *(_mean(cells[arm]) for cells in found.outcomes.values())] for arm in found.arms]
    units = [f"{name.replace('_', ' ')} [{OUTCOMES[name].unit}]" for name in found.outcomes]
    pairs = [
        [*_cells(told.difference), f"{told.p_holm:.3g}", f"{told.p_equivalence_holm:.3g}", str(told.verdict.value)]
        for told in found.comparisons[found.outcome.name].judgements
    ]
    if control := found.controls.get(found.outcome.name):
        pairs.append([*_cells(control), f"{control.p:.3g}", f"{control.p_equivalence:.3g}", "control"])
    caption = f"Differences in {found.outcome.name} [{found.outcome.unit}]: {found.outcome.what}"
    return [
        {"caption": "Means over blocks", "head": ["arm", "blocks", *units], "rows": means},
        {
            "caption": caption,
            "head": ["first - second", "n", "mean, 95 % interval", "IQM", "P(ahead)", "p", "p within", "verdict"],
            "rows": pairs,
        },
    ]


def _mean(cells: Mapping[int, float]) -> str:
    finite = [value for value in cells.values() if np.isfinite(value)]
    return f"{np.mean(finite):,.4g}" if finite else ""


def _cells(apart: Difference) -> list[str]:
    count = str(apart.count) if apart.paired else f"{apart.count}, unpaired"
    known = np.isfinite(apart.mean.half_width)
    between = f"{apart.mean.low:.2f} to {apart.mean.high:.2f}" if known else "unbounded"
    pair = f"{apart.first} - {apart.second}"
    return [pair, count, f"{apart.mean.mean:.2f}, {between}", f"{apart.iqm.mean:.2f}", f"{apart.improvement.mean:.2f}"]


def show(found: Study, console: Console) -> None:
    """Arms, differences and sentences."""
    for one in tables(found):
        table = Table(title=escape(one["caption"]), title_justify="left")
        widest = max((len(row[0]) for row in one["rows"]), default=0)
        for index, heading in enumerate(one["head"]):
            least = None if index else min(widest, 30)  # names first: numbers fold more readably
            table.add_column(escape(heading), justify="right" if index else "left", overflow="fold", min_width=least)
        for row in one["rows"]:
            table.add_row(*map(escape, row))
        console.print(table)
    for sentence in found.sentences():
        console.print(escape(sentence), highlight=False)


def write(found: Study, folder: Path, command: str) -> list[Path]:
    """Writes the numbers as JSON, a row a run as CSV, and the report.

    Raises:
        DiskError: the disk refused.
    """
    numbers, rows, report = (folder / name for name in ("comparison.json", "comparison.csv", "report.html"))
    drawn = figures(found.runs, found.outcomes, found.outcome) if found.config.plots else []
    html = page(
        title=f"{', '.join(arm for arm in found.arms if arm != AGAIN)}: {found.outcome.name}",
        sentences=found.sentences(),
        tables=tables(found),
        figures=drawn,
        command=command,
        plan=None if found.plan is None else (found.plan, fingerprint(found.plan)),
    )
    table = io.StringIO()
    writer = csv.writer(table)
    writer.writerow(["arm", "block", "fate", *OUTCOMES])
    for run in found.runs:
        writer.writerow([run.arm, run.block, run.fate, *(found.outcomes[name][run.arm][run.block] for name in OUTCOMES)])
    for path, text in ((report, html), (numbers, json.dumps(summary(found), indent=1) + "\n"), (rows, table.getvalue())):
        write_whole(path, text)
    return [report, numbers, rows]
