"""A rule that reacts: it grows a seed when the host gets worse, or when its growth potential rises."""

# N hosts, S slots, K blueprints

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from esper.agent.reading import accuracy, offered, potentials, step_number, underway, worthy
from esper.agent.scripted.base import Scripted, UniformArray, compose, most_urgent
from esper.buffer.transition import Decision, State
from esper.env.actions import Head, Op
from esper.env.spec import EnvSpec, Observation
from esper.lifecycle.stages import BoolArray, FloatArray, IntArray

FIRST = 1e9
"""Score of a chosen slot or blueprint, above every potential."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReactRule:
    """When to plant a seed, where, which, and whether to keep it."""

    trigger: str = "never"
    """What it waits for: never, start (of the episode), drop (of the accuracy), potential (growth potential rises)."""
    threshold: float = 0.0
    """Fall of the accuracy from its highest value since the last planting [pp], or factor of the largest potential over its
    lowest value since then."""
    patience: int = 0
    """Steps for which a fall or rise must have lasted before it plants."""
    slot: int | None = None
    """Slot. If None, or if the slot is taken: the one with the largest potential."""
    blueprint: int | None = None
    """Blueprint; None for the one with the largest potential."""
    errors: float | None = None
    """Standard errors by which a contribution must exceed 0 for the seed to be kept instead of pruned; None keeps every seed."""

    def plain(self) -> dict[str, Any]:
        """Return its fields as primitives."""
        return asdict(self)


class Reaction(Scripted):
    """Plays a `ReactRule`, with one seed at a time in each host."""

    def __init__(self, rule: ReactRule, spec: EnvSpec) -> None:
        self.rule, self.spec = rule, spec

    def start(self, num_hosts: int) -> State:
        """Return the level `[N]` to compare falls and rises with, NaN if unknown, and how long one has lasted `[N]` [steps]."""
        return {"level": torch.full((num_hosts,), torch.nan), "lasted": torch.zeros(num_hosts)}

    def decide(self, observation: Observation, state: State, uniform_NH: UniformArray) -> tuple[IntArray, State]:
        new_N = step_number(observation, self.spec) == 0
        known_N, waited_N = np.where(new_N, np.nan, state["level"].numpy()), np.where(new_N, 0, state["lasted"].numpy())
        beyond_N, signal_N = self._beyond(observation, known_N)
        lasted_N = np.where(beyond_N, waited_N + 1, 0).astype(np.float32)
        due_N = lasted_N > (0 if self.rule.trigger == "start" else self.rule.patience)
        level_N = np.fmax(known_N, signal_N)
        ripe_NS, worthy_NS = observation.legal_slots[:, Op.FOSSILIZE], self._worthy(observation)
        score_NSK = self._scores(observation)
        score_NS, alike_NS = score_NSK.max(axis=2), np.zeros(ripe_NS.shape)
        free_N = due_N & ~underway(observation, self.spec).any(axis=1)
        wanted = {
            Op.FOSSILIZE: (worthy_NS, alike_NS),
            Op.PRUNE: (ripe_NS & ~worthy_NS, alike_NS),
            Op.ADVANCE: (np.ones_like(ripe_NS), alike_NS),
            Op.GERMINATE: (free_N[:, None] & np.isfinite(score_NS), score_NS),
        }
        op_N, slot_N = most_urgent(observation, wanted)
        blueprint_N = score_NSK[np.arange(len(slot_N)), slot_N].argmax(axis=1)
        level_N = np.where(op_N == Op.GERMINATE, signal_N, level_N).astype(np.float32)
        return compose(observation, self.spec, op_N, slot_N, blueprint=blueprint_N), {
            "level": torch.from_numpy(level_N),
            "lasted": torch.from_numpy(lasted_N),
        }

    def revise(self, observation: Observation, before: State, decision: Decision, taken_NH: IntArray) -> State:
        """Start the level again where a seed was planted, and only there; see `Revisable`."""
        new_N = step_number(observation, self.spec) == 0
        known_N = np.where(new_N, np.nan, before["level"].numpy())
        signal_N = self._beyond(observation, known_N)[1]
        planted_N = taken_NH[:, Head.OP] == Op.GERMINATE
        level_N = np.where(planted_N, signal_N, np.fmax(known_N, signal_N)).astype(np.float32)
        return decision.state | {"level": torch.from_numpy(level_N)}

    def _beyond(self, observation: Observation, level_N: FloatArray) -> tuple[BoolArray, FloatArray]:
        """Return the hosts beyond the threshold `[N]`, and the signal whose fall from its highest value counts `[N]`; NaN if it
        does not count.

        Args:
            level_N: highest signal so far; NaN before the first step.
        """
        nothing_N = np.zeros(len(observation.features), np.float32)
        if self.rule.trigger == "drop":
            signal_N, margin = accuracy(observation, self.spec), self.rule.threshold
        elif self.rule.trigger == "potential":
            largest_N = potentials(observation, self.spec).max(axis=(1, 2))
            signal_N, margin = -np.log(np.maximum(largest_N, 1e-9)), np.log(self.rule.threshold)
            # That of a newborn host is measured in another way, and is smaller: each would seem to rise after it.
            signal_N = np.where(step_number(observation, self.spec) == 0, np.float32(np.nan), signal_N)
        else:
            new_N = step_number(observation, self.spec) == 0
            return new_N & (self.rule.trigger == "start"), nothing_N
        return np.fmax(level_N, signal_N) - signal_N >= margin, signal_N

    def _scores(self, observation: Observation) -> FloatArray:
        """Return the preference for each slot and blueprint `[N, S, K]`, -inf where planting is illegal."""
        offered_NK = offered(observation, self.spec)
        score_NSK = np.where(observation.legal_slots[:, Op.GERMINATE, :, None] & offered_NK[:, None], 0.0, -np.inf)
        score_NSK += potentials(observation, self.spec)
        if self.rule.blueprint is not None:
            score_NSK[:, :, self.rule.blueprint] += FIRST
        if self.rule.slot is not None:
            score_NSK[:, self.rule.slot] += FIRST
        return score_NSK

    def _worthy(self, observation: Observation) -> BoolArray:
        if self.rule.errors is None:
            return observation.legal_slots[:, Op.FOSSILIZE]
        return worthy(observation, self.spec, self.rule.errors)
