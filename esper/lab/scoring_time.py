"""How long `esper.compare` will take to score the policies of an experiment, told beside the time of their training."""

from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from esper.lab.design import Design
from esper.telemetry.jsonl import read_records
from esper.telemetry.text import duration

GROWN = 2
"""How often a policy grows its held-out hosts: with sampled and with its most probable actions."""
BUILDING = 1.0
"""Time of building the held-out hosts of a run [s], by which small runs are slower to score than to train."""


def scoring_share(found: Design, settings: Mapping[str, Any]) -> float:
    """Return the time of scoring a policy over that of its training: the ratio of held-out to training hosts grown.

    Args:
        found: the experiment.
        settings: config of the runs, of which `updates` and `hosts` are read.
    """
    return GROWN * found.plan.score_hosts / (int(settings["updates"]) * int(settings["hosts"]))


def before(found: Design, settings: Mapping[str, Any]) -> str:
    """Return the line about scoring that is printed before the first run."""
    share = scoring_share(found, settings)
    time = f"{share:.1f} times as long as training them" if share >= 1 else f"{100 * share:.0f} % of the time of their training"
    more = ", if hosts of score_overrides take as long as those of the training" if found.plan.score_overrides else ""
    more += "; baselines come on top" if found.plan.baselines else ""
    return (
        f"afterwards, esper.compare scores {len(found.arms) * found.blocks} policies on {found.plan.score_hosts} held-out hosts "
        f"each, which takes about {time}{more}"
    )


def after(found: Design, settings: Mapping[str, Any], folder: Path) -> str:
    """Return the line about scoring that is printed after the last run."""
    # The median, as the first update of a process is slower.
    paths = [path for cell in found.cells if (path := folder / cell.folder / "times.jsonl").exists()]
    speeds = [[record["time/host_epochs_per_second"] for record in read_records(path)] for path in paths]
    host_epochs = GROWN * found.plan.score_hosts * int(settings["steps"])
    grown = sum(BUILDING + host_epochs / median(of_run) for of_run in speeds if of_run)
    time = f"about {duration(grown)}" if grown else "a while"
    return f"it first scores the policies, once, which takes {time}; workers=N scores N at a time"
