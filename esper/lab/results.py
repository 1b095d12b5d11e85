"""What a study says: as tables and sentences on the console, as a page, and as numbers in JSON and CSV."""

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from esper.checkpoint import write_whole
from esper.cli.transfer import slug
from esper.lab.comparison import Study
from esper.lab.design import AGAIN, fingerprint
from esper.lab.report import draw, page
from esper.lab.runs import OUTCOMES
from esper.stats.intervals import Interval
from esper.stats.paired import Difference
from esper.stats.verdict import Judgement

HEAD = (
    "first - second",
    "n",
    "mean, 95 % interval",
    "IQM, 95 % interval",
    "P(first > second)",
    "p",
    "p by ranks",
    "p within",
    "verdict",
)
"""Of a table of differences. p and p within are corrected for the number of pairs."""


def tables(found: Study) -> list[dict[str, Any]]:
    """Arms, and differences in each outcome, as rows of text; each table with `caption`, `head` and `rows`.

    The outcome that decides comes right after the means; those in which nothing was measured are left out.
    """
    counts = {arm: sum(map(math.isfinite, cells.values())) for arm, cells in found.outcomes[found.outcome.name].items()}
    means = [[arm, str(counts[arm]), *(_mean(cells[arm]) for cells in found.outcomes.values())] for arm in found.arms]
    units = [f"{name.replace('_', chr(10))}\n[{OUTCOMES[name].unit}]" for name in found.outcomes]  # narrow: there are many
    shown = [{"caption": "Means over blocks", "head": ["arm", "blocks", *units], "rows": means}]
    for name in sorted(found.comparisons, key=found.outcome.name.__ne__):
        outcome, told = OUTCOMES[name], found.comparisons[name].judgements
        rows = [
            [*_cells(one.difference), *_judged(one)] for one in told if one.difference.count >= 2 or name == found.outcome.name
        ]
        if control := found.controls.get(name):
            rows.append(
                [*_cells(control), f"{control.p:.3g}", f"{control.p_rank:.3g}", f"{control.p_equivalence:.3g}", "control"]
            )
        if rows:
            caption = f"Differences in {name} [{outcome.unit}]: {outcome.what}"
            shown.append({"caption": caption, "head": list(HEAD), "rows": rows})
    return shown


def _mean(cells: Mapping[int, float]) -> str:
    finite = [value for value in cells.values() if np.isfinite(value)]
    return f"{np.mean(finite):,.4g}" if finite else ""


def _cells(apart: Difference) -> list[str]:
    count = str(apart.count) if apart.paired else f"{apart.count}, unpaired"
    return [f"{apart.first} - {apart.second}", count, _between(apart.mean), _between(apart.iqm), f"{apart.improvement.mean:.2f}"]


def _between(interval: Interval) -> str:
    if not math.isfinite(interval.mean):
        return ""
    least = 2 if abs(interval.mean) < 1000 else 0
    known = math.isfinite(interval.half_width)
    ends = f"{interval.low:,.{least}f} to {interval.high:,.{least}f}" if known else "unbounded"
    return f"{interval.mean:,.{least}f}, {ends}"


def _judged(one: Judgement) -> list[str]:
    return [f"{one.p_holm:.3g}", f"{one.difference.p_rank:.3g}", f"{one.p_equivalence_holm:.3g}", one.verdict.value]


def show(found: Study, console: Console) -> None:
    """Arms, differences in the outcome that decides, and sentences."""
    for one in tables(found)[:2]:
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


def summary(found: Study) -> dict[str, Any]:
    """All numbers, as plain values; None where there is none."""
    return _finite(
        {
            "sentences": found.sentences(),
            "plan": None if found.plan is None else {"sha256": fingerprint(found.plan), "text": found.plan},
            "config": asdict(found.config),
            "world": found.world,
            "faults": found.faults,
            "runs": [
                {
                    "arm": run.arm,
                    "block": run.block,
                    "setting": run.stratum,
                    "folder": str(run.folder),
                    "seed": run.seed,
                    "fate": run.fate,
                }
                for run in found.runs
            ],
            "outcomes": found.outcomes,
            "differences": {
                name: [
                    asdict(one.difference)
                    | {
                        "p_holm": one.p_holm,
                        "p_equivalence_holm": one.p_equivalence_holm,
                        "needed": one.needed,
                        "verdict": one.verdict.value,
                    }
                    for one in comparison.judgements
                ]
                for name, comparison in found.comparisons.items()
            },
            "controls": {name: asdict(control) for name, control in found.controls.items()},
            "missing": {name: comparison.missing for name, comparison in found.comparisons.items()},
        }
    )


