"""Finished runs as experiments see them: which arm and block each is, and what it reached without regard to what it was paid."""

# H hosts

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from esper.checkpoint import Checkpoints, load, update_of
from esper.config import CHECKPOINTS, ConfigError, did_you_mean, standalone_agents
from esper.lab.design import FILE, Design
from esper.telemetry.jsonl import read_records
from esper.training.config_io import flat

UNSHARED = ("seed", "policy_seed", "resume", "telemetry", "plugins")
"""Keys that never make an arm."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """Something that a run is judged by."""

    name: str
    unit: str
    what: str
    margin: float
    """Smallest difference that matters, where nothing else is said."""
    higher_is_better: bool = True


OUTCOMES = {
    outcome.name: outcome
    for outcome in (
        Outcome(name="accuracy", unit="pp", what="test accuracy of what fresh hosts committed, actions drawn", margin=1.0),
        Outcome(name="accuracy_greedy", unit="pp", what="the same, most probable actions", margin=1.0),
        Outcome(name="validation", unit="pp", what="accuracy on the validation part of what they committed", margin=1.0),
        Outcome(name="parameters", unit="1", what="parameters of the seeds that hosts kept", margin=20.0, higher_is_better=False),
        Outcome(name="flops", unit="1", what="FLOPs of a sample in what they committed", margin=1000.0, higher_is_better=False),
        Outcome(name="training_flops", unit="1", what="FLOPs of training a fresh host", margin=1e8, higher_is_better=False),
        Outcome(
            name="return",
            unit="points",
            what="what drawn actions are paid on fresh hosts, if all arms are paid alike",
            margin=1.0,
        ),
        Outcome(name="learning", unit="pp", what="committed accuracy in training, mean over all updates", margin=1.0),
        Outcome(
            name="catastrophes", unit="1", what="roll-backs a host and episode in training", margin=0.05, higher_is_better=False
        ),
    )
}
"""What runs are judged by. All but return are free of the reward, so that arms with different pay can be compared; the last two
are of training, the others of fresh hosts and the test part."""
PAYING = ("reward", "governor", "agent.gamma")
"""What a return is made of: its terms, the penalty of a roll-back, and the discount of what is paid for potentials."""
RIVALS = ("static", "schedule", "oracle")
"""Whom the first arm can be compared with beside agents that need no training: what its policy had kept, grown from the start;
the best fixed schedule of one seed; and the best schedule for each host's kind, which nobody who acts can know."""


FIGURES = ("png", "pdf", "svg")
"""What figures can be written as."""


def pays(key: str) -> bool:
    """Whether a key of the config says what a return is."""
    return key in PAYING or _group(key) in PAYING


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
    rivals: list[str] = field(default_factory=lambda: list[str]())
    """Who else grows the fresh hosts of the first arm, and stands in the tables as an arm: static, what the policy had kept in
    the end, grown from the start; schedule, the best fixed schedule of one seed; oracle, the best one for each host's kind,
    both chosen on other hosts; and the agents that need no training."""
    against: str | None = None
    """The arm that all others are compared with; null compares every pair. Fewer pairs find smaller differences."""
    strata: list[str] = field(default_factory=lambda: list[str]())
    """Keys in which runs differ without being other arms, as in strata=[task]: arms are compared within each setting, and their
    differences over all. Blocks are then seeds within settings."""
    workers: int = 1
    """Processes that judge side by side, at least 1, each on its part of the cores. More judge many runs sooner, and take as much
    memory each as one."""
    final: bool = False
    """Give verdicts although planned runs are not finished, since they never will be? Who looks after every block, and stops
    when a difference shows, is wrong far more often than alpha."""
    plots: bool = True
    """Draw the report's figures? They need matplotlib."""
    figures: str | None = None
    """Also write each figure to a file of its own, for a paper: png, pdf or svg; null leaves them in the report."""

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
        if self.workers < 1:
            raise ValueError(f"workers must be 1 or more, got {self.workers}: as many as there are cores judge fastest")
        if self.figures not in (None, *FIGURES):
            raise ValueError(f"figures={self.figures} is no kind of file to draw: choose out of {', '.join(FIGURES)}")
        if self.figures and not self.plots:
            raise ValueError(f"figures={self.figures} writes figures, which plots=false leaves out: leave out one of the two")
        known = [*RIVALS, *standalone_agents()]
        for name in self.rivals:
            if name not in known:
                raise ValueError(f"rivals={name} is not known: choose out of {', '.join(known)}{did_you_mean(name, known)}")


