"""Compares the arms of an experiment by what they reached, whatever they were paid: python -m esper.compare FOLDER...

FOLDER is that of an experiment (sweep=ab), or one with runs in it; then runs that differ in something other than their seed are
arms, and runs with one seed are a block. Every policy grows fresh hosts, once, and what they reach is kept beside it. Shows the
verdicts, and writes comparison.json, comparison.csv and report.html into the first folder.
"""

import csv
import json
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from esper.cli import in_one_sentence
from esper.config import ConfigError, did_you_mean, register
from esper.knobs import field_docs
from esper.runs import AGAIN, OUTCOMES, Outcome, Run, faults, find_runs, judge
from esper.stats.experiment import Comparison, compare
from esper.stats.paired import Difference
from esper.stats.verdict import LEAST_BLOCKS


@dataclass(kw_only=True, slots=True)
class CompareConfig:
    """What is compared, and how."""

    outcome: str = "accuracy"
    """By which outcome the verdict is given, decided before the experiment is run. The others are shown beside it."""
    margin: float | None = None
    """Smallest difference in it that matters, above 0; null takes the outcome's own. Larger finds arms equivalent sooner."""
    hosts: int = 96
    """Fresh hosts that each policy grows, 2 or more. More: less noise of hosts in the outcome of a run, and longer."""
    alpha: float = 0.05
    """Chance of a wrong claim among all pairs of arms, in (0, 0.5)."""
    plots: bool = True
    """Draw the report's figures? They need matplotlib."""

    def __post_init__(self) -> None:
        if self.outcome not in OUTCOMES:
            hint = did_you_mean(self.outcome, list(OUTCOMES))
            raise ValueError(f"there is no outcome {self.outcome}: choose out of {', '.join(OUTCOMES)}{hint}")
        if self.margin is not None and not 0 < self.margin < float("inf"):
            raise ValueError(f"margin must be above 0, got {self.margin}: it is the smallest difference that matters")
        if self.hosts < 2:
            raise ValueError(f"hosts must be 2 or more, got {self.hosts}: 96 is a good start")
        if not 0 < self.alpha < 0.5:
            raise ValueError(f"alpha must be in (0, 0.5), got {self.alpha}: 0.05 is usual")


def parse(words: list[str]) -> tuple[list[Path], CompareConfig]:
    """Folders and config from words; a word with = in it that names no folder is a key.

    Raises:
        ConfigError: they do not say what to compare.
    """
    folders = [Path(word) for word in words if "=" not in word or Path(word).is_dir()]
    settings = [word for word in words if "=" in word and not Path(word).is_dir()]
    names = list(CompareConfig.__dataclass_fields__)
    for word in settings:
        key = word.partition("=")[0]
        if key not in names:
            raise ConfigError(f"there is no key {key}: choose out of {', '.join(names)}{did_you_mean(key, names)}")
    if not folders:
        raise ConfigError("there is no folder to look into: python -m esper.compare multirun/ab/...")
    try:
        given = OmegaConf.merge(OmegaConf.structured(CompareConfig), OmegaConf.from_dotlist(settings))
        config = OmegaConf.to_object(given)
    except (OmegaConfBaseException, ValueError) as error:
        raise ConfigError(" ".join(str(error).split("\n")[:1])) from error
    assert isinstance(config, CompareConfig)
    return folders, config


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
    finished = [run for run in runs if run.finished]
    arms = sorted(dict.fromkeys(run.arm for run in runs), key=AGAIN.__eq__)
    outcomes = {name: {arm: {run.block: float("nan") for run in runs if run.arm == arm} for arm in arms} for name in OUTCOMES}
    for index, run in enumerate(finished):
        tell(f"judging {index + 1} of {len(finished)}: {run.folder}")
        for name, value in judge(run, config.hosts).items():
            outcomes[name][run.arm][run.block] = value
    comparisons: dict[str, Comparison] = {}
    controls: dict[str, Difference] = {}
    for name, outcome in OUTCOMES.items():
        margin = config.margin if name == config.outcome and config.margin is not None else outcome.margin
        table = {arm: cells for arm, cells in outcomes[name].items() if np.isfinite(list(cells.values())).any()}
        plain = {arm: cells for arm, cells in table.items() if arm != AGAIN}
        comparisons[name] = compare(plain, margin=margin, higher_is_better=outcome.higher_is_better, alpha=config.alpha)
        if AGAIN in table and arms[0] in table:
            pair = compare({arm: table[arm] for arm in (arms[0], AGAIN)}, margin=margin, alpha=config.alpha).judgements
            controls.update((name, told.difference) for told in pair)
    return Study(
        config=config,
        runs=runs,
        outcomes=outcomes,
        comparisons=comparisons,
        controls=controls,
        faults=[*faults(finished), *_differs_from_itself(controls.get(config.outcome))],
    )


