"""A bandit that chooses a schedule without looking at the host: which seed, where and when.

It is the baseline that shows whether a task asks for decisions at all, or for one good schedule that a better search would find.
"""

# N hosts, S slots, K blueprints, C seeds = S * K, T times, A schedules = 1 + C * T, F features, n schedules played

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from esper.agent.base import AgentConfig, Learner, check_choices, check_time, check_twins
from esper.agent.bayesian import Float64Array, Posterior, fit
from esper.agent.reading import choice_names, legal_choices, offered, step_number
from esper.agent.scripted.base import plant_and_keep
from esper.buffer.base import Buffer
from esper.buffer.transition import Decision, State, Transition
from esper.env.spec import EnvSpec, Observation
from esper.lifecycle.stages import BoolArray, FloatArray, IntArray
from esper.ranges import check_ranges
from esper.seeding import stream

SIMILAR_TIMES = 4.0
"""Difference between two times at which the correlation of their effects has fallen to 1/e [host epochs]."""
NOTHING = 0
"""The schedule that plants nothing."""


@dataclass(kw_only=True, slots=True)
class ScheduleBanditConfig(AgentConfig):
    """A bandit that learns one schedule for all hosts without looking at them: plant this blueprint in this slot at this time, or
    nothing. The seed advances and is kept as soon as possible, and is planted again if it is lost. In training each host plays a
    schedule of its own, drawn by Thompson sampling; in an evaluation all play the one with the highest expected return."""

    latest: int | None = None
    """Latest time to germinate, at least 0; null means the end of the episode [host epochs]. Lower: fewer schedules to choose
    from."""
    twins: int = 4
    """Hosts that share instance, initial weights and data order, and play different schedules, at least 1; hosts must be a
    multiple of it. The regression compares twins only, so that differences between instances add no noise; 1 compares all hosts.
    Higher: less noise, fewer instances."""
    memory: int = 8192
    """Number of most recent hosts that the regression uses, at least 2. Higher: better predictions, larger checkpoints."""

    @property
    def explores(self) -> bool:
        return True

    def __post_init__(self) -> None:
        AgentConfig.__post_init__(self)
        check_ranges("agent", self, {"[0, inf]": ["latest"], "[1, inf)": ["twins"], "[2, inf]": ["memory"]})

    @property
    def num_twins(self) -> int:
        return self.twins

    def acting(self) -> "ScheduleBanditConfig":
        return replace(self, twins=1, latest=None)

    def check_run(self, *, blueprints: Sequence[str], steps: int, hosts: int, incubates: bool = True) -> None:
        if self.latest is not None:
            check_time(f"agent.latest={self.latest}", self.latest, steps)
        check_twins(hosts, self.twins)

    def build(self, spec: EnvSpec, *, seed: int, buffer: Buffer | None = None) -> "ScheduleBandit":
        return ScheduleBandit(self, spec, seed=seed)


