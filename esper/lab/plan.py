"""The plan of an experiment: read and checked before the first run, and held against what esper.compare is asked."""

import json
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import MarkedYAMLError, YAMLError

from esper.checkpoint import disk
from esper.cli.overrides import config_of
from esper.cli.transfer import fitted
from esper.config import GROUPS, Config, ConfigError, did_you_mean, root_key, standalone_agents
from esper.lab.arms import split_overrides
from esper.lab.design import AA_CONTROL, FILE, AnalysisPlan, Design, command_of, design, has_control, typed_overrides
from esper.lab.roots import check_pilot, repeated
from esper.lab.runs import GREEDY, OUTCOMES, TRAINING, CompareConfig, Run, paid_by, refuse_twice
from esper.stats.paired import MIN_BLOCKS
from esper.sweeps import BlocksConfig
from esper.training.config_io import flat, to_plain
from esper.training.provenance import versions

LOOKS = "looks.jsonl"
"""Name of the file in the folder of an experiment with a line for every comparison."""


def experiment(hydra: DictConfig, common: Sequence[str]) -> Design:
    """Return the design of an experiment with its plan.

    Args:
        hydra: node `hydra` of the command's config.
        common: overrides of all runs.

    Raises:
        ConfigError: the arguments do not describe an experiment.
    """
    asked = BlocksConfig(**cast(dict[str, Any], OmegaConf.to_container(hydra.sweeper)))
    if asked.plan is not None:
        typed = {override.partition("=")[0].removeprefix("hydra.sweeper.") for override in hydra.overrides.hydra}
        asked = replace(asked, **{key: value for key, value in _read(asked.plan).items() if key not in typed})
    folder = Path(hydra.sweep.dir)
    looks = asked.looks
    if not looks and (folder / FILE).exists():  # blocks are added
        looks = Design.load(folder).plan.looks
    if asked.outcome in OUTCOMES and asked.margin is None:
        asked.margin = OUTCOMES[asked.outcome].margin
    if asked.arms is None and (folder / FILE).exists():
        raise ConfigError(
            f"{folder} holds an experiment, and no arms are given: resume it with: {command_of(Design.load(folder), folder)}"
        )
    names = ("outcome", "margin", "alpha", "score_hosts", "baselines", "against", "question", "pilot")
    plan = AnalysisPlan(
        **{name: getattr(asked, name) for name in names},
        score_overrides=_scoring(asked.score_overrides),
        looks=looks or [max(asked.blocks, MIN_BLOCKS)],
    )
    found = design(
        asked.arms,
        blocks=asked.blocks,
        root=asked.root,
        aa_control=asked.aa_control,
        common=common,
        vary_split=asked.vary_split,
        plan=plan,
    )
    _check(found, asked.looks)
    if not (folder / FILE).exists():  # an experiment that has begun is resumed as it is
        check_pilot(found)
        refuse_twice(plan.baselines)
    return found


def _scoring(typed: Any) -> list[str]:
    """Return the value of `score_overrides`: none, a list in a plan's file or in JSON, or one text."""
    if typed in (None, "", "null"):
        return []
    if isinstance(typed, str) and typed.lstrip().startswith("["):
        try:
            typed = json.loads(typed)
        except ValueError as error:
            usage = "write score_overrides='task=mnist5k steps=40', with spaces between overrides"
            raise ConfigError(f"cannot read score_overrides={typed}: {usage}") from error
    return split_overrides(typed)


def _read(path: str) -> dict[str, Any]:
    """Return the keys of a plan's file."""
    keys = [name for name in BlocksConfig.__dataclass_fields__ if name not in ("_target_", "plan")]
    try:
        read: Any = OmegaConf.load(path)
        whole = cast(dict[str, Any], OmegaConf.to_container(OmegaConf.merge(OmegaConf.structured(BlocksConfig), read)))
    except FileNotFoundError as error:
        place = "" if Path(path).is_absolute() else f" in {Path.cwd()}"
        raise ConfigError(f"plan={path} does not exist{place}: name a YAML file, or leave it out") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"plan={path} cannot be read: name a YAML file, or leave it out") from error
    except (OmegaConfBaseException, YAMLError, ValueError) as error:
        raise ConfigError(f"plan={path} is not a plan ({_fault(error, keys)}): write keys from {', '.join(keys)}") from error
    if {*read} - {*keys}:
        raise ConfigError(f"plan={path} is not a plan: write keys from {', '.join(keys)}")
    return {str(key): whole[key] for key in read}


