"""The designed baseline of a learned policy: a rule says when to plant a seed, regressions say where and what."""

# N hosts, S slots, K blueprints, C choices = 2 + S * K

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch

from esper.agent.bandit import Bandit, BanditConfig
from esper.agent.base import BoolArray, FloatArray, IntArray
from esper.agent.scripted.base import compose, slot_features, step_number
from esper.agent.scripted.rule import accuracy, underway
from esper.buffer.base import Buffer
from esper.buffer.transition import Decision, State
from esper.env.actions import EnvSpec, Head, Observation, Op
from esper.ranges import check_ranges

NO_SEED = 0
"""Number of a seed that is not there; others are numbered like the choices that plant them."""


@dataclass(kw_only=True, slots=True)
class ReactBanditConfig(BanditConfig):
    """A contextual bandit that looks at a host whenever its accuracy has fallen, and plants the one seed with the highest
    predicted return, or none. It can look again when the seed has been tried, and keep or replace it."""

    needs_hosts: ClassVar[bool] = True
    drop: float = 4.0
    """Fall in accuracy that triggers a decision, from the highest value since the last decision, > 0 [pp]. Higher: later
    reactions, fewer false alarms."""
    review: int = 0
    """Age at which a seed is reviewed: kept, replaced by another one, or removed, at least 0 [host epochs]; 0: every seed is
    kept. Higher: more is known about the seed, less time is left for another one."""

    def __post_init__(self) -> None:
        BanditConfig.__post_init__(self)
        check_ranges("agent", self, {"(0, inf)": ["drop"], "[0, inf]": ["review"]})

    def build(self, spec: EnvSpec, *, seed: int, buffer: Buffer | None = None) -> "ReactBandit":
        return ReviewingBandit(self, spec) if self.review else ReactBandit(self, spec)


class ReactBandit(Bandit):
    """See `ReactBanditConfig`."""

    repeats: ClassVar[bool] = True

    def __init__(self, config: ReactBanditConfig, spec: EnvSpec, more: tuple[str, ...] = ()) -> None:
        Bandit.__init__(self, config, spec, more=more)
        self.drop, self.review = config.drop, config.review

    def _due(self, observation: Observation, level_N: FloatArray, undecided_N: BoolArray) -> tuple[BoolArray, FloatArray]:
        """Return the hosts whose accuracy has fallen; the level is its highest value since the last decision [pp]."""
        now_N = accuracy(observation, self.spec)
        level_N = np.fmax(level_N, now_N)
        due_N = undecided_N & (level_N - now_N >= self.drop) & ~underway(observation, self.spec).any(axis=1)
        return due_N, np.where(due_N, now_N, level_N).astype(np.float32)