@dataclass(kw_only=True, slots=True)
class Run:
    """One cell of an experiment."""

    arm: str
    block: int
    folder: Path
    seed: int = 0
    """From which all of its random streams come."""
    stratum: str = ""
    """The setting it is compared in, where there are several."""
    update: int = 0
    updates: int = 0
    config: dict[str, Any] = field(default_factory=lambda: dict[str, Any]())
    """Values by dotted key."""

    @property
    def finished(self) -> bool:
        return 0 < self.updates <= self.update

    @property
    def fate(self) -> str:
        """What became of it, in words."""
        if not self.updates:
            return "never begun"
        return "finished" if self.finished else f"stopped after {self.update} of {self.updates} updates"


def find_runs(folders: Sequence[Path], strata: Sequence[str] = ()) -> list[Run]:
    """All cells of the experiments and runs in these folders, arm by arm; those of a design that were not run are among them.

    Blocks of one experiment are numbered as it numbers them; anywhere else runs are in the same block where their seed is.

    Args:
        strata: keys that make a setting, and no arm.

    Raises:
        ConfigError: there is nothing, or one cell is there twice.
    """
    found: list[Run] = []
    loose: list[Run] = []
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f"{folder} is no folder: name that of an experiment, or those of its runs")
        if (folder / FILE).is_file():
            planned = Design.load(folder)
            cells = sorted(planned.cells, key=lambda cell: list(planned.arms).index(cell.arm))
            read = [_read(folder / cell.folder, cell.arm, cell.block, planned.seeds[cell.block]) for cell in cells]
            setting = next((run.config for run in read if run.config), dict[str, Any]())
            found += [replace(run, stratum=_setting(run.config or setting, strata)) for run in read]
        else:
            places = sorted({path.parent for path in folder.rglob(CHECKPOINTS) if path.is_dir()})
            begun = [run for run in (_read(place, folder.name, 0) for place in places) if run.updates]
            loose += [replace(run, seed=int(run.config["seed"]), stratum=_setting(run.config, strata)) for run in begun]
    _name_arms(loose, strata)
    if not any(run.finished for run in found + loose):
        raise ConfigError(f"{', '.join(map(str, folders))}: no finished run in there, and so nothing to compare")
    if strata:
        settings = sorted({(run.stratum, run.seed) for run in found + loose})
        numbers = {setting: number for number, setting in enumerate(settings)}
        found = [replace(run, block=numbers[run.stratum, run.seed]) for run in found + loose]
    elif loose or len(folders) > 1:
        found = [replace(run, block=run.seed) for run in found + loose]
    there: dict[tuple[str, int], Run] = {}
    for run in found:
        twin = there.setdefault((run.arm, run.block), run)
        if twin is not run:
            raise ConfigError(
                f"{run.folder} and {twin.folder} are the same cell, block {run.block} of arm {run.arm}: name one of them only"
            )
    return found


def _read(folder: Path, arm: str, block: int, seed: int = 0) -> Run:
    newest = Checkpoints(folder / CHECKPOINTS).latest()
    if newest is None:
        return Run(arm=arm, block=block, folder=folder, seed=seed)
    plain = load(newest)["config"]
    return Run(
        arm=arm,
        block=block,
        folder=folder,
        seed=seed,
        update=update_of(newest),
        updates=plain["values"]["updates"],
        config=flat(plain),
    )


