"""Report of a comparison: verdicts and tables on the console, as one HTML page, and as numbers in JSON and CSV."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import jinja2
import pandas as pd
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from esper.cli.transfer import slug
from esper.evaluation.forest import Row, forest
from esper.evaluation.outcomes import ONLINE
from esper.files import write_whole
from esper.lab.about import WORDS, arms_table, config_table, facts, plan_text
from esper.lab.arms import AA_CONTROL
from esper.lab.comparison import Comparison
from esper.lab.costs import PARTS
from esper.lab.design import command_of
from esper.lab.figures import Drawing, draw, page_links
from esper.lab.outcomes import OUTCOMES
from esper.lab.tables import blocks_of, grown, latex, p_values, spreads, tested, varies
from esper.telemetry.seed_table import HEAD as HEADS
from esper.telemetry.seed_table import LEGEND, TITLE, rows_of
from esper.telemetry.tags import in_terms_of
from esper.text import counted, decimals, number, si

HEAD = (
    "first - second",
    "blocks",
    "mean, 95 % interval",
    "IQM, 95 % interval",
    "P(first > second), unpaired",
    "p",
    "p within",
    "verdict",
)
"""Columns of the tables of differences. p and p within are Holm-corrected."""
CORRECTED, UNCORRECTED = ("p_holm", "p_equivalence_holm"), ("p", "p_equivalence")
"""Columns of p values, corrected for looks and pairs or not. They are empty where nothing was tested."""
WARNING = "warning: "
MEANS = "Means over all measured blocks, collapsed runs included"
"""Caption of the means."""
PAGE = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)


def differences(found: Comparison) -> pd.DataFrame:
    """Return one row per outcome and pair of arms, the columns of differences.csv; the verdict of an A/A control is `control`."""
    rows: list[dict[str, Any]] = []
    for name, results in found.results.items():
        if name != found.outcome.name and not found.values(name).notna().any(axis=None):
            continue  # measured nowhere
        for result in results:
            plain = asdict(result)
            del plain["unit"]
            plain |= {"looks": " ".join(map(str, result.looks)), "warnings": "; ".join(result.warnings)}
            first, second = plain.pop("collapses")
            plain |= {"collapsed_first": first["collapsed"], "collapsed_second": second["collapsed"]}
            after = 0 if result.look is None else found.outcomes["block"].nunique() - result.look
            rows.append(
                {"outcome": name, **plain.pop("difference"), "after_look": after, **plain, "verdict": result.verdict.value}
            )
        if control := found.controls.get(name):
            rows.append({"outcome": name, **asdict(control.difference), "after_look": 0, "verdict": "control"})
    flat = pd.json_normalize(rows, sep="_").rename(columns=lambda name: name.removeprefix("mean_").removesuffix("_mean"))
    if not rows:
        return pd.DataFrame(columns=["outcome", "blocks"])
    for row in cast(list[Any], list(flat.itertuples())):
        unknown = [*(() if tested(row) else CORRECTED), *(() if varies(row) else UNCORRECTED)]
        flat.loc[row.Index, [name for name in unknown if name in flat]] = float("nan")
    counts = ("needed", "look", "collapsed_first", "collapsed_second")  # which an A/A control lacks
    return flat.astype({name: "Int64" for name in counts if name in flat})


def tables(found: Comparison) -> list[dict[str, Any]]:
    """Return the means and the costs of all arms, and the differences in each outcome, as rows of text with `caption` and `head`.

    The primary outcome comes first; outcomes that were not measured are left out.
    """
    decisive = found.outcome.name
    counts = found.values(decisive).count()
    measured = {name: spec for name, spec in OUTCOMES.items() if name != ONLINE or name == decisive}
    means: list[Any] = [found.values(name).mean() for name in measured]
    rows = [[arm, str(counts[arm]), *(_number(mean[arm]) for mean in means)] for arm in found.arms]
    heads = {name: in_terms_of(found.score, spec.label).replace(" ", "\n") for name, spec in measured.items()}
    units = [f"{heads[name]}{in_brackets(spec.unit, chr(10))}" for name, spec in measured.items()]
    shown = [{"caption": MEANS, "head": ["arm", "blocks", *units], "rows": rows}, _costs(found), *_seeds(found)]
    pairs = differences(found)
    for name in sorted(measured, key=decisive.__ne__):
        chosen = pairs[(pairs["outcome"] == name) & ((pairs["blocks"] >= 2) | (name == decisive))]
        if len(chosen):
            kind = ", exploratory" if found.deviations or name != decisive else ""
            spec = OUTCOMES[name]
            caption = f"Differences in {spec.label}{in_brackets(spec.difference)}{kind}: {spec.description}"
            caption = in_terms_of(found.score, caption)
            shown.append({"caption": caption, "head": list(HEAD), "rows": [_cells(row) for row in chosen.itertuples()]})
    return shown


def _costs(found: Comparison) -> dict[str, Any]:
    """Return the costs of all arms as rows of text."""
    means: Any = found.costs.groupby("arm").mean()
    arms = [arm for arm in found.arms if arm in means.index]
    scale = dict.fromkeys((*PARTS, "total", "host"), 1e9) | {"seconds": 1.0}
    return {
        "caption": "Costs of a run, mean over blocks; column host: growing one held-out host",
        "head": ["arm", *(f"{name}\n[{'s' if name == 'seconds' else 'GFLOP'}]" for name in scale)],
        "rows": [[arm, *(_number(means.loc[arm, name] / unit) for name, unit in scale.items())] for arm in arms],
    }


def _seeds(found: Comparison) -> list[dict[str, Any]]:
    """Return the table of seeds of all arms; none where nothing was planted, or seeds were not recorded."""
    rows = [[arm, *row] for arm, stats in grown(found.hosts, found.seeds).items() for row in rows_of(stats, empty=False)]
    caption = f"{TITLE}. {LEGEND}"
    return [{"caption": caption, "kind": "seeds", "head": ["arm", *HEADS], "rows": rows}] if rows else []


def in_brackets(unit: str, before: str = " ") -> str:
    """Return a unit in brackets, after a space or a line break; nothing for a count, which has no unit."""
    return "" if unit == "1" else f"{before}[{unit}]"


def _number(value: float) -> str:
    return "" if not math.isfinite(value) else si(value, 4) if abs(value) >= 1e6 else number(value)


def _cells(row: Any) -> list[str]:
    """Return the cells of one difference."""
    return [
        f"{row.first} - {row.second}",
        blocks_of(row),
        _interval(row.mean, *(row.low, row.high) if spreads(row) else (row.mean, row.mean)),
        _interval(row.iqm, *(row.iqm_low, row.iqm_high) if row.spread else (row.iqm, row.iqm)),
        f"{row.improvement:.2f}" if tested(row) else "",
        *p_values(row),
        row.verdict,
    ]


def _interval(mean: float, low: float, high: float) -> str:
    if not math.isfinite(mean):
        return NO_MEAN
    digits = decimals(mean, low, high)
    if math.isclose(low, high, rel_tol=1e-9, abs_tol=1e-12):
        return f"{_fixed(mean, digits)}, no spread"
    ends = f"{_fixed(low, digits)} to {_fixed(high, digits)}" if math.isfinite(high - low) else NO_INTERVAL
    return f"{_fixed(mean, digits)}, {ends}"


def _fixed(value: float, digits: int) -> str:
    """Return a number with some decimals, and no sign if that leaves 0."""
    return f"{round(value, digits) + 0.0:,.{digits}f}"


NO_MEAN, NO_INTERVAL = "too few blocks", "too few blocks for an interval"
"""Cells of a difference with fewer than two blocks, and with too few for an interval."""
NARROW = 70
"""Columns below which a console shows rows as paragraphs."""
COMPACT = ("accuracy", "return", "parameters", "training_flops")
"""Outcomes whose means the console shows beside that of the primary one; report.html has all."""


def show(found: Comparison, console: Console, said: Sequence[str] = ()) -> None:
    """Print the sentences, the differences in the primary outcome, and the means of a few outcomes; 80 columns suffice.

    Args:
        found: comparison.
        console: where to print.
        said: lines that were printed before; sentences among them are counted instead of repeated.
    """
    before = {in_terms_of(found.score, line) for line in said}
    sentences = [sentence for sentence in found.sentences if sentence not in before]
    if repeated := len(found.sentences) - len(sentences):
        sentences.append(f"read this with the {counted(repeated, 'warning')} above the scores")
    for sentence in sentences:
        console.print(escape(sentence), highlight=False, soft_wrap="python -m" in sentence)
    decisive, pairs = found.outcome, differences(found)
    chosen = pairs[pairs["outcome"] == decisive.name]
    where = f"{decisive.label}{in_brackets(decisive.difference)}"
    caption = f"Differences in {where}, mean with 95 % interval; p: of a test of no difference; "
    caption += "p within: of a test that the difference is at least the margin"
    head = ["first - second", "blocks", "difference", "p", "p within", "verdict"]
    listed: list[Any] = list(chosen.itertuples())
    cells = [_cells(row) for row in listed]
    total = found.outcomes["block"].nunique()
    counts = [f"{row.blocks} ({row.collapsed} collapsed)" if row.collapsed else f"{row.blocks} of {total}" for row in listed]
    short = [
        [pair, blocks, mean.replace(NO_INTERVAL, "no interval"), p, within, verdict]
        for blocks, (pair, _, mean, _, _, p, within, verdict) in zip(counts, cells, strict=True)
    ]
    if found.deviations:  # no pair has a verdict, as the sentences say
        head, short = head[:-1], [row[:-1] for row in short]
    _print(console, in_terms_of(found.score, caption), head, short)
    every: dict[str, Any] = {name: found.values(name).mean() for name in dict.fromkeys([decisive.name, *COMPACT])}
    measured = {name: mean for name, mean in every.items() if mean.notna().any()}
    heads = [in_terms_of(found.score, f"{OUTCOMES[name].label}{in_brackets(OUTCOMES[name].unit, chr(10))}") for name in measured]
    counts = found.values(decisive.name).count()
    rows = [[arm, str(counts[arm]), *(_number(mean[arm]) for mean in measured.values())] for arm in found.arms]
    _print(console, MEANS, ["arm", "blocks", *heads], rows)


def _print(console: Console, caption: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table without borders. Names and verdicts are folded where they are wider than the console, and numbers are not; on
    a narrow console, each row is a paragraph."""
    if console.width < NARROW:
        console.print(f"\n{escape(caption)}", style="italic", highlight=False)
        for name, *cells in rows:
            found = [f"{' '.join(heading.split())}: {cell}" for heading, cell in zip(head[1:], cells, strict=True) if cell]
            console.print(escape("\n  ".join([name, *found])), highlight=False)
        return
    table = Table(box=None, padding=(0, 2, 0, 0))
    for index, heading in enumerate(head):
        numbers = index > 0 and heading not in ("blocks", "verdict")
        table.add_column(escape(heading), justify="right" if index else "left", overflow="fold", no_wrap=numbers)
    for row in rows:
        table.add_row(*map(escape, row))
    console.print()
    console.print(escape(caption), style="italic", highlight=False)
    console.print(table)