def _fault(error: Exception, keys: Sequence[str]) -> str:
    """Return what is wrong with a plan's file, with the line or the key where it is known."""
    reason = " ".join(str(error).split("\n")[0].split())
    if isinstance(error, MarkedYAMLError):
        mark, problem = error.problem_mark or error.context_mark, error.problem or reason
        return f"it is not YAML: {problem}{f' in line {mark.line + 1}' if mark else ''}"
    name = getattr(error, "key", None)
    if name is None or name in keys:
        return reason if name is None else f"{name}: {reason}"
    if name in Config.__dataclass_fields__ or name in GROUPS:
        return f"{name} is a key of the runs: it belongs on the command line, beside plan="
    return f"there is no key {name}{did_you_mean(str(name), list(keys))}"


def _check(found: Design, looks: Sequence[int]) -> None:
    """Raise ConfigError if the claims do not fit the arms."""
    plan = found.plan
    if plan.score_hosts < 2:
        raise ConfigError(f"score_hosts must be at least 2, got {plan.score_hosts}")
    try:
        as_planned(plan)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if list(looks) != sorted({*looks}) or any(look < MIN_BLOCKS for look in looks):
        raise ConfigError(f"looks={list(looks)} must increase, and each be at least {MIN_BLOCKS}: write them as in looks=[12,24]")
    if clash := {*found.arms} & {*plan.baselines}:
        raise ConfigError(f"baselines={clash.pop()} is already an arm: rename the arm, or remove it from baselines")
    arms = [arm for arm in (*found.arms, *plan.baselines) if arm != AA_CONTROL]
    if plan.against not in (None, *arms):
        raise ConfigError(f"against={plan.against} is not an arm: choose from {', '.join(arms)}")
    if plan.score_overrides:
        _check_scoring(found)


def _check_scoring(found: Design) -> None:
    """Raise ConfigError if the policies of an arm could not be evaluated with the planned overrides."""
    overrides, outcome = found.plan.score_overrides, found.plan.outcome
    shown = typed_overrides(overrides)
    if outcome in TRAINING:
        raise ConfigError(f"outcome={outcome} is measured in training, which {shown} does not change: choose another outcome")
    keys = {root_key(one) for one in overrides}
    if "seed" in keys:
        raise ConfigError(f"{shown} would score all runs on the same hosts: remove the seed, since each run has its own hosts")
    if "hosts" in keys:
        raise ConfigError(f"{shown} has hosts, the number in training: set score_hosts instead")
    if found.vary_split and any(one.startswith("task=") for one in overrides):
        raise ConfigError(f"vary_split=true varies the data of the training, and {shown} scores on one split: remove one of them")
    paid = list[dict[str, Any]]()
    for cell in found.firsts():
        with warnings.catch_warnings(action="ignore"):  # the runs themselves warn
            trained = config_of(list(cell.overrides))
        try:
            scored = fitted(trained, overrides)
        except ValueError as error:
            raise ConfigError(f"{shown} does not fit arm {cell.arm}: {error}") from error
        if [*scored.blueprint] != [*trained.blueprint]:
            raise ConfigError(f"{shown} changes the blueprints, and policies know only those of their training: leave them out")
        paid.append(flat(to_plain(scored)))
    if outcome == "return" and paid_by(paid):  # as in a comparison
        raise ConfigError(
            f"outcome=return cannot compare arms that are paid differently under {shown}: set reward= and governor= there, too"
        )