def _setting(config: Mapping[str, Any], strata: Sequence[str]) -> str:
    """The setting that a run belongs to.

    Raises:
        ConfigError: it has no such key.
    """
    for key in strata:
        if config and key not in config:
            raise ConfigError(f"strata={key} is no key of these runs: take one that they differ in, such as task")
    return ",".join(str(config.get(key)) for key in strata)


def _name_arms(runs: Sequence[Run], strata: Sequence[str]) -> None:
    """Gives runs that belong to no design the names of arms: what they differ in, or else the name of their folder."""
    aside = (*UNSHARED, *strata)
    keys = dict.fromkeys(key for run in runs for key in run.config if key not in aside and _group(key) not in aside)
    differ = [key for key in keys if len({str(run.config.get(key)) for run in runs}) > 1]
    # Where options of a group differ, so do their keys: the choice says it, unless runs of one choice differ in the key too.
    chosen = [key for key in differ if "." not in key or _group(key) not in differ or _differs_in_choice(runs, key)]
    for run in runs:
        parts = [str(run.config[key]) if key.isalpha() else f"{key}={run.config[key]}" for key in chosen if key in run.config]
        run.arm = ",".join(parts) or run.arm


def _group(key: str) -> str:
    return key.split(".")[0]


def _differs_in_choice(runs: Sequence[Run], key: str) -> bool:
    values: dict[str, set[str]] = {}
    for run in runs:
        values.setdefault(str(run.config.get(_group(key))), set()).add(str(run.config.get(key)))
    return any(len(found) > 1 for found in values.values())


def records_of(run: Run) -> list[dict[str, float]]:
    """What a run wrote down after each update.

    Raises:
        ConfigError: it cannot be read.
    """
    path = run.folder / "metrics.jsonl"
    try:
        return read_records(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read ({error}): leave the run out, or train it again") from error


# ---- what makes an experiment void

DECIDED = 0.01
"""Share of the largest entropy, of choosing an operation, below which a policy tries nothing any more."""
ONE_KIND = 0.99
"""Share of germinations above which a policy knows one blueprint only."""
DATA = ("task", "steps")
EPISODES = "hosts times updates"
"""Keys and a product that say how much data an arm sees."""


def faults(runs: Sequence[Run]) -> list[str]:
    """What makes an experiment void, in sentences; that the repeated arm differs from itself comes with the comparison."""
    found: list[str] = []
    for stratum in dict.fromkeys(run.stratum for run in runs):
        found += _other_data([run for run in runs if run.stratum == stratum])
    for arm in dict.fromkeys(run.arm for run in runs):
        last = [records[-1] for run in runs if run.arm == arm and (records := records_of(run))]
        entropy = [record["policy/entropy_share_op"] for record in last if "policy/entropy_share_op" in record]
        share = [record["policy/top_blueprint_share"] for record in last if "policy/top_blueprint_share" in record]
        if entropy and np.nanmedian(entropy) < DECIDED:
            found.append(
                f"{arm} has stopped trying: its operations have {100 * np.nanmedian(entropy):.1f} % of the largest entropy"
            )
        if share and np.nanmedian(share) > ONE_KIND:
            found.append(f"{arm} knows one blueprint only: {100 * np.nanmedian(share):.0f} % of its germinations")
    return found


def _other_data(runs: Sequence[Run]) -> list[str]:
    """In what of the data the runs of one setting differ."""
    found: list[str] = []
    for key in [*dict.fromkeys(key for run in runs for key in run.config if _group(key) in DATA), EPISODES]:
        values: dict[str, set[str]] = {}
        for run in runs:
            value = run.config.get("hosts", 0) * run.updates if key == EPISODES else run.config.get(key)
            values.setdefault(run.arm, set()).add(str(value))
        if len(set[str]().union(*values.values())) > 1:
            shown = ", ".join(f"{arm} {' and '.join(sorted(several))}" for arm, several in values.items())
            found.append(f"runs do not see the same data: {key} is {shown}; if that is a setting of its own, name it in strata")
    return found
