"""About a comparison: what its arms are, when and by which code its runs were trained, and its plan."""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from esper.cli.help import as_typed
from esper.lab.arms import AA_CONTROL
from esper.lab.comparison import Comparison
from esper.lab.design import Design
from esper.lab.outcomes import group_of, is_chosen
from esper.lab.runs import UNSHARED, criterion_of
from esper.telemetry.tags import in_terms_of
from esper.text import counted
from esper.training.provenance import FILE, code_version, read

WORDS = {
    "arm": "One of the configs that are compared.",
    "block": "One run of every arm from the same seed, with the same hosts and data. Differences are taken within blocks.",
    "mean, 95 % interval": "Mean of the differences over blocks, with an interval from the sign-flip permutation test.",
    "IQM": "Interquartile mean: the mean of the middle half of the differences, which single extreme runs do not move.",
    "P(first > second)": "Probability that a run of the first arm exceeds a run of the second, whatever their blocks.",
    "p": "Probability of differences at least as large if the arms did not differ, corrected for the looks and the pairs.",
    "p within": "The same for equivalence: probability of differences as small as these if the true difference were the margin.",
    "margin": "The smallest difference that matters, chosen beforehand.",
    "verdict": "Better, equivalent (within the margin) or undecided; withheld where it would mislead, for the reason given.",
    "look": "A number of blocks at which the plan allows a verdict.",
    "A/A control": "The first arm once more, with other policy seeds: it shows how much the same config differs from itself.",
    "collapsed": "A run that is far below the others of its arm and of its block.",
    "kind": "What a host lacks, one letter per part of the host, in forward order: o for an intact part, x for one with a "
    "built-in defect. If the task has events, also whether one of them stays. The controller is not told.",
}
"""Words of a report and their meanings."""


def arms_table(found: Comparison) -> dict[str, Any]:
    """Return a table with one row per arm that says what defines it: its overrides, or that it is a control or a baseline."""
    trained = {run.arm for run in found.runs}
    overrides = found.design.arms if found.design else {}
    rows: list[list[str]] = []
    for arm in found.arms:
        if arm == AA_CONTROL:
            text = f"{found.arms[0]} once more, with other policy seeds"
        elif arm not in trained:
            by = {"return": "return", "validation": "validation accuracy"}[criterion_of(found.config.outcome, found.runs[0])]
            text = f"baseline on the held-out hosts of {found.arms[0]}{f', chosen by {by}' if is_chosen(arm) else ''}"
        else:
            text = " ".join(overrides.get(arm, [])) or ("no overrides" if arm in overrides else "runs without a plan")
        rows.append([arm, text])
    shared = [one for one in found.design.common if not one.startswith("sweep=")] if found.design else []
    common = f". All arms also have {' '.join(shared)}" if shared else ""
    return {"caption": f"Arms and their overrides{common}", "head": ["arm", "overrides"], "rows": rows}


def config_table(found: Comparison) -> dict[str, Any] | None:
    """Return the keys of the config whose values differ between arms, with a column per trained arm; None if there are none."""
    values: dict[str, dict[str, set[str]]] = {}
    arms = list(dict.fromkeys(run.arm for run in found.runs if run.config))
    for run in found.runs:
        for key, value in run.config.items():
            if group_of(key) not in UNSHARED:
                values.setdefault(key, {}).setdefault(run.arm, set()).add(as_typed(value))
    differing = {key: of for key, of in values.items() if len({frozenset(of.get(arm, ())) for arm in arms}) > 1}
    if not differing:
        return None
    rows = [[key, *(", ".join(sorted(of.get(arm, {"-"}))) for arm in arms)] for key, of in differing.items()]
    return {"caption": "Keys of the config that differ between arms", "head": ["key", *arms], "rows": rows}


def facts(found: Comparison) -> list[str]:
    """Return when and by which code the runs were trained and the report was written, as lines of text."""
    records = [record for run in found.runs for record in read(run.folder / FILE)]
    finished = sum(run.finished for run in found.runs)
    lines = [f"{counted(finished, 'finished run')} of {len(found.runs)}, {counted(found.config.hosts, 'held-out host')} each"]
    if started := sorted(str(record["started"])[:10] for record in records if "started" in record):
        span = started[0] if started[0] == started[-1] else f"{started[0]} to {started[-1]}"
        codes = dict.fromkeys(_code(record.get("esper") or {}) for record in records)
        lines.append(f"trained {span} with {', '.join(codes)}")
    return [*lines, f"report of {datetime.now(UTC):%Y-%m-%d %H:%M} UTC by {_code(code_version())}"]


def _code(version: dict[str, Any]) -> str:
    """Return a code version as text: version and commit, or the digest of the source without one."""
    commit = version.get("commit")
    place = f"commit {commit[:9]}" if commit else f"source {str(version.get('source'))[:9]}"
    return f"esper {version.get('version')} ({place}{', changed' if version.get('changed') else ''})"


def plan_text(design: Design, score: str) -> str:
    """Return the plan of an experiment as text."""
    plan = {name: value for name, value in asdict(design.plan).items() if name != "question"}
    plan["outcome"] = in_terms_of(score, str(plan["outcome"]).replace("_", " "))
    lines = [design.plan.question or "", *(f"{name}: {value}" for name, value in plan.items()), "arms:"]
    lines += [f"  {arm}: {' '.join([*design.common, *own])}" for arm, own in design.arms.items()]
    return "\n".join([*lines, f"blocks: {design.blocks} from root {design.root}", f"SHA-256: {design.digest}"]).strip()