def summary(found: Comparison) -> dict[str, Any]:
    """Return all numbers as plain values; None for NaN and infinity, which JSON lacks."""
    return {
        "sentences": found.sentences,
        "plan": None if found.design is None else {"sha256": found.design.digest, **asdict(found.design)},
        "exploratory": bool(found.deviations),
        "deviations": found.deviations,
        "config": asdict(found.config),
        "overrides": list(found.overrides),
        "warnings": [line.removeprefix(WARNING) for line in found.sentences if line.startswith(WARNING)],
        "runs": [
            {name: getattr(run, name) for name in ("arm", "block", "stratum", "seed", "status")} | {"folder": str(run.folder)}
            for run in found.runs
        ],
        "outcomes": _records(found.outcomes),
        "differences": _records(differences(found)),
        "costs": _records(found.costs),
    }


def _records(table: pd.DataFrame) -> list[dict[str, Any]]:
    missing = table.isna() | table.isin([math.inf, -math.inf])
    return table.astype(object).mask(missing, None).to_dict("records")


def _runs_csv(found: Comparison) -> str:
    """Return one row per run, of trained arms and of baselines, with a column per outcome."""
    status = {(run.arm, run.block): run.status for run in found.runs}
    cells = found.outcomes.pivot(index=["arm", "controller", "block", "stratum"], columns="outcome", values="value")
    table = cells[list(OUTCOMES)].reset_index()
    table.insert(4, "status", [status.get(cell, "") for cell in zip(table["arm"], table["block"], strict=True)])
    return table.to_csv(index=False)