def _finite(plain: Any) -> Any:
    """The same with None for NaN and infinity, which JSON does not have."""
    if isinstance(plain, Mapping):
        return {key: _finite(value) for key, value in plain.items()}
    if isinstance(plain, list | tuple):
        return [_finite(value) for value in plain]
    return None if isinstance(plain, float) and not math.isfinite(plain) else plain


def _cells_csv(found: Study) -> str:
    """A row for each arm, rivals among them, and block."""
    fates = {(run.arm, run.block): run.fate for run in found.runs}
    cells = [(arm, block) for arm in found.arms for block in found.outcomes[found.outcome.name][arm]]
    rows = [
        [arm, block, fates.get((arm, block), ""), *(found.outcomes[name][arm][block] for name in OUTCOMES)]
        for arm, block in cells
    ]
    return _csv([["arm", "block", "fate", *OUTCOMES], *rows])


def _differences_csv(found: Study) -> str:
    """A row for each outcome and pair of arms; controls among them."""
    head = ("outcome", "first", "second", "paired", "blocks", "mean", "low", "high", "iqm", "iqm_low", "iqm_high", "ahead", "p")
    rows: list[Sequence[object]] = [[*head, "p_rank", "p_equivalence", "p_holm", "p_equivalence_holm", "needed", "verdict"]]
    for name, comparison in found.comparisons.items():
        for one in comparison.judgements:
            corrected = [one.p_holm, one.p_equivalence_holm, one.needed, one.verdict.value]
            rows.append([name, *_numbers(one.difference), *corrected])
        if control := found.controls.get(name):
            rows.append([name, *_numbers(control), *4 * [""]])
    return _csv(rows)


def _numbers(apart: Difference) -> list[object]:
    mean, iqm = ([interval.mean, interval.low, interval.high] for interval in (apart.mean, apart.iqm))
    tests = [apart.improvement.mean, apart.p, apart.p_rank, apart.p_equivalence]
    return [apart.first, apart.second, apart.paired, apart.count, *mean, *iqm, *tests]


def _csv(rows: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue()


def write(found: Study, folder: Path, command: str) -> list[Path]:
    """Writes the report, the numbers as JSON, as CSV a row a run and a row a difference, and each figure where wanted.

    Raises:
        DiskError: the disk refused.
    """
    drawings = draw(found.runs, found.outcomes, found.outcome) if found.config.plots else []
    html = page(
        title=f"{', '.join(arm for arm in found.arms if arm != AGAIN)}: {' '.join([found.outcome.name, *found.world])}",
        sentences=found.sentences(),
        tables=tables(found),
        drawings=drawings,
        command=command,
        plan=None if found.plan is None else (found.plan, fingerprint(found.plan)),
    )
    files: dict[str, str | bytes] = {
        "report.html": html,
        "comparison.json": json.dumps(summary(found), indent=1, allow_nan=False) + "\n",
        "comparison.csv": _cells_csv(found),
        "differences.csv": _differences_csv(found),
    }
    if kind := found.config.figures:
        files |= {f"{drawing.name}.{kind}": drawing.image(kind) for drawing in drawings}
    paths = {folder / _moved(name, found): content for name, content in files.items()}
    for path, content in paths.items():
        write_whole(path, content)
    return list(paths)


def _moved(name: str, found: Study) -> str:
    """The name of a file, and where policies were moved also that of their world: the report of where they were trained stays."""
    stem, _, kind = name.partition(".")
    return f"{stem}_{slug(found.world)}.{kind}" if found.world else name
