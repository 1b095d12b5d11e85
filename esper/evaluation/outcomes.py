"""The outcomes of controllers on the same hosts, host by host, and their means."""

# N hosts

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from esper.agent.scripted.replay import Topology, topologies
from esper.env.base import EpisodeRecord
from esper.env.episode import Episode
from esper.env.spec import EnvSpec
from esper.stats.intervals import UNKNOWN, mean_interval

HELD_OUT = ("accuracy", "validation", "return", "parameters", "flops", "training_flops", "measuring_flops", "policy_flops")
"""Outcomes that are measured on held-out hosts: test and validation accuracy of the committed network [%], return, parameters of
its seeds, its FLOPs per sample, and the FLOPs of training it, of validating it (with counterfactuals), and of the controller's
decisions."""
SPENT = ("training_flops", "measuring_flops", "policy_flops")
"""Outcomes that add up to the FLOPs that a controller spent on a host."""
ONLINE = "online"
"""Outcome that is measured on request only, since it needs a test after every host epoch: mean test accuracy over the epochs,
with all seeds as they are [%]."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HostOutcomes:
    """Outcomes of one controller, host by host."""

    values: dict[str, np.ndarray]
    """Value of every host `[N]`, by the names in `HELD_OUT`, NaN if the environment does not measure it; and `ONLINE` if it was
    measured."""
    instance: list[str]
    """Kind of each host."""
    kept: list[Topology]
    """The seeds that each host kept."""
    seeds: list[list[dict[str, Any]]] = field(default_factory=list[list[dict[str, Any]]])
    """Every seed of each host, with the keys of `Seed`, names for slot and blueprint, and None for what was not measured; empty
    if not recorded."""

    @staticmethod
    def of(episode: EpisodeRecord, layout: EnvSpec) -> "HostOutcomes":
        """Return the outcomes of an episode."""
        values = dict.fromkeys(HELD_OUT, np.full(len(episode.return_N), np.nan)) | {"return": episode.return_N}
        kept = list[Topology]([[] for _ in episode.instance])
        seeds = list[list[dict[str, Any]]]()
        if isinstance(episode, Episode):
            assert episode.test_accuracy_N is not None
            assert episode.signals is not None
            values["accuracy"] = episode.test_accuracy_N
            values["validation"] = episode.signals.effects.committed_accuracy_N
            values["parameters"] = episode.kept_params_N
            values["flops"] = episode.committed["flops"]
            values["training_flops"] = episode.training_flops_N
            values["measuring_flops"] = episode.measuring_flops_N
            values |= {} if episode.online_N is None else {ONLINE: episode.online_N}
            kept = topologies(episode.kept_NS, episode.blend_NS, episode.alpha_NS, layout)
            seeds = _by_host(episode)
        return HostOutcomes(values=values, instance=episode.instance, kept=kept, seeds=seeds)

    def lists(self) -> dict[str, list[Any]]:
        """Return the value of every host, by outcome."""
        return {name: values_N.tolist() for name, values_N in self.values.items()}


def _by_host(episode: Episode) -> list[list[dict[str, Any]]]:
    """Return every seed of each host as plain values, in the order of planting."""
    found = list[list[dict[str, Any]]]([[] for _ in episode.instance])
    for seed in episode.log.seeds:
        plain: dict[str, Any] = asdict(seed) | {"slot": episode.slots[seed.slot], "blueprint": episode.blueprints[seed.blueprint]}
        for name in ("contribution", "contribution_error"):
            plain[name] = round(plain[name], 4) if np.isfinite(plain[name]) else None
        found[plain.pop("host")].append(plain)
    return found


def summarise(outcomes: Mapping[str, HostOutcomes], against: str = "wait") -> list[dict[str, Any]]:
    """Return one row per controller: means over hosts with 95 % intervals, and paired differences to the controller `against`."""
    base = outcomes[against].values
    rows: list[dict[str, Any]] = []
    for name, outcome in outcomes.items():
        values = outcome.values
        row: dict[str, Any] = {"controller": name}
        row |= {key: float(values[key].mean()) for key in ("parameters", "flops", *SPENT)}
        row["total_flops"] = sum(row[key] for key in SPENT)
        for key in ("return", "accuracy", *([ONLINE] if ONLINE in values else [])):
            for label, sample in ((key, values[key]), (f"{key}_over_{against}", values[key] - base[key])):
                row[label] = asdict(mean_interval(sample) if np.isfinite(sample).all() else UNKNOWN)
        rows.append(row)
    return rows
