"""Warnings on the arms of a comparison: what a reader should know before believing a verdict."""

from collections.abc import Collection, Sequence

import numpy as np

from esper.config import standalone_agents
from esper.evaluation.held_out import EARLY
from esper.evaluation.per_host import PREFIX, UNBUDGETED
from esper.lab.outcomes import SEARCHED, STATIC_NET, group_of
from esper.lab.runs import UNSHARED, Run, records_of
from esper.lab.scoring import scored_config
from esper.training.config_io import PLACES

MIN_ENTROPY = 0.01
"""Share of the maximal entropy of the operation below which a policy no longer explores."""
MAX_BLUEPRINT_SHARE = 0.99
"""Share of germinations of one blueprint above which a policy has collapsed onto it."""
DATA_KEYS = ("task", "steps")
"""Keys that determine, with hosts times updates, how much data an arm sees."""
LOSSES = ("task.objective", "task.delta")
"""Keys of these that change only what hosts minimise."""
BY_BLOCK = "task.split_seed"
"""Key of these that may differ between blocks (vary_split)."""
OWN_BY_BLOCK = (BY_BLOCK, "agent.teacher", *DATA_KEYS, "hosts", "updates")
"""Keys and groups that may differ within an arm, since each block has its own, or of which another warning tells."""
EPISODES = "hosts times updates"
IN_STRATA = "if this is a separate setting, add it to strata"
HOST_KEYS = ("host", "slots", "gates", "optimiser", "blueprint", "governor")
"""Groups that determine, with the data, what a host is and how it may grow."""
AT_THE_START = (*SEARCHED, STATIC_NET, *(f"{PREFIX}{method}" for method in UNBUDGETED))
"""Baselines whose seeds are planted at the start."""


def anomalies(runs: Sequence[Run], planned: Sequence[str] = ()) -> list[str]:
    """Return warnings on arms whose runs differ in their data or teachers, or whose policies no longer explore, which may be
    intended; and on strata that share seeds.

    Args:
        runs: finished runs.
        planned: planned evaluation overrides; what they set is the same for all arms.
    """
    alike = {override.partition("=")[0] for override in planned}
    found: list[str] = []
    for stratum in dict.fromkeys(run.stratum for run in runs):
        found += _different_data(own := [run for run in runs if run.stratum == stratum], alike)
        found += [
            line for arm in dict.fromkeys(run.arm for run in own) for line in _mixed([run for run in own if run.arm == arm])
        ]
    found += [*_trained_teachers(runs), *_shared_seeds(runs)]
    for arm in dict.fromkeys(run.arm for run in runs):
        last = [records[-1] for run in runs if run.arm == arm and (records := records_of(run))]
        entropy = [record["policy/entropy_share_op"] for record in last if "policy/entropy_share_op" in record]
        share = [record["policy/top_blueprint_share"] for record in last if "policy/top_blueprint_share" in record]
        if entropy and np.nanmedian(entropy) < MIN_ENTROPY:
            found.append(
                f"{arm} has stopped exploring: entropy of operations is {100 * np.nanmedian(entropy):.1f} % of the maximum"
            )
        if share and np.nanmedian(share) > MAX_BLUEPRINT_SHARE:
            found.append(f"{arm} has collapsed onto one blueprint: {100 * np.nanmedian(share):.0f} % of its germinations")
    return list(dict.fromkeys(found))  # several strata may have the same


def other_hosts(runs: Sequence[Run], baselines: Sequence[str], overrides: Sequence[str] = ()) -> list[str]:
    """Return a warning for each arm whose hosts are not those of the first arm, which the baselines grow.

    Args:
        overrides: evaluation overrides; what they set is the same for all arms.
    """
    alike = {override.partition("=")[0] for override in overrides}
    found: list[str] = []
    for arm in dict.fromkeys(run.arm for run in runs) if baselines else ():
        pairs = [(one, run) for one in runs if one.arm == runs[0].arm for run in runs if (run.arm, run.block) == (arm, one.block)]
        keys = dict.fromkeys(key for pair in pairs for run in pair for key in run.config if _makes_hosts(key))
        keys = [key for key in keys if not {key, group_of(key)} & alike]
        if differ := [key for key in keys if any(str(one.config.get(key)) != str(run.config.get(key)) for one, run in pairs)]:
            found.append(
                f"the baselines grow the hosts of {runs[0].arm}; those of {arm} differ in {differ[0]}: compare {arm} with "
                "baselines in an experiment of its own"
            )
    return found


