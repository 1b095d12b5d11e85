"""Contextual bandits: they look at a host once, when it is new or when it gets worse, and plant one seed or none.

For every choice they predict the return from then on by a regression on the observation of that moment. They are the
baselines that show whether a task asks for more than one decision at the start, and for more than a rule about when.
"""

# N hosts, S slots, K blueprints, C choices = 1 + S * K, F features, n decisions, T steps

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from esper.agent.base import AgentConfig, Learner, check_choices
from esper.agent.reading import choice_names, legal_choices, slot_features, step_number
from esper.agent.regression import Model, Regression, choose
from esper.agent.scripted.base import UniformArray, draw, plant_and_keep
from esper.buffer.base import Buffer
from esper.buffer.transition import Decision, State, Transition
from esper.env.actions import Head, Op
from esper.env.spec import EnvSpec, Observation
from esper.lifecycle.stages import BoolArray, FloatArray, IntArray
from esper.ranges import check_ranges

SWEEPS = 5
"""Number of refits to the returns of the best later decisions (sweeps of fitted Q iteration)."""
UNDECIDED = -1
"""Marks a host without a current choice: a new one, or one that may decide again."""


@dataclass(kw_only=True, slots=True)
class BanditConfig(AgentConfig):
    """A contextual bandit that looks at each new host once, and plants the one seed with the highest predicted return, or none.
    The seed advances and is kept as soon as possible. Predictions are regressions on the first observation, one for each slot and
    blueprint."""

    seeded: ClassVar[bool] = False
    exploration: float = 0.5
    """Share of decisions in training that are random once each choice was tried, in [0, 1]; none in an evaluation. Higher:
    predictions improve faster, returns in training are lower."""
    model: Model = Model.ridge
    """Regression: ridge (linear, fast), or forest (of regression trees, for returns that depend on combinations of features;
    fitting takes seconds per update)."""
    memory: int = 8192
    """Number of newest decisions that the regressions use, at least 2. Higher: better predictions, larger checkpoints."""

    @property
    def explores(self) -> bool:
        return True  # with exploration=0, too: as long as any choice was never tried, choices are random

    def __post_init__(self) -> None:
        AgentConfig.__post_init__(self)
        check_ranges("agent", self, {"[0, 1]": ["exploration"], "[2, inf]": ["memory"]})

    def build(self, spec: EnvSpec, *, seed: int, buffer: Buffer | None = None) -> "Bandit":
        return Bandit(self, spec)


