"""The model card of a policy: what it is, where it was trained, what it is worth, and how to use it."""

from collections.abc import Mapping
from typing import Any

from esper.config import GROUPS, MANY, Config
from esper.evaluation.presentation import OUTCOME_NAMES, SPOKEN, verdict
from esper.stats.intervals import Interval
from esper.telemetry.tags import in_terms_of
from esper.text import counted

NAMES = SPOKEN | {"policy_greedy": "the policy, most probable actions"}
"""Names of controllers in the table."""
UNKNOWN = "It was not evaluated: run `python -m esper.evaluate` on its run, and save it again with `overwrite=True`."
USE = """
```bash
python -m esper.evaluate checkpoint=FOLDER            # on held-out hosts
python -m esper.evaluate checkpoint=FOLDER task=...   # on another task, with the same blueprints
python -m esper.export checkpoint=FOLDER host=0       # a network that it grows
```

In Python, `esper.load_policy(FOLDER)`. `config.yaml` is the configuration of its training, `observation.json` what it sees and
decides. The folder lacks the state of the optimiser, so training cannot continue from it.
"""


def model_card(
    config: Config, updates: int, evaluation: Mapping[str, Any] | None, *, name: str, note: str, run: Mapping[str, Any]
) -> str:
    """Return the model card as Markdown.

    Args:
        config: config of the run.
        updates: updates of the policy.
        evaluation: an evaluation of it, if there is one.
        name: title.
        note: text for the beginning.
        run: first record of `run.json`, empty if unknown.
    """
    code = run.get("esper", {}).get("version")
    trained = f", with Esper {code} in {run.get('started', '')[:7]}" if code else ""
    lines = [
        f"# {name}",
        "",
        *([note, ""] if note else []),
        f"A policy of `agent={config.choice('agent')}`, which decides when, where and with what a network grows while it trains.",
        f"It was trained for {counted(updates, 'update')} of {config.hosts} hosts x {config.steps} epochs on "
        f"`task={config.choice('task')}` with `slots={config.choice('slots')}`,",
        f"`reward={config.choice('reward')}`, blueprints {', '.join(config.blueprint)}, and `seed={config.seed}`{trained}.",
        "",
        *(_results(evaluation, config.task.build_objective().score) if evaluation else [UNKNOWN]),
        *needs(config),
    ]
    return "\n".join(lines) + "\n" + USE


def needs(config: Config) -> list[str]:
    """Return what must be installed besides Esper: the modules of parts from outside."""
    parts = [getattr(config, group) for group in GROUPS if group not in MANY]
    parts += [part for group in MANY for part in getattr(config, group).values()]
    modules = {type(part).__module__.partition(".")[0] for part in parts} - {"esper"}
    return ["", f"It needs parts from outside Esper: {', '.join(sorted(modules))}."] if modules else []


def _results(evaluation: Mapping[str, Any], score: str) -> list[str]:
    """Return the verdict and the table of an evaluation."""
    rows = evaluation["rows"]
    headline = evaluation.get("headline", "accuracy")
    sentence = verdict(rows, score=score, headline=headline)
    table = [f"| controller | return | {in_terms_of(score, OUTCOME_NAMES[headline])} [%] |", "|---|---|---|"]
    for row in sorted(rows, key=lambda row: -row["return"]["mean"]):
        values = [Interval(**row[key]) for key in ("return", headline)]
        cells = " | ".join(map(str, values))
        table.append(f"| {NAMES.get(row['controller'], row['controller'])} | {cells} |")
    hosts = evaluation["settings"]["hosts"]
    about = (
        f"On {hosts} held-out hosts, with 95 % intervals over hosts of this one training run; other training runs differ by more:"
    )
    return [f"{sentence[0].upper()}{sentence[1:]}.", "", about, "", *table]