def write(found: Comparison, folder: Path, command: str) -> list[Path]:
    """Write the report, its numbers as JSON, CSV and LaTeX, and the figures if asked for.

    Raises:
        DiskError: a file cannot be written.
    """
    links, pairs = page_links(found.runs, folder), differences(found)
    drawings = draw(found.runs, found.outcomes, found.outcome, found.score, found.floor, links)
    files: dict[str, str | bytes] = {
        "report.html": _page(found, drawings, command),
        "comparison.json": json.dumps(summary(found), indent=1, allow_nan=False) + "\n",
        "comparison.csv": _runs_csv(found),
        "differences.csv": pairs.to_csv(index=False),
        "differences.tex": latex(pairs),
        "hosts.csv": found.hosts.to_csv(index=False),
        "seeds.csv": found.seeds.to_csv(index=False),
    }
    if kind := found.config.figures:
        files |= {f"{drawing.name}.{kind}": drawing.image(kind) for drawing in drawings}
    paths = {folder / _file_name(name, found.unplanned): content for name, content in files.items()}
    for path, content in paths.items():
        write_whole(path, content)
    return list(paths)


def _page(found: Comparison, drawings: Sequence[Drawing], command: str) -> str:
    """Return the report as HTML, with the figures inside."""
    outcome, sentences = in_terms_of(found.score, found.outcome.label), found.sentences
    count = 1 if found.deviations else max(1, len(found.results[found.config.outcome]))  # without results, a sentence says so
    page = PAGE.from_string((Path(__file__).parent / "report.html").read_text(encoding="utf-8"))
    return page.render(
        title=f"{', '.join(arm for arm in found.arms if arm != AA_CONTROL)}: {' '.join([outcome, *found.overrides])}",
        verdicts=sentences[:count],
        remarks=sentences[count:],
        forest=_forest(found),
        forest_caption=f"Paired differences in {outcome} over blocks: mean with 95 % interval, where there are enough blocks.",
        facts=facts(found),
        arms=arms_table(found),
        config=config_table(found),
        words=WORDS.items(),
        tables=tables(found),
        figures=[{"image": one.inline(), "caption": one.caption} for one in drawings],
        command=command,
        experiment=command_of(found.design, found.folders[0]) if found.design else None,
        plan=None if found.design is None else plan_text(found.design, found.score),
    )


def _forest(found: Comparison) -> str | None:
    """Return the figure of the differences in the primary outcome; None if none was measured."""
    pairs, spec = differences(found), found.outcome
    chosen: Any = pairs[(pairs["outcome"] == spec.name) & (pairs["blocks"] >= 1)]
    rows = [
        Row(f"{row.first} - {row.second}", row.mean, row.low, row.high, row.verdict)
        for row in chosen.itertuples()
        if math.isfinite(row.mean)
    ]
    margin = found.results[spec.name][0].margin if found.results[spec.name] else None
    axis = f"{in_terms_of(found.score, spec.label)}, first minus second{in_brackets(spec.difference)}"
    return forest(rows, axis, margin) if rows else None


def _file_name(name: str, changes: Sequence[str]) -> str:
    """Return the name of a file, with evaluation overrides and another outcome than the planned one, if any, so that it does not
    replace the report that was planned."""
    stem, _, kind = name.partition(".")
    return f"{stem}_{slug(changes)}.{kind}" if changes else name
