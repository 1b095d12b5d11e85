"""How long `esper.compare` will take to score the policies of an experiment, told beside the time of their training."""

from pathlib import Path
from statistics import median

from esper.cli.transfer import fitted
from esper.config import Config
from esper.lab.design import Design
from esper.telemetry.jsonl import read_records
from esper.text import duration

BUILDING = 1.0
"""Time of building the held-out hosts of a run [s], by which small runs are slower to score than to train."""


def host_epochs(found: Design, config: Config) -> int:
    """Return the number of host epochs in which a policy is scored: with sampled actions and, if its agent samples, with its most
    probable ones.

    Args:
        found: the experiment.
        config: config of a run of its arm.
    """
    scored = fitted(config, found.plan.score_overrides) if found.plan.score_overrides else config
    return (2 if config.agent.greedy else 1) * found.plan.score_hosts * scored.steps


def scoring_share(found: Design) -> float:
    """Return the time of scoring the policies of an experiment over that of their training: the ratio of host epochs."""
    configs = [cell.config() for cell in found.firsts()]
    return sum(host_epochs(found, one) for one in configs) / sum(one.updates * one.hosts * one.steps for one in configs)


def before(found: Design) -> str:
    """Return the line about scoring that is printed before the first run."""
    share = scoring_share(found)
    time = (
        f"{float(f'{share:.2g}'):g} times as long as training them"
        if share >= 1
        else f"{100 * share:.0f} % of the time of their training"
    )
    more = ", if hosts of score_overrides take as long as those of the training" if found.plan.score_overrides else ""
    more += "; baselines come on top" if found.plan.baselines else ""
    return (
        f"afterwards, esper.compare scores {len(found.arms) * found.blocks} policies on {found.plan.score_hosts} held-out hosts "
        f"each, which takes about {time}{more}"
    )


def after(found: Design, folder: Path) -> str:
    """Return the line about scoring that is printed after the last run; empty if the policies were scored before."""
    if all(any((folder / cell.folder).glob("scored_*.json")) for cell in found.cells):
        return ""
    # The median, as the first update of a process is slower.
    epochs, grown = {cell.arm: host_epochs(found, cell.config()) for cell in found.firsts()}, 0.0
    for cell in found.cells:
        path = folder / cell.folder / "times.jsonl"
        speeds = [record["time/host_epochs_per_second"] for record in read_records(path)] if path.exists() else []
        grown += BUILDING + epochs[cell.arm] / median(speeds) if speeds else 0.0
    time = f"about {duration(grown)}" if grown else "a while"
    more = ", without the baselines" if found.plan.baselines else ""
    return f"it first scores the policies, once, which takes {time}{more}; workers=N scores N at a time"