def check_arms(found: Design, configs: Sequence[Config]) -> None:
    """Raise ConfigError if the runs of a new experiment could not be compared as planned.

    Args:
        found: the experiment.
        configs: config of one run of every arm, in their order.
    """
    _check_control(found, configs[0])
    if found.plan.baselines and found.plan.outcome in (GREEDY, *TRAINING):
        raise ConfigError(
            f"outcome={found.plan.outcome} is measured of trained policies only, so no pair with a baseline could get a verdict: "
            "choose another outcome, or leave baselines out"
        )
    for name in (name for name in found.plan.baselines if name in standalone_agents()):
        if unseen := GROUPS["agent"][name].unseen(configs[0].env):
            raise ConfigError(f"baselines={name} reads {unseen}, which the first arm does not have: leave it out")
    key = paid_by([flat(to_plain(config)) for config in configs])
    if found.plan.outcome == "return" and key and not found.plan.score_overrides:  # those may pay all arms alike
        raise ConfigError(
            f"outcome=return cannot compare arms with different rewards, and these have different {key}: choose outcome=accuracy"
        )


def _check_control(found: Design, first: Config) -> None:
    """Raise ConfigError if the A/A control would repeat the runs of the first arm exactly."""
    if has_control(found.arms) and not first.agent.seeded:
        raise ConfigError(
            f"aa_control=true runs the first arm again with another policy seed, which agent={first.choice('agent')} ignores, so "
            "the control would show nothing: put an arm that learns from a policy seed first, or set aa_control=false"
        )


def announce(found: Design, folder: Path) -> list[str]:
    """Return the lines about a plan that are printed before the first run starts.

    Args:
        found: the experiment.
        folder: its folder.
    """
    plan = found.plan
    verdict = f"verdict at {', '.join(map(str, plan.looks))} blocks"
    if plan.looks[-1] < MIN_BLOCKS:  # a plan of an earlier version
        verdict = f"no verdict at any number of blocks, since the last look is below {MIN_BLOCKS}"
    lines = [f"plan {found.digest[:12]}: {plan.outcome}, margin {plan.margin:g}, {verdict}"]
    arms = [arm for arm in (*found.arms, *plan.baselines) if arm != AA_CONTROL]
    if len(arms) == 1:
        lines.append(
            f"warning: {arms[0]} is the only arm, and is compared with its A/A control: add arms, as in "
            "arms='reward: shaped,sparse', or baselines=[wait]"
        )
    if found.blocks < plan.looks[0]:
        more = command_of(found, folder, blocks=plan.looks[0])
        lines.append(f"blocks={found.blocks} is too few for a verdict, which takes {plan.looks[0]}; to get one, run: {more}")
    if found.blocks > plan.looks[-1]:
        lines.append(f"blocks from {plan.looks[-1]} on are beyond the last planned look: they enter no verdict")
    return lines + [f"warning: {line}" for line in repeated(found, folder)]


def as_planned(plan: AnalysisPlan) -> CompareConfig:
    """Return the settings of the comparison that was planned.

    Raises:
        ValueError: the plan asks for something that does not exist.
    """
    return CompareConfig(
        outcome=plan.outcome,
        margin=plan.margin,
        hosts=plan.score_hosts,
        alpha=plan.alpha,
        baselines=[*dict.fromkeys(plan.baselines)],  # in plans of earlier versions, one may be named twice
        against=plan.against,
    )


def agreed(folders: Sequence[Path]) -> CompareConfig:
    """Return the settings on which the plans of all experiments in these folders agree, and defaults for the others.

    Raises:
        ConfigError: the file of an experiment is damaged or was edited.
        ValueError: a plan asks for something that does not exist.
    """
    plans = [as_planned(Design.load(folder).plan) for folder in folders if (folder / FILE).exists()]
    config = CompareConfig()
    for name in (entry.name for entry in fields(CompareConfig)):
        if len({str(getattr(plan, name)) for plan in plans}) == 1:
            setattr(config, name, getattr(plans[0], name))
    return config


