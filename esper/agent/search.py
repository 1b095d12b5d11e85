"""Search: a learner that tries one candidate per update on the same hosts, and plays the best one so far."""

from abc import abstractmethod
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from esper.agent.base import Learner, Revisable
from esper.agent.scripted.base import Scripted
from esper.buffer.transition import Decision, State, Transition
from esper.env.spec import EnvSpec, Observation
from esper.lifecycle.stages import BoolArray, FloatArray, IntArray

Candidate = TypeVar("Candidate")


class Search(Learner, Generic[Candidate]):
    """Plays the next candidate between `begin` and `learn`, otherwise the best one so far. The first candidate grows nothing.

    The root seed, the number of candidates tried and the best one so far determine the next, so that a search resumes exactly.
    The config of a search sets `one_episode`.
    """

    def __init__(self, spec: EnvSpec, *, seed: int, nothing: Candidate, gamma: float = 1.0) -> None:
        """
        Args:
            spec: sizes and names of observations and actions.
            seed: root seed of the policy.
            nothing: the candidate that grows nothing.
            gamma: discount per step.
        """
        self.spec, self.seed, self.gamma = spec, seed, gamma
        self.tried = 0
        self.best_return: float | None = None
        self.best, self._trial = nothing, nothing
        self._player = self.player(nothing)
        self._return_N: FloatArray | None = None
        """Discounted returns of the candidate being tried; None outside of an update."""
        self._weight = 1.0
        """Discount of the next step."""
        self._undrawn = False
        """True until the first observation shows which slots and blueprints a candidate can use."""

    @abstractmethod
    def draw(self, first: Observation) -> Candidate:
        """Return the next candidate for hosts with this first observation."""

    @abstractmethod
    def player(self, candidate: Candidate) -> Scripted:
        """Return a controller that plays a candidate."""

    # ---- acting

    def start(self, num_hosts: int) -> State:
        """Return the initial state of the candidate that is played."""
        return self._player.start(num_hosts)

    def act(
        self,
        observation: Observation,
        state: State,
        *,
        is_init: BoolArray,
        uniform: npt.NDArray[np.float64],
        greedy: bool = False,
    ) -> Decision:
        """See `Controller`. Before the first try, it waits."""
        if self._undrawn:
            self._undrawn = False
            if self.tried:
                self._trial = self.draw(observation)
            self._player = self.player(self._trial)
            state = self._player.start(len(is_init))
        return self._player.act(observation, state, is_init=is_init, uniform=uniform, greedy=greedy)

    def revise(self, observation: Observation, before: State, decision: Decision, taken_NH: IntArray) -> State:
        """Revise the state of the candidate that is played; see `Revisable`."""
        if isinstance(self._player, Revisable):
            return self._player.revise(observation, before, decision, taken_NH)
        return decision.state

    # ---- searching

    def begin(self, update: int) -> None:
        """Try another candidate in the next episode."""
        self._return_N, self._undrawn, self._weight = np.zeros(self.spec.num_hosts, np.float32), True, 1.0

    def observe(self, transition: Transition) -> None:
        """Add the rewards of a step to the returns."""
        assert self._return_N is not None, "call begin() first"
        self._return_N += self._weight * transition.earned_N
        self._weight *= self.gamma

    def learn(self, progress: float) -> dict[str, float]:
        """Keep the candidate just tried if its mean return is the highest; ties keep the earlier one."""
        assert self._return_N is not None, "call begin() first"
        mean = float(self._return_N.mean(dtype=np.float64))
        improved = bool(np.isfinite(mean)) and (self.best_return is None or mean > self.best_return)
        if improved:
            self.best_return, self.best = mean, self._trial
        self.play(self.best)
        self.tried, self._return_N = self.tried + 1, None
        best = float("nan") if self.best_return is None else self.best_return
        return {"search/best_return": best, "search/improved": float(improved)}

    def play(self, best: Candidate) -> None:
        """Set the best candidate, and play it."""
        self.best, self._player = best, self.player(best)

    # ---- state

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint, without the best candidate."""
        return {"tried": self.tried, "best_return": self.best_return}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore all but the best candidate from a state that `state_dict` returned."""
        self.tried, self.best_return = state["tried"], state["best_return"]