@dataclass(slots=True)
class DecisionMemory:
    """Decisions, the oldest first."""

    seen: FloatArray
    """Contexts `[n, F]`."""
    choice: IntArray
    """Choices `[n]`."""
    reward: FloatArray
    """Discounted sum of rewards until the next decision on the same host, or to the end of the episode `[n]`."""
    going: FloatArray
    """Discounted return from the decision to the end of the episode `[n]`."""
    next_seen: FloatArray
    """Contexts of the next decision on the same host `[n, F]`; NaN if none follows."""
    next_legal: BoolArray
    """Choices that were legal then `[n, C]`."""
    discount: FloatArray
    """Weight of the return from then on `[n]`: `agent.gamma` to the power of the steps in between; 1 if none follows."""
    legal: BoolArray
    """Choices that were legal `[n, C]`."""

    @classmethod
    def empty(cls, features: int, choices: int) -> "DecisionMemory":
        """Return a memory of no decisions."""
        none, seen, legal = np.zeros(0, np.float32), np.zeros((0, features), np.float32), np.zeros((0, choices), np.bool_)
        return cls(seen, np.zeros(0, np.int64), none, none, seen, legal, none, legal)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays by name."""
        return {part.name: getattr(self, part.name) for part in fields(self)}

    def then(self, new: "DecisionMemory", most: int) -> "DecisionMemory":
        """Return these decisions and newer ones, at most the newest `most`."""
        return DecisionMemory(**{name: np.concatenate([old, getattr(new, name)])[-most:] for name, old in self.arrays().items()})


@dataclass(slots=True)
class Decisions:
    """The decisions and rewards of one update."""

    gamma: float = 1.0
    """Discount per step."""
    decisions: list[tuple[int, IntArray, FloatArray, BoolArray, IntArray]] = field(default_factory=list)
    """Step, hosts `[n]`, their contexts `[n, F]`, legal choices `[n, C]` and choices `[n]`."""
    reward_TN: list[FloatArray] = field(default_factory=list)

    def memory(self) -> DecisionMemory:
        """Return all decisions, without those with a non-finite return."""
        going_TN = np.stack([*self.reward_TN, np.zeros_like(self.reward_TN[0])])
        for step in reversed(range(len(self.reward_TN))):
            going_TN[step] += self.gamma * going_TN[step + 1]
        seen, legal, choice = (np.concatenate([one[part] for one in self.decisions]) for part in (2, 3, 4))
        hosts = np.concatenate([one[1] for one in self.decisions])
        steps = np.concatenate([np.full(len(one[1]), one[0]) for one in self.decisions])
        order = np.lexsort((steps, hosts))
        following = np.full(len(hosts), -1)
        following[order[:-1]] = np.where(hosts[order[:-1]] == hosts[order[1:]], order[1:], -1)
        going = going_TN[steps, hosts]
        until = np.where(following < 0, len(self.reward_TN), steps[following])
        next_seen = np.where(following[:, None] < 0, np.float32(np.nan), seen[following])
        discount: FloatArray = np.where(following < 0, 1.0, self.gamma ** (until - steps)).astype(np.float32)
        reward: FloatArray = (going - discount * going_TN[until, hosts]).astype(np.float32)
        whole = DecisionMemory(seen, choice, reward, going, next_seen, legal[following], discount, legal)
        return DecisionMemory(**{name: part[np.isfinite(going)] for name, part in whole.arrays().items()})


class Bandit(Learner):
    """See `BanditConfig`. It explores between `begin` and `learn` only."""

    repeats: ClassVar[bool] = False
    """If true, the bandit decides again once a seed is kept, or after it chose none."""

    def __init__(self, config: BanditConfig, spec: EnvSpec, features: Sequence[int] | None = None) -> None:
        """
        Args:
            config: exploration and memory.
            spec: sizes and names of observations and actions.
            features: columns of the host features from which it predicts; None for the whole observation.
        """
        self.config, self.spec, self._features = config, spec, features
        self.names = choice_names(spec)
        """Name of each choice."""
        self.models: list[Regression | None] = [None] * len(self.names)
        """Prediction of each choice; None where it was never tried."""
        whole = [*spec.feature_names, *(f"{name} of {slot}" for slot in spec.slot_names for name in spec.slot_feature_names)]
        self._columns = whole if features is None else [spec.feature_names[rank] for rank in features]
        """Name of each feature of a context."""
        self._memory = DecisionMemory.empty(len(self._columns), len(self.names))
        self._tried_C = np.zeros(len(self.names), np.bool_)
        """Choices that were ever tried, also if no try of them is left in memory."""
        self._record: Decisions | None = None
        """The update so far; None outside of an update."""

    # ---- acting

    def start(self, num_hosts: int) -> State:
        """Return the choice for each host `[N]`, and what `_due` remembers of it `[N]`."""
        return {"choice": torch.full((num_hosts,), UNDECIDED), "level": torch.full((num_hosts,), torch.nan)}

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
        new_N = step_number(observation, self.spec) == 0
        choice_N = np.where(new_N | self._done(observation, state["choice"].numpy()), UNDECIDED, state["choice"].numpy())
        level_N = np.where(new_N, np.float32(np.nan), state["level"].numpy())
        undecided_N = choice_N == UNDECIDED
        if self.repeats:  # where no seed can be planted, there is nothing to decide, and nothing to learn about planting nothing
            undecided_N &= legal_choices(observation, self.spec)[:, 1:].any(axis=1)
        due_N, level_N = self._due(observation, level_N, undecided_N)
        if due_N.any():
            choice_N = np.where(due_N, self._choose(observation, uniform, due_N), choice_N)
        action_NH = self._carry_out(observation, choice_N)
        if self.repeats:
            choice_N = np.where((action_NH[:, Head.OP] == Op.FOSSILIZE) | (choice_N == 0), UNDECIDED, choice_N)
        return Decision(action=action_NH, state={"choice": torch.from_numpy(choice_N), "level": torch.from_numpy(level_N)})

    def revise(self, observation: Observation, before: State, decision: Decision, taken_NH: IntArray) -> State:
        """Take back what was not carried out; see `Revisable`.

        Where the last seed was not kept after all, it is still to be kept. Where a bandit that decides again wanted a seed in a
        slot and none was planted there, it decides anew from what it sees next: the time for that seed may have passed.
        """
        wanted_NH, state = decision.action, decision.state
        choice_N, level_N = state["choice"].numpy(), state["level"].numpy()
        lost_N = (wanted_NH[:, Head.OP] == Op.FOSSILIZE) & (taken_NH != wanted_NH).any(axis=1)
        choice_N = np.where(lost_N, before["choice"].numpy(), choice_N)
        if self.repeats:
            place = [Head.OP, Head.SLOT]
            unmet_N = (wanted_NH[:, Head.OP] == Op.GERMINATE) & (taken_NH[:, place] != wanted_NH[:, place]).any(axis=1)
            choice_N = np.where(unmet_N, UNDECIDED, choice_N)
            level_N = np.where(unmet_N, before["level"].numpy(), level_N)
        return state | {"choice": torch.from_numpy(choice_N), "level": torch.from_numpy(level_N)}

    def _done(self, observation: Observation, choice_N: IntArray) -> BoolArray:
        """Return the hosts whose seed was kept without an action, by `slots.auto_advance` `[N]`; none if it decides once."""
        if not self.repeats:
            return np.zeros(len(choice_N), np.bool_)
        kept_NS = slot_features(observation, self.spec, "stage_fossilized") > 0
        slot_N = np.maximum(choice_N - 1, 0) // len(self.spec.blueprint_names)
        return kept_NS[np.arange(len(slot_N)), slot_N] & (choice_N > 0)

    def _due(self, observation: Observation, level_N: FloatArray, undecided_N: BoolArray) -> tuple[BoolArray, FloatArray]:
        """Return the hosts to decide on now `[N]`, and the new levels `[N]`.

        Args:
            level_N: what the subclass remembers of each host; NaN at the start of an episode.
            undecided_N: hosts that can take a seed and have no decision under way.
        """
        return undecided_N, level_N

    def _choose(self, observation: Observation, uniform_NH: UniformArray, due_N: BoolArray) -> IntArray:
        """Return a choice for every host `[N]`: the one with the highest predicted return, or while exploring, a random one.

        Args:
            due_N: hosts for which the choice counts.
        """
        legal_NC, context_NF = legal_choices(observation, self.spec), self._context(observation)
        predicted_NC = self._predict(context_NF)
        known_NC = np.isfinite(predicted_NC) & legal_NC
        best_N = np.where(known_NC, predicted_NC, -np.inf).argmax(axis=1) * known_NC.any(axis=1)
        if self._record is None:
            return best_N
        # A choice without a prediction is not worse than one with a bad prediction: all are random until each was tried.
        explores_N = (uniform_NH[:, Head.OP] < self.config.exploration) | (legal_NC & ~self._tried_C).any(axis=1)
        weight_NC = legal_NC.astype(np.float64)
        if self.repeats:  # else few hosts would be left for later decisions
            weight_NC[:, 0] = np.maximum(weight_NC[:, 1:].sum(axis=1), 1)
        choice_N = np.where(explores_N, draw(weight_NC, uniform_NH[:, Head.SLOT]), best_N)
        seen = (np.flatnonzero(due_N), context_NF[due_N], legal_NC[due_N], choice_N[due_N])
        self._record.decisions.append((len(self._record.reward_TN), *seen))
        return choice_N

    def _predict(self, context_nF: FloatArray) -> npt.NDArray[np.float64]:
        """Return the predicted return of each choice `[n, C]`, -inf where it was never tried."""
        nothing_n = np.full(len(context_nF), -np.inf)
        # Single precision would blur predictions.
        x_nF = context_nF.astype(np.float64)
        return np.stack([nothing_n if model is None else model.predict(x_nF) for model in self.models], axis=1)

    def _context(self, observation: Observation) -> FloatArray:
        """Return the features from which returns are predicted `[N, F]`."""
        if self._features is not None:
            return observation.features[:, self._features]
        return np.concatenate([observation.features, observation.slots.reshape(len(observation.slots), -1)], axis=1)

    def _carry_out(self, observation: Observation, choice_N: IntArray) -> IntArray:
        """Return actions that plant the chosen seed, also after a rollback, advance it, and keep it as soon as possible."""
        slot_N, kind_N = np.divmod(np.maximum(choice_N - 1, 0), len(self.spec.blueprint_names))
        every_N = np.ones(len(choice_N), np.bool_)
        return plant_and_keep(observation, self.spec, slot_N, kind_N, plants_N=every_N, acts_N=choice_N > 0)

    # ---- learning

    def begin(self, update: int) -> None:
        """Explore in the next episode."""
        self._record = Decisions(self.config.gamma)

    def observe(self, transition: Transition) -> None:
        """Add the rewards of a step."""
        assert self._record is not None, "call begin() first"
        self._record.reward_TN.append(transition.earned_N)

    def learn(self, progress: float) -> dict[str, float]:
        """Fit the predictions to all decisions in memory."""
        assert self._record is not None, "call begin() first"
        record, self._record = self._record, None
        if record.decisions:
            new = record.memory()
            self._tried_C[new.choice] = True
            self._memory = self._memory.then(new, self.config.memory)
        return self._fit()

    def _fit(self) -> dict[str, float]:
        """Fit one regression per choice, all ridge regressions with the same penalty.

        If decisions follow one another, the regressions are fitted to the return of the best later decisions instead of those
        that were made (fitted Q iteration, Ernst et al. 2005).
        """
        memory, rows = self._memory, [np.flatnonzero(self._memory.choice == choice) for choice in range(len(self.names))]
        target_n, followed_n = memory.going.astype(np.float64), ~np.isnan(memory.next_seen).any(axis=1)
        fit, self.models, metrics = choose(self.config.model, [(memory.seen[one], target_n[one]) for one in rows])
        for _ in range(SWEEPS * bool(followed_n.any())):
            later_nC = np.where(memory.next_legal[followed_n], self._predict(memory.next_seen[followed_n]), -np.inf)
            target_n[followed_n] = memory.reward[followed_n] + memory.discount[followed_n] * later_nC.max(axis=1)
            self.models = [fit(memory.seen[one], target_n[one]) if len(one) else None for one in rows]
        metrics["decisions"] = float(len(memory.choice))
        return {f"bandit/{name}": value for name, value in metrics.items()}

    # ---- state

    def state_dict(self) -> dict[str, Any]:
        """Return the choices by name, and the decisions in memory, from which predictions are fitted."""
        named = {"choices": list(self.names), "context": list(self._columns), "tried": torch.from_numpy(self._tried_C.copy())}
        arrays = self._memory.arrays()
        if self.config.gamma == 1:
            del arrays["discount"]  # all 1
        return named | {name: torch.tensor(part) for name, part in arrays.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned.

        Raises:
            ValueError: the observations have other features, or there are other choices.
        """
        count, choices = len(state["choice"]), len(state["choices"])  # states of earlier versions have no `legal` and `tried`
        saved = {"discount": torch.ones(count), "legal": torch.ones((count, choices), dtype=torch.bool)} | state
        memory = DecisionMemory(**{part.name: saved[part.name].numpy() for part in fields(DecisionMemory)})
        check_choices(state["choices"], self.names)
        if (context := state["context"]) != self._columns:
            lost = ", ".join(name for name in context if name not in self._columns)
            why = (
                f"it observed {lost}, which this task lacks" if lost else "this task has more features, or another order of them"
            )
            raise ValueError(f"this policy was trained on other observations ({why}): use it on the task it was trained on")
        self._memory = memory
        self._tried_C = np.isin(np.arange(choices), memory.choice)
        if "tried" in state:
            self._tried_C |= state["tried"].numpy()
        if len(memory.choice):
            self._fit()

    def summary(self) -> list[tuple[str, str]]:
        """Return the choices that would now be most frequent, without exploration, for the contexts in memory."""
        if not any(self.models):
            return []
        best = np.where(self._memory.legal, self._predict(self._memory.seen), -np.inf).argmax(axis=1)
        counts = np.bincount(best, minlength=len(self.names)) / max(1, len(best))
        shown = [f"{self.names[i]} {100 * counts[i]:.0f} %" for i in np.argsort(-counts, kind="stable")[:3] if counts[i] > 0]
        return [("bandit would now plant", ", ".join(shown))]
