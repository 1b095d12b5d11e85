"""The static control: hosts grow another controller's final topology from the start."""

# N hosts, S slots, K blueprints, H heads, W values of the style head

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from esper.agent.base import AgentConfig, check_offered
from esper.agent.scripted.base import Scripted, UniformArray, compose, most_urgent
from esper.buffer.base import Buffer
from esper.buffer.transition import State
from esper.env.actions import STYLES, Head, Op, segments
from esper.env.spec import EnvSpec, Observation
from esper.lifecycle.roles import Blend
from esper.lifecycle.stages import EMPTY, BoolArray, FloatArray, IntArray

Topology = list[dict[str, str]]
"""The seeds that a host kept, in the order of its slots: `{"slot": "r0c1", "blueprint": "conv_light", "blend": "add"}`."""


def topologies(kept_NS: IntArray, blend_NS: IntArray, alpha_NS: FloatArray, spec: EnvSpec) -> list[Topology]:
    """Return the seeds that each host kept, without those that are switched off.

    Args:
        kept_NS: blueprint of the fossil in each slot, `EMPTY` where there is none.
        blend_NS: its `Blend`.
        alpha_NS: its blend weight.
    """
    return [
        [
            {
                "slot": spec.slot_names[slot],
                "blueprint": spec.blueprint_names[kept_NS[host, slot]],
                "blend": Blend(int(blend_NS[host, slot])).name.lower(),
            }
            for slot in np.flatnonzero((kept_NS[host] != EMPTY) & (alpha_NS[host] > 0))
        ]
        for host in range(len(kept_NS))
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """Content of a topology file."""

    topologies: list[Topology]
    """Topology of each host."""
    seed: int | None
    """Root seed of the hosts that grew them; None if not recorded."""
    episode: int | None
    """Episode of these hosts; None if not recorded."""


def read(path: str, controller: str) -> Record:
    """Return the topologies in a file that `esper.evaluate` wrote.

    Args:
        controller: name of a controller in that evaluation.

    Raises:
        ValueError: the file cannot be read, has another form, or lacks the controller.
    """
    if not path:
        raise ValueError("agent.topology is not set: name the JSON file that python -m esper.evaluate wrote")
    try:
        held: Any = json.loads(Path(path).read_text(encoding="utf-8"))
        controllers: dict[str, Any] = held["hosts"]
        kept = {name: [_checked(seeds) for seeds in entry["kept"]] for name, entry in controllers.items() if "kept" in entry}
    except OSError as error:
        raise ValueError(f"agent.topology={path} cannot be read ({(error.strerror or str(error)).lower()})") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"agent.topology={path} holds no topologies: name a JSON file that esper.evaluate wrote") from error
    if controller not in kept:
        remedy = f"choose one of {', '.join(kept)}" if kept else "it has no topologies; name another file"
        raise ValueError(f"agent.controller={controller} is not in agent.topology={path}: {remedy}")
    return Record(topologies=kept[controller], seed=held.get("seed"), episode=held.get("episode"))


def _checked(seeds: list[dict[str, str]]) -> Topology:
    """Return the seeds of one host after checking their form."""
    topology = [{key: seed[key] for key in ("slot", "blueprint", "blend")} for seed in seeds]
    for seed in topology:
        Blend[seed["blend"].upper()]
    return topology


