"""Random search over schedules."""

# N hosts, S slots, K blueprints, H heads

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, ClassVar

import numpy as np

from esper.agent.base import AgentConfig, check_offered, check_time, slot_of_these_hosts
from esper.agent.scripted.schedule import ActionConfig, ActionLists
from esper.agent.search import Search
from esper.buffer.base import Buffer
from esper.env.actions import VALUES, Head, Op, segments
from esper.env.spec import EnvSpec, Observation
from esper.ranges import check_ranges
from esper.seeding import stream

BIRTH = (Head.STYLE, Head.TEMPO, Head.ALPHA_TARGET)
"""Parameters that are drawn at random for a seed if the config leaves them free."""


class Times(StrEnum):
    """Distribution of the times at which random schedules germinate seeds."""

    uniform = "uniform"
    """Every host epoch up to the latest is equally probable."""
    early = "early"
    """Log-uniform: epoch t, counted from 0, has a probability in proportion to log(1 + 1 / (1 + t))."""

    def draw(self, rng: np.random.Generator, last: int, count: int) -> list[int]:
        """Return times from 0 to `last`, in ascending order."""
        if self is Times.uniform:
            return np.sort(rng.integers(last + 1, size=count)).tolist()
        times = np.floor((last + 2.0) ** rng.random(count)).astype(np.int64) - 1
        return np.sort(np.minimum(times, last)).tolist()


@dataclass(kw_only=True, slots=True)
class BestOfRandomConfig(AgentConfig):
    """A random search that tries one schedule per update on the same hosts, and plays the best one so far by mean return. The
    first schedule only waits; the others germinate seeds in random slots at random times; these seeds advance and are kept as
    soon as possible."""

    one_episode: ClassVar[bool] = True
    most: int = 0
    """Maximum number of seeds in a schedule, at least 0; 0 means as many as a host can hold. Higher: larger schedules are
    tried."""
    latest: int | None = None
    """Latest time to germinate, at least 0; null means the end of the episode [host epochs]. Lower: fewer schedules whose seeds
    come too late to be kept."""
    times: Times = Times.uniform
    """Distribution of the times to germinate: uniform, or early, for tasks in which growth pays from the start."""

    def __post_init__(self) -> None:
        AgentConfig.__post_init__(self)
        check_ranges("agent", self, {"[0, inf]": ["most", "latest"]})

    def check_run(self, *, blueprints: Sequence[str], steps: int, hosts: int, incubates: bool = True) -> None:
        if self.latest is not None:
            check_time(f"agent.latest={self.latest}", self.latest, steps)

    def acting(self) -> "BestOfRandomConfig":
        return replace(self, latest=None)

    def build(self, spec: EnvSpec, *, seed: int, buffer: Buffer | None = None) -> "BestOfRandom":
        return BestOfRandom(self, spec, seed=seed)


class BestOfRandom(Search[list[ActionConfig]]):
    """See `BestOfRandomConfig`. The root seed and the number of schedules tried determine the next one."""

    def __init__(self, config: BestOfRandomConfig, spec: EnvSpec, *, seed: int) -> None:
        self.config = config
        Search.__init__(self, spec, seed=seed, nothing=[], gamma=config.gamma)

    def player(self, candidate: list[ActionConfig]) -> ActionLists:
        return ActionLists([candidate], self.spec)

    def learn(self, progress: float) -> dict[str, float]:
        seeds = sum(action.op == "germinate" for action in self._trial)
        return Search.learn(self, progress) | {"search/seeds": float(seeds)}

    def summary(self) -> list[tuple[str, str]]:
        """Return the best schedule as it is typed on the command line."""
        if not self.best:
            return [("best schedule", "agent=wait")]
        return [("best schedule", f"agent=schedule {shlex.quote(f'agent.actions={self.overrides()}')}")]

    def overrides(self) -> str:
        """Return the best schedule as the value of `agent.actions` on the command line."""
        actions = [", ".join(f"{name}: {value}" for name, value in action.plain().items()) for action in self.best]
        return "[" + ", ".join(f"{{{action}}}" for action in actions) + "]"

    def draw(self, first: Observation) -> list[ActionConfig]:
        config, last = self.config, self.spec.num_steps - 1 if self.config.latest is None else self.config.latest
        rng = stream(self.seed, "schedule", self.tried)
        return draw_schedule(rng, first, self.spec, most=config.most, latest=last, times=config.times)

    # ---- state

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return Search.state_dict(self) | {"best": [action.plain() for action in self.best], "slots": list(self.spec.slot_names)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned.

        Raises:
            ValueError: the best schedule cannot be played on these hosts.
        """
        placed: list[ActionConfig] = []
        for action in (ActionConfig(**plain) for plain in state["best"]):
            check_time(f"at={action.at} in the best schedule", action.at, self.spec.num_steps)
            if action.blueprint is not None:
                where = f"blueprint={action.blueprint} in the best schedule"
                check_offered(where, action.blueprint, self.spec.blueprint_names, learned=True)
            slot = slot_of_these_hosts("in the best schedule", action.slot, state["slots"], self.spec.slot_names)
            placed.append(replace(action, slot=slot))
        Search.load_state_dict(self, state)
        self.play(placed)


def draw_schedule(
    rng: np.random.Generator, first: Observation, spec: EnvSpec, *, most: int, latest: int, times: Times
) -> list[ActionConfig]:
    """Return a random schedule of at least one seed, or an empty one if no slot is free.

    Args:
        first: first observation of the hosts, which shows the slots and blueprints that a schedule can use.
        most: maximum number of seeds, of which a host may hold fewer; 0 means as many as it can hold.
        latest: latest time to germinate [host epochs].
        times: distribution of these times.
    """
    free_S = np.flatnonzero(first.legal_slots[:, Op.GERMINATE].any(axis=0))
    offered = {head: np.flatnonzero(first.legal_values[0, place]) for head, place in segments(spec.head_sizes).items()}
    cap = min(spec.max_seeds or len(free_S), len(free_S))
    count = int(rng.integers(min(most or cap, cap))) + 1 if cap else 0
    actions: list[ActionConfig] = []
    slots = rng.permutation(free_S)[:count].tolist()
    for slot, at in zip(slots, times.draw(rng, latest, count), strict=True):
        blueprint = spec.blueprint_names[rng.choice(offered[Head.BLUEPRINT])]
        free = [head for head in BIRTH if len(offered[head]) > 1]
        others = {head.name.lower(): list(VALUES[head])[rng.choice(offered[head])] for head in free}
        actions += planted(slot, blueprint, at, **others)
    return actions


def planted(slot: int, blueprint: str, at: int, **others: str) -> list[ActionConfig]:
    """Return the schedule of a seed that is kept as soon as possible.

    Args:
        others: parameters of its birth by name, such as tempo.
    """
    germinate = ActionConfig(at=at, op="germinate", slot=slot, blueprint=blueprint, **others)
    return [germinate, ActionConfig(at=at, op="fossilize", slot=slot)]