class ScheduleBandit(Learner):
    """See `ScheduleBanditConfig`. It explores between `begin` and `learn` only.

    The return of a schedule is modelled as a sum of effects of its slot, its blueprint, the pair of them, its time, and the twins
    that play it, where near times have similar effects: a Bayesian linear regression. Root seed, number of the update and the
    returns so far determine the draws.
    """

    def __init__(self, config: ScheduleBanditConfig, spec: EnvSpec, *, seed: int) -> None:
        self.config, self.spec, self.seed = config, spec, seed
        times = spec.num_steps if config.latest is None else min(config.latest + 1, spec.num_steps)
        self.names = choice_names(spec)
        """Name of each choice: nothing, then each blueprint in each slot."""
        seeds = len(self.names) - 1
        self.seed_A = np.concatenate([[0], 1 + np.repeat(np.arange(seeds), times)])
        """Seed of each schedule, by its place in `names`."""
        self.at_A = np.concatenate([[0], np.tile(np.arange(times), seeds)])
        """Time of each schedule [host epochs]."""
        self._x_AF = features(self.seed_A, self.at_A, len(spec.slot_names), len(spec.blueprint_names), times)
        self.played_n, self.return_n = np.zeros(0, np.int64), np.zeros(0, np.float32)
        """Schedules that training hosts played, the oldest first, and their returns."""
        self.group_n = np.zeros(0, np.int64)
        """Number of each of these hosts' group of twins; all 0 without twins."""
        self.tried = 0
        self._learn_effects()
        self._trial_N: IntArray | None = None
        """Schedule of each host in this update; None until the first observation, and outside of an update."""
        self._return_N: FloatArray | None = None
        self._weight = 1.0
        """Discount of the next step."""

    # ---- acting

    def start(self, num_hosts: int) -> State:
        """Return the schedule of each host `[N]`."""
        return {"schedule": torch.zeros(num_hosts, dtype=torch.int64)}

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
        step_N = step_number(observation, self.spec)
        schedule_N = np.where(step_N == 0, self._choose(observation, step_N == 0), state["schedule"].numpy())
        place_N = np.maximum(self.seed_A[schedule_N] - 1, 0)
        slot_N, kind_N = np.divmod(place_N, len(self.spec.blueprint_names))
        due_N = (step_N >= self.at_A[schedule_N]) & offered(observation, self.spec)[np.arange(len(kind_N)), kind_N]
        action_NH = plant_and_keep(observation, self.spec, slot_N, kind_N, plants_N=due_N, acts_N=schedule_N != NOTHING)
        return Decision(action=action_NH, state={"schedule": torch.from_numpy(schedule_N)})

    def _choose(self, observation: Observation, new_N: BoolArray) -> IntArray:
        """Return the schedule of each new host `[N]`: the best one, or while exploring, the best by a draw from the posterior."""
        if not new_N.any():
            return np.full(len(new_N), NOTHING)
        may_NA = legal_choices(observation, self.spec)[:, self.seed_A]
        if self._return_N is None:
            return np.where(may_NA, self.expected_A, -np.inf).argmax(axis=1)
        if self._trial_N is not None:
            return self._trial_N
        rng = stream(self.seed, "schedule_bandit", self.tried)
        drawn_NA = self._posterior.sample(self._x_AF, rng, len(new_N))
        self._trial_N = trial_N = np.where(may_NA, drawn_NA, -np.inf).argmax(axis=1)
        return trial_N

    # ---- learning

    def begin(self, update: int) -> None:
        """Explore in the next episode."""
        self._trial_N, self._return_N, self._weight = None, np.zeros(self.spec.num_hosts, np.float32), 1.0

    def observe(self, transition: Transition) -> None:
        """Add the rewards of a step to the returns."""
        assert self._return_N is not None, "call begin() first"
        self._return_N += self._weight * transition.earned_N
        self._weight *= self.config.gamma

    def learn(self, progress: float) -> dict[str, float]:
        """Learn the effects from all schedules in memory."""
        assert self._return_N is not None, "call begin() first"
        assert self._trial_N is not None, "no host has acted since begin()"
        finite_N, hosts, twins = np.isfinite(self._return_N), len(self._return_N), self.config.twins
        group_N = (self.tried * hosts + np.arange(hosts)) // twins if twins > 1 else np.zeros(hosts, np.int64)
        self.played_n = np.concatenate([self.played_n, self._trial_N[finite_N]])[-self.config.memory :]
        self.return_n = np.concatenate([self.return_n, self._return_N[finite_N]])[-self.config.memory :]
        self.group_n = np.concatenate([self.group_n, group_N[finite_N]])[-self.config.memory :]
        self._trial_N, self._return_N = None, None
        self.tried += 1
        self._learn_effects()
        return {"bandit/decisions": float(len(self.played_n)), "search/best_return": float(self.expected_A.max())}

    def _learn_effects(self) -> None:
        x_nF, y_n1 = self._x_AF[self.played_n], self.return_n[:, None].astype(np.float64)
        self._posterior: Posterior = fit(
            within(x_nF, self.group_n), within(y_n1, self.group_n)[:, 0], groups=len(np.unique(self.group_n))
        )
        expected_A = self._posterior.predict(self._x_AF)
        if len(self.played_n):
            expected_A += y_n1.mean() - self._posterior.predict(x_nF).mean()
        tried_A = np.isin(self.seed_A, self.seed_A[self.played_n]) & (self.at_A <= self.at_A[self.played_n].max(initial=0))
        tried_A |= self.seed_A == NOTHING
        self.expected_A: Float64Array = np.where(tried_A, expected_A, -np.inf)
        """Expected return of each schedule; -inf if no host in memory had its seed, or any seed as late, except for nothing."""

    # ---- state

    def state_dict(self) -> dict[str, Any]:
        """Return the seeds by name, and the schedules in memory, from which effects are learned."""
        memory = {"seed": self.seed_A[self.played_n], "at": self.at_A[self.played_n], "return": self.return_n}
        memory |= {"group": self.group_n}
        return {"names": list(self.names), "tried": self.tried} | {name: torch.tensor(part) for name, part in memory.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned.

        Raises:
            ValueError: there are other slots or blueprints.
        """
        check_choices(state["names"], self.names)
        times = int(self.at_A.max()) + 1
        kept_n = state["at"] < times  # schedules that are too late here say nothing about the others
        seed_n, at_n = state["seed"][kept_n].numpy(), state["at"][kept_n].numpy()
        self.played_n = np.where(seed_n > 0, 1 + (seed_n - 1) * times + at_n, NOTHING)
        self.return_n, self.group_n = state["return"][kept_n].numpy(), state["group"][kept_n].numpy()
        self.tried = state["tried"]
        self._learn_effects()

    def summary(self) -> list[tuple[str, str]]:
        """Return the schedule with the highest expected return as it is typed on the command line."""
        best = int(self.expected_A.argmax())
        if best == NOTHING:
            return [("best schedule", "agent=wait")]
        slot, kind = divmod(int(self.seed_A[best]) - 1, len(self.spec.blueprint_names))
        name = self.spec.blueprint_names[kind]
        return [("best schedule", f"agent=schedule agent.blueprint={name} agent.slot={slot} agent.at={self.at_A[best]}")]


def features(seed_A: IntArray, at_A: IntArray, slots: int, blueprints: int, times: int) -> Float64Array:
    """Return the design matrix of the schedules `[A, F]`, scaled so that weights are independent a priori, each of variance 1.

    The effects of all schedules then have the same variance, 4, that of planting nothing included.

    Args:
        seed_A: seed of each schedule: 0 for none, else 1 + slot * blueprints + blueprint.
        at_A: time of each schedule, from 0 to times - 1 [host epochs].
    """
    slot_A, kind_A = np.divmod(seed_A - 1, blueprints)
    between_TT = np.abs(np.subtract.outer(np.arange(times), np.arange(times)))
    near_TT = np.linalg.cholesky(np.exp(-between_TT / SIMILAR_TIMES))
    parts = (np.eye(slots)[slot_A], np.eye(blueprints)[kind_A], np.eye(slots * blueprints)[seed_A - 1], near_TT[at_A])
    planted_A1 = (seed_A != NOTHING)[:, None]
    return np.concatenate([2.0 * ~planted_A1, *(planted_A1 * part for part in parts)], axis=1).astype(np.float64)


def within(values_nF: Float64Array, group_n: IntArray) -> Float64Array:
    """Return values without the mean of their group `[n, F]`."""
    _, place_n, count_g = np.unique(group_n, return_inverse=True, return_counts=True)
    sum_gF = np.zeros((len(count_g), values_nF.shape[1]))
    np.add.at(sum_gF, place_n, values_nF)
    return values_nF - (sum_gF / count_g[:, None])[place_n]
