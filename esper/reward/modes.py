"""Reward modes: which terms are paid, and with which weight."""

# N hosts

import math
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from esper.population.lifecycle import Op, SlotState
from esper.population.plans import Plan
from esper.reward import terms
from esper.reward.signals import StepSignals

FloatArray = npt.NDArray[np.float32]


@dataclass(kw_only=True, slots=True)
class RewardConfig:
    """A reward mode."""

    def build(self, *, gamma: float) -> "Reward":
        """The reward function.

        Args:
            gamma: the agent's discount per step, which potential-based shaping needs.
        """
        raise TypeError(f"{type(self).__name__} does not say what it pays: define build(gamma)")


class Reward:
    """Pays N hosts for one step."""

    names: tuple[str, ...]
    """Names of the terms, in order."""
    needs: frozenset[Plan] = frozenset()
    """Counterfactuals it must be told after every step, beside those of leave-one-out."""
    needs_latency: bool = False
    """Must it be told measured latency? It is then timed once, when the run begins."""

    def components(self, signals: StepSignals) -> dict[str, FloatArray]:
        """Every term of the step, weighted, by name: `[N]` each [pp]."""
        raise TypeError(f"{type(self).__name__} does not say what it pays: define components(signals)")

    def __call__(self, signals: StepSignals) -> tuple[FloatArray, dict[str, FloatArray]]:
        """The reward `[N]` [pp], and the terms it is the sum of."""
        components = self.components(signals)
        return np.stack(list(components.values())).sum(axis=0), components


def _check_weights(config: RewardConfig) -> None:
    for entry in fields(config):
        value = getattr(config, entry.name)
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"reward.{entry.name} must be a finite number of at least 0, got {value}: 0 drops the term")


@dataclass(kw_only=True, slots=True)
class ShapedConfig(RewardConfig):
    """Dense pay: accuracy and contribution as they come, rent as it is due. A weight of 0 drops a term."""

    attribution: float = 0.002
    """Points a host epoch for each percentage point a seed contributes, at least 0. Higher favours growing early."""
    rent: float = 0.5
    """Points a host epoch for one host-size of seed parameters, at least 0. Higher favours small seeds, or none."""
    accuracy_potential: float = 1.0
    """Weight of validation accuracy in the shaping potential, at least 0: pays the final accuracy as it grows."""
    stage_potential: float = 0.2
    """Weight of the seeds' stages in the shaping potential, at least 0: pays a life brought forward, and takes it back."""
    germinate_cost: float = 0.2
    """Points for germinating a seed, at least 0. Higher makes a controller start fewer."""
    prune_cost: float = 0.1
    """Points for removing a seed, at least 0."""
    terminal: float = 1.0
    """Points at the end for each percentage point of accuracy of the committed network, at least 0."""

    def __post_init__(self) -> None:
        _check_weights(self)

    def build(self, *, gamma: float) -> "ShapedReward":
        return ShapedReward(self, gamma)


class ShapedReward(Reward):
    """See `ShapedConfig`."""

    names = ("attribution", "shaping", "rent", "germinate", "prune", "terminal")

    def __init__(self, config: ShapedConfig, gamma: float) -> None:
        self.config, self.gamma = config, gamma

    def components(self, signals: StepSignals) -> dict[str, FloatArray]:
        config = self.config
        before = self._potential(signals.accuracy_before_N, signals.before)
        after = self._potential(signals.accuracy_N, signals.after)
        return {
            "attribution": config.attribution * terms.attribution(signals),
            "shaping": terms.shaping(before, after, self.gamma, signals),
            "rent": -config.rent * terms.rent(signals),
            "germinate": -config.germinate_cost * terms.operations(signals, Op.GERMINATE),
            "prune": -config.prune_cost * terms.operations(signals, Op.PRUNE),
            "terminal": config.terminal * terms.terminal(signals),
        }

    def _potential(self, accuracy_N: FloatArray, state: SlotState) -> FloatArray:
        weight, stages = self.config.accuracy_potential, terms.stage_potential(state)
        return (weight * accuracy_N + self.config.stage_potential * stages).astype(np.float32)


@dataclass(kw_only=True, slots=True)
class SparseConfig(RewardConfig):
    """Pay at the end only: accuracy of what was committed, minus rent for its parameters."""

    rent: float = 10.0
    """Points at the end for one host-size of seed parameters still held, at least 0."""
    terminal: float = 1.0
    """Points at the end for each percentage point of accuracy of the committed network, at least 0."""

    def __post_init__(self) -> None:
        _check_weights(self)

    def build(self, *, gamma: float) -> "SparseReward":
        return SparseReward(self)


class SparseReward(Reward):
    """See `SparseConfig`."""

    names = ("rent", "terminal")

    def __init__(self, config: SparseConfig) -> None:
        self.config = config

    def components(self, signals: StepSignals) -> dict[str, FloatArray]:
        due = np.float32(signals.last)
        return {
            "rent": -self.config.rent * due * terms.rent(signals),
            "terminal": self.config.terminal * terms.terminal(signals),
        }
