"""The plan of an experiment, read and checked before the first run."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import MarkedYAMLError, YAMLError

from esper.cli.transfer import fitted
from esper.config import GROUPS, Config, ConfigError, did_you_mean, root_key, standalone_agents
from esper.lab.arms import has_control, split_overrides
from esper.lab.design import AnalysisPlan, Design, command_of, design, typed_overrides
from esper.lab.looks import as_planned
from esper.lab.outcomes import OUTCOMES, RETURNS, TRAINING, compared, differing_reward, refuse_twice
from esper.lab.roots import check_pilot, repeated
from esper.stats.paired import MIN_BLOCKS
from esper.sweeps import BlocksConfig
from esper.training.config_io import flat, to_plain, without_paths


def _reordered(overrides: Sequence[str], others: Sequence[str]) -> bool:
    """Return whether these are the same overrides in another order, which changes nothing if none sets what another one sets."""
    typed = [(key.lstrip("+~"), value) for key, _, value in (override.partition("=") for override in overrides)]
    wholes = tuple(f"{key}." for key, value in typed if value.startswith("{"))
    apart = len({key for key, _ in typed}) == len(typed) and not any(key.startswith(wholes) for key, _ in typed)
    return sorted(overrides) == sorted(others) and apart


def _in_order_of(begun: Sequence[str], typed: Sequence[str]) -> list[str]:
    """Return the typed overrides in the order of the keys of a begun experiment. New keys come last."""
    places = {one.partition("=")[0]: place for place, one in enumerate(begun)}
    return sorted(typed, key=lambda one: places.get(one.partition("=")[0], len(places)))


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
    begun = Design.find(folder)
    looks = asked.looks or (begun.plan.looks if begun else [])  # blocks may be added
    if asked.outcome in OUTCOMES and asked.margin is None:
        asked.margin = OUTCOMES[asked.outcome].margin
    if asked.arms is None and begun:
        raise ConfigError(f"{folder} holds an experiment, and no arms are given: resume it with: {command_of(begun, folder)}")
    if begun and _reordered(without_paths(common), without_paths(begun.common)):
        common = _in_order_of(begun.common, common)
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
    if not begun:  # one that has begun is resumed as it is
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
    compared(found.arms, plan.baselines, plan.against)
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
        trained = cell.config()
        try:
            scored = fitted(trained, overrides)
        except ValueError as error:
            raise ConfigError(f"{shown} does not fit arm {cell.arm}: {error}") from error
        if [*scored.blueprint] != [*trained.blueprint]:
            raise ConfigError(
                f"{shown} changes the blueprints, but policies can plant only those they were trained with: "
                "leave blueprint out of score_overrides"
            )
        paid.append(flat(to_plain(scored)))
    if outcome in RETURNS and differing_reward(paid):  # as in a comparison
        raise ConfigError(
            f"outcome={outcome} cannot compare arms that are paid differently under {shown}: set reward= and governor= there, too"
        )


def check_arms(found: Design, configs: Sequence[Config]) -> None:
    """Raise ConfigError if the runs of a new experiment could not be compared as planned.

    Args:
        found: the experiment.
        configs: config of one run of every arm, in their order.
    """
    _check_control(found, configs[0])
    if found.plan.baselines and found.plan.outcome in TRAINING:
        raise ConfigError(
            f"outcome={found.plan.outcome} is measured in training, so no pair with a baseline could get a verdict: "
            "choose another outcome, or leave baselines out"
        )
    for name in (name for name in found.plan.baselines if name in standalone_agents()):
        if unseen := GROUPS["agent"][name].unseen(configs[0].env):
            raise ConfigError(f"baselines={name} reads {unseen}, which the first arm does not have: leave it out")
    key = differing_reward([flat(to_plain(config)) for config in configs])
    if found.plan.outcome in RETURNS and key and not found.plan.score_overrides:  # those may pay all arms alike
        raise ConfigError(
            f"outcome={found.plan.outcome} cannot compare arms with different rewards, and these have different {key}: "
            + ("choose outcome=accuracy" if configs[0].env.has_hosts else "compare arms that have the same")
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
    lines = [f"plan {found.digest[:12]}: {plan.outcome}, margin {plan.margin:g}, {verdict}"]
    arms = compared(found.arms, plan.baselines)
    if len(arms) == 1:
        lines.append(
            f"warning: {arms[0]} is the only arm, and is compared with its A/A control: add arms, as in "
            "arms='reward: shaped,sparse', or baselines=[wait]"
        )
    if found.blocks < plan.looks[0]:
        more = command_of(found, folder, blocks=plan.looks[0])
        lines.append(f"blocks={found.blocks} is too few for a verdict, which takes {plan.looks[0]}; to get one, run: {more}")
    return lines + found.late + [f"warning: {line}" for line in repeated(found, folder)]