@dataclass(kw_only=True, slots=True)
class ReplayConfig(AgentConfig):
    """A controller that regrows, in each host and from the first step on, the seeds that the host kept under another
    controller. An evaluation with the same seed and episode has the same hosts; in training, hosts differ and take the topologies
    in order."""

    seeded: ClassVar[bool] = False
    topology: str = ""
    """JSON file that `python -m esper.evaluate` wrote; hosts are matched by their order."""
    controller: str = "policy"
    """Name of the controller in that evaluation whose topologies to grow."""

    def check_evaluation(self, *, seed: int, episode: int) -> None:
        record = read(self.topology, self.controller)
        for key, recorded, here in (("seed", record.seed, seed), ("episode", record.episode, episode)):
            if recorded not in (None, here):
                raise ValueError(
                    f"agent.topology={self.topology} was recorded on hosts of {key}={recorded}, but these have {key}={here}: "
                    f"evaluate with {key}={recorded}"
                )

    def check_hosts(self, *, slots: Sequence[str], in_use: BoolArray, cap: int, blueprints: Sequence[str], hosts: int) -> None:
        known = read(self.topology, self.controller).topologies
        where = f"agent.topology={self.topology}"
        if len(known) < hosts:
            raise ValueError(f"{where} has {len(known)} hosts, but the run has {hosts}: set hosts to at most {len(known)}")
        largest = max((len(topology) for topology in known[:hosts]), default=0)
        if 0 < cap < largest:
            raise ValueError(f"{where} has {largest} seeds in a host, but slots.max_seeds={cap}: set slots.max_seeds={largest}")
        open_slots = [name for name, used in zip(slots, in_use, strict=True) if used]
        for seed in (seed for topology in known[:hosts] for seed in topology):
            if seed["slot"] not in open_slots:
                raise ValueError(f"{where} has slot {seed['slot']}, which is not in use: choose from {', '.join(open_slots)}")
            check_offered(f"{where} has blueprint {seed['blueprint']}, which", seed["blueprint"], blueprints)
            if not _styles(seed["blend"], self.heads.pinned.get(Head.STYLE)):
                raise ValueError(
                    f"{where} has a seed with blend {seed['blend']}, which agent.heads.style={self.heads.style} excludes: set "
                    "agent.heads.style=free"
                )

    def build(self, spec: EnvSpec, *, seed: int, buffer: Buffer | None = None) -> "Replay":
        everywhere = np.ones(spec.num_slots, dtype=np.bool_)
        self.check_hosts(slots=spec.slot_names, in_use=everywhere, cap=0, blueprints=spec.blueprint_names, hosts=spec.num_hosts)
        return Replay(read(self.topology, self.controller).topologies, spec)


def _styles(blend: str, held: int | None) -> list[int]:
    """Return the values of the style head that have this blend and are allowed."""
    meant = [style for style, (kind, _) in enumerate(STYLES.values()) if kind.name.lower() == blend]
    return [style for style in meant if held in (None, style)]


class Replay(Scripted):
    """Germinates, advances and keeps the seeds of each host's topology as soon as possible, and again if a seed is lost."""

    def __init__(self, known: Sequence[Topology], spec: EnvSpec) -> None:
        """
        Args:
            known: the topology of each host.
        """
        self.spec = spec
        self.kept_NS = np.full((len(known), spec.num_slots), EMPTY, dtype=np.int64)
        self.may_NSW = np.zeros((len(known), spec.num_slots, len(STYLES)), dtype=np.bool_)
        for host, topology in enumerate(known):
            for seed in topology:
                slot = spec.slot_names.index(seed["slot"])
                self.kept_NS[host, slot] = spec.blueprint_names.index(seed["blueprint"])
                self.may_NSW[host, slot, _styles(seed["blend"], None)] = True

    def start(self, num_hosts: int) -> State:
        """Return the index of each host `[N]`."""
        return {"host": torch.arange(num_hosts)}

    def decide(self, observation: Observation, state: State, uniform_NH: UniformArray) -> tuple[IntArray, State]:
        host_N, places = state["host"].numpy(), segments(self.spec.head_sizes)
        kept_NS = self.kept_NS[host_N]
        style_NSW = self.may_NSW[host_N] & observation.legal_values[:, None, places[Head.STYLE]]
        offered_NS = np.take_along_axis(observation.legal_values[:, places[Head.BLUEPRINT]], np.maximum(kept_NS, 0), axis=1)
        wanted_NS = (kept_NS != EMPTY) & offered_NS & style_NSW.any(axis=2)
        alike_NS, always_NS = np.zeros(kept_NS.shape), np.ones_like(wanted_NS)
        op_N, slot_N = most_urgent(
            observation,
            {Op.GERMINATE: (wanted_NS, alike_NS), Op.FOSSILIZE: (always_NS, alike_NS), Op.ADVANCE: (always_NS, alike_NS)},
        )
        row_N = np.arange(len(slot_N))
        blueprint_N, style_N = kept_NS[row_N, slot_N], style_NSW[row_N, slot_N].argmax(axis=1)
        return compose(observation, self.spec, op_N, slot_N, blueprint=blueprint_N, style=style_N), state
