"""Reward functions: the weighted terms of one mode, and several modes in one run."""

# N hosts

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol

import numpy as np

from esper.lifecycle.stages import FloatArray, SlotState
from esper.measure.plans import Plan
from esper.reward import terms
from esper.reward.signals import StepSignals
from esper.reward.table import SHAPING, Pay, Pays
from esper.reward.terms import Memory


class RewardError(ValueError):
    """A reward term that breaks the interface of terms; the message is for its author."""


class Weights(Protocol):
    """A config with a weight for each key of `pays`."""

    pays: ClassVar[Pays]


class Reward:
    """A reward function of N hosts, called once per step."""

    names: tuple[str, ...]
    """Names of the terms, in order."""
    needs: frozenset[Plan] = frozenset()
    """Counterfactuals to measure after every step, besides leave-one-out."""
    needs_latency: bool = False
    """If true, latency is measured once, when the run starts."""
    groups: Mapping[str, slice] = {}
    """Hosts by the name of their mode; empty for a single mode."""

    def components(self, signals: StepSignals) -> dict[str, FloatArray]:
        """Return every weighted term of the step by name, `[N]` each [pp]. Call once per step."""
        raise TypeError(f"{type(self).__name__} does not define components(signals)")

    def __call__(self, signals: StepSignals) -> tuple[FloatArray, dict[str, FloatArray]]:
        """Return the reward `[N]` [pp], and its terms by name."""
        components = self.components(signals)
        if not components:
            return np.zeros(len(signals.op_N), dtype=np.float32), {}
        return np.stack(list(components.values())).sum(axis=0), components

    def initial_potential(self, accuracy_N: FloatArray, state: SlotState) -> FloatArray:
        """Return gamma * Phi of the states that sub-episodes start from `[N]` [pp], left out at the rollback; 0 by default.

        A sub-episode after a rollback pays for the potential of the snapshot although the host lost nothing: reported returns add
        this back.
        """
        return np.zeros(len(accuracy_N), dtype=np.float32)

    def discounted_potential(self, accuracy_N: FloatArray, state: SlotState) -> FloatArray:
        """Return (1 - gamma) * Phi of states `[N]` [pp]; 0 by default.

        Shaping pays gamma * Phi on entering a state and deducts Phi on leaving it, so that an undiscounted sum loses this much in
        every state, and most where the accuracy rises early: reported returns add it back.
        """
        return np.zeros(len(accuracy_N), dtype=np.float32)

    def reset(self) -> None:
        """Start a new episode and clear the memory of hosts."""


class WeightedReward(Reward):
    """The weighted terms of a mode; terms of weight 0 are not computed."""

    def __init__(self, config: Weights, gamma: float) -> None:
        self.gamma = gamma
        self._potentials: list[tuple[float, Callable[[FloatArray, SlotState], FloatArray]]] = []
        self._terms: dict[str, list[tuple[float, Pay]]] = {}
        """Signed weights and terms, by the name of the component that they add up to."""
        chosen = {key: entry for key, entry in config.pays.items() if getattr(config, key)}
        for key, entry in chosen.items():
            weight = getattr(config, key)
            if entry.potential is not None:
                self._potentials.append((weight, entry.potential))
                self._terms.setdefault(SHAPING, [(1.0, self._shaping)])
            elif entry.make is not None:
                self._terms.setdefault(entry.name, []).append((entry.sign * weight, entry.make(config, gamma)))
        self.names = tuple(self._terms)
        self.needs_latency = "rent" in self.names and getattr(config, "rent_unit", None) is terms.RentUnit.latency
        self.needs = frozenset(plan for entry in chosen.values() for plan in entry.needs)
        self._memories = [pay for entries in self._terms.values() for _, pay in entries if isinstance(pay, Memory)]

    def components(self, signals: StepSignals) -> dict[str, FloatArray]:
        return {name: self._component(name, signals) for name in self._terms}

    def _component(self, name: str, signals: StepSignals) -> FloatArray:
        first, *others = (_per_host(name, weight, pay(signals), len(signals.op_N)) for weight, pay in self._terms[name])
        return np.stack([first, *others]).sum(axis=0) if others else first

    def _shaping(self, signals: StepSignals) -> FloatArray:
        before_N = self.potential(signals.accuracy_before_N, signals.before)
        after_N = self.potential(signals.accuracy_N, signals.after)
        return terms.shaping(before_N, after_N, self.gamma, signals)

    def potential(self, accuracy_N: FloatArray, state: SlotState) -> FloatArray:
        """Return the shaping potential Phi of states `[N]` [pp]."""
        parts = [weight * potential(accuracy_N, state) for weight, potential in self._potentials]
        return sum(parts, start=np.zeros(len(accuracy_N), dtype=np.float32)).astype(np.float32)

    def initial_potential(self, accuracy_N: FloatArray, state: SlotState) -> FloatArray:
        return (self.gamma * self.potential(accuracy_N, state)).astype(np.float32)

    def discounted_potential(self, accuracy_N: FloatArray, state: SlotState) -> FloatArray:
        return ((1 - self.gamma) * self.potential(accuracy_N, state)).astype(np.float32)

    def reset(self) -> None:
        for memory in self._memories:
            memory.reset()


def _per_host(name: str, weight: float, paid: Any, hosts: int) -> FloatArray:
    """Return what a term pays each host `[N]`, after checking that it pays every host a finite number."""
    paid_N = np.asarray(paid)
    if paid_N.shape != (hosts,) or paid_N.dtype.kind not in "biuf":
        got = f"an array of shape {paid_N.shape}" if isinstance(paid, np.ndarray) else f"{type(paid).__name__} {paid!r}"
        raise RewardError(
            f"the reward term {name} must return one number per host, an array [{hosts}], got {got}: correct its code"
        )
    if not np.isfinite(paid_N).all():
        faulty = ", ".join(map(str, np.flatnonzero(~np.isfinite(paid_N))))
        raise RewardError(f"the reward term {name} is not finite for hosts {faulty}: correct its code")
    return (weight * paid_N).astype(np.float32)


class PerHost(Reward):
    """Several modes, each for some of the hosts; each host is paid exactly as in a run of its mode alone."""

    def __init__(self, parts: Mapping[str, Reward], counts: Mapping[str, int]) -> None:
        self._parts, self.groups, start = parts, {}, 0
        for name, count in counts.items():
            self.groups[name] = slice(start, start + count)
            start += count
        self.names = tuple(dict.fromkeys(name for part in parts.values() for name in part.names))
        self.needs = frozenset(plan for part in parts.values() for plan in part.needs)
        self.needs_latency = any(part.needs_latency for part in parts.values())

    def components(self, signals: StepSignals) -> dict[str, FloatArray]:
        paid = {name: np.zeros(len(signals.op_N), dtype=np.float32) for name in self.names}
        for mode, rows in self.groups.items():
            for name, paid_N in self._parts[mode].components(signals.of(rows)).items():
                paid[name][rows] = paid_N
        return paid

    def initial_potential(self, accuracy_N: FloatArray, state: SlotState) -> FloatArray:
        parts = [self._parts[mode].initial_potential(accuracy_N[rows], state.of(rows)) for mode, rows in self.groups.items()]
        return np.concatenate(parts)

    def discounted_potential(self, accuracy_N: FloatArray, state: SlotState) -> FloatArray:
        parts = [self._parts[mode].discounted_potential(accuracy_N[rows], state.of(rows)) for mode, rows in self.groups.items()]
        return np.concatenate(parts)

    def reset(self) -> None:
        for part in self._parts.values():
            part.reset()