def scored_with(folders: Sequence[Path], typed: Sequence[str]) -> list[str]:
    """Return the evaluation overrides of a comparison: the planned ones, with typed keys replaced, then the other typed ones.

    Raises:
        ConfigError: the plans of several experiments have other ones.
    """
    given = {one.partition("=")[0]: one for one in typed}

    def changed(plan: Sequence[str]) -> list[str]:
        """Return a plan's overrides, those of a typed key replaced in their place, those below a typed group left out."""
        keys = [(one, one.partition("=")[0]) for one in plan]
        return [given.get(key, one) for one, key in keys if key in given or root_key(one) not in given]

    plans = [Design.load(folder).plan.score_overrides for folder in folders if (folder / FILE).exists()]
    wanted = [changed(plan) for plan in plans]
    if any(plan != wanted[0] for plan in wanted):
        raise ConfigError("these experiments planned different score_overrides: compare them separately")
    kept = wanted[0] if wanted else []
    return [*kept, *(one for one in typed if one not in kept)]


def planned(folders: Sequence[Path]) -> Design | None:
    """Return the experiment whose folder is the only one; None for runs without a plan, and for several folders.

    Raises:
        ConfigError: its file is damaged or was edited.
    """
    return Design.load(folders[0]) if len(folders) == 1 and (folders[0] / FILE).exists() else None


def deviations(found: Design | None, config: CompareConfig, overrides: Sequence[str]) -> list[str]:
    """Return the ways in which a comparison deviates from the plan, each of which makes it exploratory."""
    if found is None:
        return ["these runs are not one experiment of sweep=ab, so nothing was planned"]
    lines = [f"{name} is {got}, but {wanted} was planned" for name, (got, wanted) in other_settings(found, config).items()]
    return lines + [f"{override} was not planned" for override in overrides if override not in found.plan.score_overrides]


def other_settings(found: Design, config: CompareConfig) -> dict[str, tuple[str, str]]:
    """Return the settings of a comparison that differ from the plan, as they are and as they were planned."""
    wanted, got = asdict(as_planned(found.plan)), asdict(config)
    got["margin"] = config.margin or OUTCOMES[config.outcome].margin
    names = ("outcome", "margin", "hosts", "alpha", "baselines", "against", "strata")
    pairs = {name: (got[name], wanted[name]) for name in names}
    same = {"baselines": sorted(got["baselines"]) == sorted(wanted["baselines"])}  # in any order
    return {name: (_shown(one), _shown(other)) for name, (one, other) in pairs.items() if not same.get(name, one == other)}


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(str, cast(list[Any], value)))}]"
    return "null" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def listed_runs(folders: Sequence[Path]) -> set[Path]:
    """Return the folders of the runs that an earlier comparison found finished.

    Raises:
        DiskError: the disk refused.
    """
    found: set[Path] = set()
    for path in (folder / LOOKS for folder in folders if (folder / LOOKS).exists()):
        with disk(f"read {path}"):
            lines = path.read_bytes().splitlines()
        for line in lines:
            with suppress(ValueError, RecursionError, TypeError, AttributeError):  # cut short, or of an earlier version
                found |= {path.parent / run for run in json.loads(line).get("runs", ())}
    return found


def lost_looks(folders: Sequence[Path]) -> list[str]:
    """Return warnings on experiments that were compared, as their reports show, and have no record of it."""
    compared = (folder for folder in folders if (folder / FILE).exists() and any(folder.glob("comparison*.json")))
    return [
        f"{folder} was compared before and has no {LOOKS}: its earlier looks are unknown"
        for folder in compared
        if not (folder / LOOKS).exists()
    ]


def record_look(folders: Sequence[Path], runs: Sequence[Run], look: dict[str, Any]) -> None:
    """Append a comparison to the looks of every experiment in these folders.

    Args:
        folders: folders of experiments; others keep no looks.
        runs: runs of the comparison.
        look: settings and sentences.

    Raises:
        DiskError: the disk refused.
    """
    finished = [run.folder for run in runs if run.finished]
    about = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "code": versions(), "finished_runs": len(finished)}
    for folder in folders:
        own = [str(run.relative_to(folder)) for run in finished if run.is_relative_to(folder)]
        line = json.dumps({**about, "runs": own, **look})
        if (folder / FILE).exists():
            with disk(f"write {folder / LOOKS}"), (folder / LOOKS).open("a+b") as file:
                file.seek(max(0, file.tell() - 1))
                end = b"" if file.read() in (b"", b"\n") else b"\n"  # a line that was cut short
                file.write(end + line.encode() + b"\n")