def _makes_hosts(key: str) -> bool:
    """Return whether a key of the config affects what the hosts of a baseline are, or how it may grow them."""
    return group_of(key) in HOST_KEYS or key.startswith("agent.heads.")


def _trained_teachers(runs: Sequence[Run]) -> list[str]:
    """Return a warning if in a block only some arms learn from a trained teacher, or from another one."""
    agents, taught, by_block = standalone_agents(), dict[str, list[str]](), dict[tuple[str, int], set[str | None]]()
    for run in runs:
        named: str | None = run.config.get("agent.teacher")
        teacher = None if named in agents else named
        by_block.setdefault((run.stratum, run.block), set()).add(teacher)
        if teacher:
            taught.setdefault(run.arm, []).append(teacher)
    if not taught or all(len(teachers) == 1 for teachers in by_block.values()):
        return []
    trained = [f"{arm} learns from {own[0]}{' and others' * (len({*own}) > 1)}" for arm, own in taught.items()]
    return [f"agent.teacher differs between arms ({', '.join(trained)}): the training of a teacher is not in the costs"]


def _shared_seeds(runs: Sequence[Run]) -> list[str]:
    """Return a warning if runs of different strata have the same seed."""
    settings = {(run.seed, run.stratum) for run in runs}
    if len({seed for seed, _ in settings}) == len(settings):
        return []
    return [
        "runs of different strata have the same random seeds, hence the same initial policies and noise: their blocks are not "
        "independent, and neither intervals nor p values are reliable; give every experiment a root of its own"
    ]


def early_baselines(runs: Sequence[Run], baselines: Sequence[str], overrides: Sequence[str] = ()) -> list[str]:
    """Return a warning on baselines that plant in the first host epoch only, if the hosts that they grow have events later.

    Args:
        runs: finished runs, the first arm first.
        baselines: baselines of the comparison.
        overrides: evaluation overrides, which may choose another task.
    """
    early = [name for name in baselines if name in AT_THE_START]
    if not early or not runs:
        return []
    config = scored_config(runs[0], overrides) if overrides else runs[0].config
    return [f"{', '.join(early)}: these {EARLY}"] if config.get("task.events.kinds") else []


def _mixed(runs: Sequence[Run]) -> list[str]:
    """Return a warning if the runs of an arm, which come from several experiments, have different configs."""
    keys = dict.fromkeys(key for run in runs for key in run.config if not {key, group_of(key)} & {*UNSHARED, *OWN_BY_BLOCK})
    values = {key: dict.fromkeys(str(run.config[key]) for run in runs if key in run.config) for key in keys}
    differ = [f"{key} ({' and '.join(found)})" for key, found in values.items() if len(found) > 1]
    if not differ:
        return []
    return [
        f"the runs of {runs[0].arm} have different {', '.join(differ[:3])}{' and more' * (len(differ) > 3)}: compare their "
        "experiments one by one"
    ]


def _different_data(runs: Sequence[Run], alike: Collection[str]) -> list[str]:
    """Return the ways in which the data of runs of one stratum differ, except in keys and groups that are set alike."""
    found: list[str] = []
    one_data = len({(run.block, run.data) for run in runs}) == len({run.block for run in runs})
    aside = (*LOSSES, *(PLACES if one_data else ()))  # the same data may have moved
    keys = dict.fromkeys(key for run in runs for key in run.config if group_of(key) in DATA_KEYS and key not in aside)
    for key in [*(key for key in keys if not {key, group_of(key)} & {*alike}), EPISODES]:
        values = [
            (run.arm, str(run.config.get("hosts", 0) * run.updates if key == EPISODES else run.config.get(key))) for run in runs
        ]
        settings = {(run.block if key == BY_BLOCK else 0, value) for run, (_, value) in zip(runs, values, strict=True)}
        if len(settings) > len({block for block, _ in settings}):
            arms = dict.fromkeys(arm for arm, _ in values)
            shown = ", ".join(f"{arm} {' and '.join(sorted({value for own, value in values if own == arm}))}" for arm in arms)
            remedy = "make it equal, unless the comparison is about it" if key == EPISODES else IN_STRATA
            found.append(f"runs see different data: {key} is {shown}; {remedy}")
    return found