def _differs_from_itself(control: Difference | None) -> list[str]:
    """Why the repeated arm says that the experiment is void."""
    if control is None or control.count < LEAST_BLOCKS or control.mean.low <= 0 <= control.mean.high:
        return []
    return [f"{control.first} differs from its own repetition by {control.mean.low:.2g} to {control.mean.high:.2g}"]


def summary(found: Study) -> dict[str, Any]:
    """All numbers, as plain values."""
    return {
        "sentences": found.sentences(),
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


def show(found: Study, console: Console) -> None:
    """Arms, differences and sentences."""
    arms = Table(title="means over blocks", title_justify="left")
    arms.add_column("arm")
    arms.add_column("blocks", justify="right")
    for name, outcome in OUTCOMES.items():
        arms.add_column(f"{name} [{outcome.unit}]", justify="right")
    for arm in found.arms:
        values = {name: [value for value in found.outcomes[name][arm].values() if np.isfinite(value)] for name in OUTCOMES}
        cells = [f"{np.mean(row):.4g}" if row else "" for row in values.values()]
        arms.add_row(escape(arm), str(len(values["learning"])), *cells)
    console.print(arms)
    title = f"differences in {found.config.outcome}: {found.outcome.what} [{found.outcome.unit}]"
    pairs = Table(title=title, title_justify="left")
    for heading in (
        "first - second",
        "blocks",
        "mean",
        "95 % interval",
        "IQM",
        "P(first ahead)",
        "p, Holm",
        "p within margin",
        "verdict",
    ):
        pairs.add_column(heading, justify="left" if heading in ("first - second", "verdict") else "right")
    for told in found.comparisons[found.config.outcome].judgements:
        pairs.add_row(*_cells(told.difference), f"{told.p_holm:.3g}", f"{told.p_equivalence_holm:.3g}", told.verdict)
    if control := found.controls.get(found.config.outcome):
        pairs.add_row(*_cells(control), f"{control.p:.3g}", f"{control.p_equivalence:.3g}", "control")
    console.print(pairs)
    for sentence in found.sentences():
        console.print(escape(sentence), highlight=False)


def _cells(apart: Difference) -> list[str]:
    blocks = str(apart.count) if apart.paired else f"{apart.count}, unpaired"
    between = f"{apart.mean.low:.2f} to {apart.mean.high:.2f}"
    pair = escape(f"{apart.first} - {apart.second}")
    return [pair, blocks, f"{apart.mean.mean:.2f}", between, f"{apart.iqm.mean:.2f}", f"{apart.improvement.mean:.2f}"]


def write(found: Study, folder: Path) -> list[Path]:
    """Writes the numbers as JSON, and a row a run as CSV."""
    numbers, rows = folder / "comparison.json", folder / "comparison.csv"
    numbers.write_text(json.dumps(summary(found), indent=1) + "\n")
    with rows.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["arm", "block", "fate", *OUTCOMES])
        for run in found.runs:
            writer.writerow([run.arm, run.block, run.fate, *(found.outcomes[name][run.arm][run.block] for name in OUTCOMES)])
    return [numbers, rows]


def help_text() -> str:
    """The page of --help."""
    lines = [(__doc__ or "").strip(), ""]
    default = CompareConfig()
    for name, doc in field_docs(CompareConfig).items():
        value = getattr(default, name)
        shown = "null" if value is None else str(value).lower() if isinstance(value, bool) else value
        lines += textwrap.wrap(f"{name}={shown}", 118, initial_indent="  ", subsequent_indent="  ")
        lines += textwrap.wrap(doc, 118, initial_indent="      ", subsequent_indent="      ")
    outcomes = [f"{outcome.name} [{outcome.unit}]: {outcome.what}; margin {outcome.margin:g}" for outcome in OUTCOMES.values()]
    return "\n".join([*lines, "", "outcomes:", *(f"  {line}" for line in outcomes)])


def main(words: list[str]) -> None:
    """Compares, shows, and writes."""
    if any(word in ("-h", "--help") for word in words):
        print(help_text())
        return
    register()
    with in_one_sentence():
        folders, config = parse(words)
        found = study(folders, config, tell=lambda line: print(line, flush=True))
        show(found, Console())
        for path in write(found, folders[0]):
            print(f"numbers: {path}")


if __name__ == "__main__":
    main(sys.argv[1:])