class ReviewingBandit(ReactBandit):
    """A `ReactBandit` that reviews every seed at a certain age. To keep a seed is a choice of its own, the last one."""

    def __init__(self, config: ReactBanditConfig, spec: EnvSpec) -> None:
        ReactBandit.__init__(self, config, spec, more=("keep",))

    def start(self, num_hosts: int) -> State:
        """Return the state of `ReactBandit`, the seed that is tried `[N]`, whether it is to be kept `[N]`, and what could have
        been planted instead `[N, C]`."""
        alternatives_NC = torch.zeros(num_hosts, len(self.names), dtype=torch.bool)
        none_N = torch.zeros(num_hosts, dtype=torch.bool)
        return ReactBandit.start(self, num_hosts) | {
            "seed": none_N.long(),
            "kept": none_N,
            "alternatives": alternatives_NC,
        }

    def act(
        self,
        observation: Observation,
        state: State,
        *,
        is_init: BoolArray,
        uniform: npt.NDArray[np.float64],
        greedy: bool = False,
    ) -> Decision:
        """See `Controller`."""
        seed_N = self._tried(observation, state["seed"].numpy())
        kept_N = state["kept"].numpy() & (seed_N != NO_SEED)
        choice_N, kept_N = self._review(observation, state, uniform, seed_N, kept_N)
        choice_N, level_N = self._decide(observation, state | {"choice": torch.from_numpy(choice_N)}, uniform)
        action_NH = self._try_out(observation, choice_N, seed_N, kept_N)
        plants_N = action_NH[:, Head.OP] == Op.GERMINATE
        alternatives_NC = np.where(plants_N[:, None], self._legal(observation), state["alternatives"].numpy())
        return Decision(
            action=action_NH,
            state=self._next(action_NH, choice_N, level_N)
            | {
                "seed": torch.from_numpy(np.where(plants_N, choice_N, seed_N)),
                "kept": torch.from_numpy(kept_N),
                "alternatives": torch.from_numpy(alternatives_NC),
            },
        )

    def _slot(self, seed_N: IntArray) -> IntArray:
        """Return the slots of seeds `[N]`, the first one where there is no seed."""
        return np.maximum(seed_N - 1, 0) // len(self.spec.blueprint_names)

    def _tried(self, observation: Observation, seed_N: IntArray) -> IntArray:
        """Return the seeds that are still there, neither fossilized nor gone `[N]`."""
        there_N = underway(observation, self.spec)[np.arange(len(seed_N)), self._slot(seed_N)]
        return np.where(there_N & (step_number(observation, self.spec) > 0), seed_N, NO_SEED)

    def _review(
        self, observation: Observation, state: State, uniform_NH: npt.NDArray[np.float64], seed_N: IntArray, kept_N: BoolArray
    ) -> tuple[IntArray, BoolArray]:
        """Return the choices `[N]` and which seeds are to be kept `[N]`, new where a seed is old enough to be reviewed."""
        choice_N, row_N = state["choice"].numpy(), np.arange(len(seed_N))
        age_N = slot_features(observation, self.spec, "seed_age")[row_N, self._slot(seed_N)] * self.spec.num_steps
        removable_N = observation.legal_slots[row_N, Op.PRUNE, self._slot(seed_N)]
        due_N = (seed_N != NO_SEED) & (choice_N == seed_N) & ~kept_N & removable_N & (np.rint(age_N) >= self.review)
        if not due_N.any():
            return choice_N, kept_N
        legal_NC = state["alternatives"].numpy().copy()
        legal_NC[row_N, seed_N] = False
        legal_NC[:, [0, len(self.names) - 1]] = True
        keep = len(self.names) - 1
        chosen_N = self._choose(observation, uniform_NH, due_N, legal_NC, keep)
        keeps_N = due_N & (chosen_N == keep)
        return np.where(due_N & ~keeps_N, chosen_N, choice_N), kept_N | keeps_N

    def _try_out(self, observation: Observation, choice_N: IntArray, seed_N: IntArray, kept_N: BoolArray) -> IntArray:
        """Return actions that remove seeds other than the choice, and plant, advance and, once reviewed, keep the choice."""
        action_NH, slot_N = self._carry_out(observation, choice_N), self._slot(seed_N)
        removable_N = observation.legal_slots[np.arange(len(seed_N)), Op.PRUNE, slot_N]
        leaves_N = (seed_N != NO_SEED) & (seed_N != choice_N)
        early_N = (action_NH[:, Head.OP] == Op.FOSSILIZE) & ~kept_N
        op_N = np.where(leaves_N & removable_N, Op.PRUNE, Op.WAIT)
        instead_NH = compose(observation, self.spec, op_N, slot_N * (op_N == Op.PRUNE))
        return np.where((leaves_N | early_N)[:, None], instead_NH, action_NH)

    def _legal(self, observation: Observation) -> BoolArray:
        """Return which choices are legal where no seed is tried `[N, C]`."""
        planting_NC = ReactBandit._legal(self, observation)
        return np.concatenate([planting_NC, np.zeros((len(planting_NC), 1), np.bool_)], axis=1)
