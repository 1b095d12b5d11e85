"""The terms of rewards: the pay of a step, for all hosts at once.

Every term is in points [pp]: one point is one percentage point of accuracy of the final network. Terms by slot are summed over
slots, so the pay does not depend on the slot of an action.

Most terms are pure functions of a step. Those that need the episode so far are a `Memory`: arrays over hosts that last from
step to step. A rollback leaves a host with only the fossils of its snapshot, which may be older than the last step; so memories
compare their content with the state before the next step. What such a term has paid for a seed that a rollback removes is taken
back: for live seeds with the rollback itself, for fossils younger than the snapshot with the step after it.
"""

# N hosts, S slots, W steps of a window

from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from esper.lifecycle.stages import LIVE, OCCUPIED, BoolArray, FloatArray, Op, SlotState, Stage
from esper.reward.signals import StepSignals

Array = npt.NDArray[Any]

STAGE_VALUE = np.array([0.0, 1.0, 2.0, 3.5, 5.5, 6.0, 0.0, 0.0], dtype=np.float32)
"""Potential of a seed in each stage, by `Stage`."""
assert len(STAGE_VALUE) == len(Stage)
CONTRIBUTES = 1.0
"""A seed that contributes at least this much counts as contributing [pp]."""


class RentUnit(StrEnum):
    """Unit of rent."""

    params = "params"
    """Parameters of the seeds."""
    flops = "flops"
    """Floating-point operations per sample."""
    latency = "latency"
    """Measured seconds of a forward pass."""


def contributions(state: SlotState) -> FloatArray:
    """Return the last measured contribution of each seed `[N, S]` [pp]; 0 where there is none."""
    counts_NS = state.measured & state.within(*OCCUPIED) & (state.alpha > 0)  # a seed that is off adds nothing
    return np.where(counts_NS, state.contribution, 0.0).astype(np.float32)


def attribution(signals: StepSignals) -> FloatArray:
    """Return the sum of the seeds' contributions [pp]: accuracy with a seed minus without it, fossils included."""
    return np.where(signals.healthy_N1, contributions(signals.after), 0.0).sum(axis=1).astype(np.float32)


def rent(
    signals: StepSignals,
    unit: RentUnit = RentUnit.params,
    *,
    fossils: bool = False,
    at_end: bool = False,
    mean: bool = False,
) -> FloatArray:
    """Return the cost of all seeds of each host [host sizes] after the step; for a host that is rolled back, before it.

    Args:
        fossils: if true, charge for fossils only.
        at_end: if true, return 0 before the last step, and charge a host that is rolled back then for the seeds of its snapshot.
        mean: if true, divide by the number of steps, so that the sum over the episode is the mean over its steps.

    Raises:
        ValueError: this unit is not measured.
    """
    if at_end and not signals.last:
        return np.zeros(len(signals.op_N), dtype=np.float32)
    before_NS = getattr(signals, f"{unit}_before_NS")
    if at_end and signals.final is not None:  # the seeds that a rollback removes are not part of the final network
        before_NS = np.where(signals.before.within(*OCCUPIED) & signals.final.within(*OCCUPIED), before_NS, 0)
    cost_NS = np.where(signals.healthy_N1, getattr(signals, f"{unit}_NS"), before_NS)
    if fossils:
        kept_NS = np.where(signals.healthy_N1, signals.after.within(Stage.FOSSILIZED), old_fossils(signals))
        cost_NS = np.where(kept_NS, cost_NS, 0)
    due_N = cost_NS.sum(axis=1) / getattr(signals, f"host_{unit}")
    if not np.isfinite(due_N).all():
        raise ValueError(f"reward.rent_unit={unit} is not measured here: use reward.rent_unit=params")
    return (due_N / signals.num_steps if mean else due_N).astype(np.float32)


def online(signals: StepSignals) -> FloatArray:
    """Return the validation accuracy, with all seeds as they are, divided by the number of steps [pp]; 0 after a rollback.

    The sum over an episode is the mean accuracy over its steps.
    """
    return np.where(signals.rolled_back_N, 0.0, signals.accuracy_N / signals.num_steps).astype(np.float32)


def operations(signals: StepSignals, op: int) -> FloatArray:
    """Return 1 where this operation was carried out."""
    return (signals.op_N == op).astype(np.float32)


def actions(signals: StepSignals) -> FloatArray:
    """Return 1 where anything but WAIT was carried out."""
    return (signals.op_N != Op.WAIT).astype(np.float32)


def auto_pruned(signals: StepSignals) -> FloatArray:
    """Return the number of seeds removed by a rule of `slots` rather than by an action [count]; 0 after a rollback."""
    before, after = signals.before, signals.after
    removed_NS = before.within(*LIVE) & after.within(Stage.PRUNED) & ~before.dying & signals.healthy_N1
    ramped_N = (after.dying & ~before.dying).any(axis=1)  # such a PRUNE removes its seed later
    asked_N = (signals.op_N == Op.PRUNE) & ~ramped_N
    return np.maximum(removed_NS.sum(axis=1) - asked_N, 0).astype(np.float32)


def alpha_shock(signals: StepSignals) -> FloatArray:
    """Return the sum over slots of the squared change of alpha times the seed's size [host sizes]; 0 after a rollback."""
    params_NS = np.maximum(signals.params_before_NS, signals.params_NS)
    shock_NS = np.square(signals.after.alpha - signals.before.alpha) * params_NS / signals.host_params
    return np.where(signals.healthy_N1, shock_NS, 0.0).sum(axis=1).astype(np.float32)


def terminal(signals: StepSignals) -> FloatArray:
    """Return the committed accuracy on the last step [pp]: host and fossils, without seeds on trial; 0 before.

    A host that is rolled back in the last step ends with its snapshot, and is paid for it.
    """
    if not signals.last:
        return np.zeros(len(signals.op_N), dtype=np.float32)
    return signals.effects.committed_accuracy_N.astype(np.float32)


def contributing(signals: StepSignals) -> FloatArray:
    """Return the number of fossils that contribute at least `CONTRIBUTES` on the last step, in the snapshot for a host that is
    rolled back then; 0 before."""
    if not signals.last:
        return np.zeros(len(signals.op_N), dtype=np.float32)

    def count(state: SlotState) -> FloatArray:
        return (state.within(Stage.FOSSILIZED) & (contributions(state) >= CONTRIBUTES)).sum(axis=1).astype(np.float32)

    restored_N = np.float32(0) if signals.final is None else count(signals.final)
    return np.where(signals.rolled_back_N, restored_N, count(signals.after))


def new_fossils(signals: StepSignals) -> BoolArray:
    """Return the seeds that became fossils in this step `[N, S]`, by an action or automatically."""
    now, then = signals.after.within(Stage.FOSSILIZED), signals.before.within(Stage.FOSSILIZED)
    return now & ~then & signals.healthy_N1


def old_fossils(signals: StepSignals) -> BoolArray:
    """Return the seeds that were fossils before this step `[N, S]`, except those that a rollback in the last step removes; any
    other rollback shows in the next step."""
    then = signals.before.within(Stage.FOSSILIZED)
    return then if signals.final is None else then & signals.final.within(Stage.FOSSILIZED)


def stage_potential(state: SlotState) -> FloatArray:
    """Return the sum over slots of `STAGE_VALUE` [1]."""
    return STAGE_VALUE[state.stage].sum(axis=1)


def shaping(before_N: FloatArray, after_N: FloatArray, gamma: float, signals: StepSignals) -> FloatArray:
    """Return potential-based shaping, gamma * Phi(s') - Phi(s), which keeps the best policy (Ng, Harada, Russell 1999).

    The potential of a terminal state is 0, so the discounted sum over an episode is -Phi(s_0) under any policy.

    Args:
        before_N: Phi of the state before the action.
        after_N: Phi of the state after it; ignored where the transition ends the (sub-)episode.
        gamma: the agent's discount per step.
    """
    return (gamma * np.where(signals.ended_N, 0.0, after_N) - before_N).astype(np.float32)


# ---- terms with memory


class Memory:
    """Arrays over hosts that last from one step to the next, within an episode."""

    def __init__(self) -> None:
        self.kept: dict[str, FloatArray] = {}
        """The arrays by name; empty before the first step."""

    def reset(self) -> None:
        """Start a new episode."""
        self.kept = {}

    def recall(self, name: str, shape: tuple[int, ...], value: float = 0.0) -> FloatArray:
        """Return the array of this name; `value` everywhere at first."""
        return self.kept.get(name, np.full(shape, value, dtype=np.float32))


class Births(Memory):
    """The accuracy of a host when each of its seeds was planted.

    A contribution is what would be lost without a seed now. It can be large although the host never gained from the seed, since a
    host learns to depend on its seeds. The accuracy gained since a seed's birth, minus what its neighbours came to contribute in
    that time, shows the difference: it works for a single seed too, and helpful neighbours do not hide a harmful seed.
    """

    def gain(self, signals: StepSignals) -> FloatArray:
        """Process a step and return the gain since birth; call once per step.

        Returns:
            `[N, S]` [pp], accuracy gained since a seed's birth minus its neighbours' contributions: by the seed and by what the
            host has learned itself. NaN where there is no seed, its birth was not seen, or the host was rolled back.
        """
        before, after, shape = signals.before, signals.after, signals.before.stage.shape
        then_NS, now_NS = contributions(before), contributions(after)
        there_NS = after.within(*OCCUPIED)
        born_NS = ~before.within(*OCCUPIED) & there_NS
        accuracy_NS = np.where(born_NS, signals.accuracy_before_N[:, None], self.recall("accuracy", shape, np.nan))
        others_NS = np.where(born_NS, then_NS.sum(axis=1, keepdims=True), self.recall("others", shape))
        neighbours_NS = now_NS.sum(axis=1, keepdims=True) - now_NS - others_NS
        gain_NS = signals.accuracy_N[:, None] - accuracy_NS - neighbours_NS
        self.kept |= {"accuracy": accuracy_NS.astype(np.float32), "others": others_NS}
        return np.where(there_NS & signals.healthy_N1, gain_NS, np.nan).astype(np.float32)


def seed_worth(signals: StepSignals, gain_NS: FloatArray) -> FloatArray:
    """Return min(contribution, gain since birth) of each seed `[N, S]` [pp]; 0 where either is unknown."""
    known_NS = signals.after.measured & np.isfinite(gain_NS)
    return np.where(known_NS, np.minimum(contributions(signals.after), gain_NS), 0.0).astype(np.float32)


def _total(paid_NS: FloatArray) -> FloatArray:
    return paid_NS.sum(axis=1).astype(np.float32)


class Gain(Memory):
    """The committed accuracy minus that of the newborn host, on the last step [pp]; 0 before."""

    def __call__(self, signals: StepSignals) -> FloatArray:
        first_N = self.kept.setdefault("first", signals.accuracy_before_N.copy())
        return (terminal(signals) - (first_N if signals.last else 0.0)).astype(np.float32)


class LossFall(Memory):
    """The decrease of the validation loss [nats]; over an episode, from its first to its last healthy measurement.

    A loss caused by a rollback is charged in the next step, or at once in the last one, so that nothing is paid twice.
    """

    def __call__(self, signals: StepSignals) -> FloatArray:
        known_N = self.kept.get("loss", signals.loss_before_N)
        back_N = known_N if signals.final_loss_N is None else signals.final_loss_N
        now_N = np.where(signals.rolled_back_N, back_N, signals.loss_N).astype(np.float32)
        self.kept = {"loss": now_N}
        return known_N - now_N


class Fossilized(Births):
    """The `seed_worth` of each seed that becomes a fossil [pp]; below 0 where it harms."""

    def __call__(self, signals: StepSignals) -> FloatArray:
        paid_NS = self.recall("paid", signals.before.stage.shape)
        lost_NS = np.where(old_fossils(signals), 0.0, paid_NS)
        new_NS = np.where(new_fossils(signals), seed_worth(signals, self.gain(signals)), 0.0)
        self.kept |= {"paid": (paid_NS - lost_NS + new_NS).astype(np.float32)}
        return _total(new_NS - lost_NS)


class Drip(Births):
    """The `seed_worth` of a fossil when it was kept, spread over the steps left then, while it keeps contributing [pp].

    A step pays worth / max(steps left, `min_steps`) * clip(contribution now / contribution then, -1, 1), and nothing where the
    worth was not above 0. A seed kept at the very end gets little.
    """

    def __init__(self, min_steps: int) -> None:
        Memory.__init__(self)
        self.min_steps = min_steps

    def __call__(self, signals: StepSignals) -> FloatArray:
        shape, now_NS = signals.before.stage.shape, contributions(signals.after)
        fossil_NS = old_fossils(signals)
        kept = {name: self.recall(name, shape) for name in ("rate", "promised", "paid")}
        lost_NS = np.where(fossil_NS, 0.0, kept["paid"])
        kept = {name: np.where(fossil_NS, array_NS, 0.0) for name, array_NS in kept.items()}
        owed_NS = (kept["rate"] > 0) & signals.healthy_N1
        holds_NS = np.clip(now_NS / np.where(owed_NS, kept["promised"], 1.0), -1, 1)
        paid_NS = np.where(owed_NS, kept["rate"] * holds_NS, 0.0)
        worth_NS = np.maximum(seed_worth(signals, self.gain(signals)), 0.0)
        new_NS = new_fossils(signals) & (worth_NS > 0)
        kept["rate"] = np.where(new_NS, worth_NS / max(signals.steps_left, self.min_steps), kept["rate"])
        kept["promised"] = np.where(new_NS, now_NS, kept["promised"])
        kept["paid"] = kept["paid"] + paid_NS
        self.kept |= {name: array_NS.astype(np.float32) for name, array_NS in kept.items()}
        return _total(paid_NS - lost_NS)


class Escrow(Births):
    """Changes of each seed's balance [pp]: an advance on its worth, which only fossils keep.

    The balance follows the minimum `seed_worth` of the last `window` steps, at least 0, by at most `most` per step. Fossilisation
    freezes it; it is taken back when the seed is removed, lost or still on trial at the end. So an episode pays the balances of
    the fossils at its end, and nothing else.
    """

    def __init__(self, window: int, most: float) -> None:
        Memory.__init__(self)
        self.window, self.most = window, most

    def __call__(self, signals: StepSignals) -> FloatArray:
        before, after, shape = signals.before, signals.after, signals.before.stage.shape
        balance_NS = self.recall("balance", shape)
        gain_NS = self.gain(signals)
        known_NS = after.measured & np.isfinite(gain_NS)
        newest_NS = np.where(known_NS, seed_worth(signals, gain_NS), np.nan)
        recent_NSW = np.roll(self.recall("recent", (*shape, self.window), np.nan), 1, axis=2)
        recent_NSW[:, :, 0] = newest_NS
        least_NS = recent_NSW.min(axis=2)  # NaN until there are as many
        target_NS = np.where(np.isfinite(least_NS), np.maximum(least_NS, 0.0), 0.0)
        step_NS = np.clip(target_NS - balance_NS, -self.most, self.most)
        frozen_NS = old_fossils(signals)
        held_NS = after.within(Stage.FOSSILIZED) if signals.last else after.within(*OCCUPIED)
        stays_NS = np.where(signals.healthy_N1, held_NS, frozen_NS) & (before.within(*OCCUPIED) | (balance_NS == 0))
        change_NS = np.where(stays_NS, np.where(frozen_NS, 0.0, step_NS), -balance_NS)
        recent_NSW[~stays_NS] = np.nan
        self.kept |= {"balance": (balance_NS + change_NS).astype(np.float32), "recent": recent_NSW}
        return _total(change_NS)


class Hindsight(Memory):
    """Pay for scaffolds when a seed becomes a fossil: what seeds that are not fossils did for it [pp].

    The pay is the largest positive interaction measured for each pair of live seeds, discounted by the steps since then, summed
    over the seed's scaffolds, and capped by the seed's contribution. A removed scaffold counts until its slot is planted again.
    """

    def __init__(self, gamma: float) -> None:
        self.gamma = gamma
        Memory.__init__(self)

    def __call__(self, signals: StepSignals) -> FloatArray:
        before, after, shape = signals.before, signals.after, signals.before.stage.shape
        paid_NS = self.recall("paid", shape)
        lost_NS = np.where(old_fossils(signals), 0.0, paid_NS)
        born_NS = ~before.within(*OCCUPIED) & after.within(*OCCUPIED)
        live_NS = after.within(*LIVE) | new_fossils(signals)
        boost_NSS = self.gamma * np.where(born_NS[:, None, :], 0.0, self.recall("boost", (*shape, shape[1])))
        pairs_NSS = live_NS[:, :, None] & live_NS[:, None, :] & signals.healthy_N1[:, :, None]
        found_NSS = np.where(pairs_NSS & np.isfinite(signals.effects.interaction_NSS), signals.effects.interaction_NSS, 0.0)
        boost_NSS = np.where(live_NS[:, :, None], np.maximum(boost_NSS, found_NSS), 0.0)
        scaffold_NSS = ~np.eye(shape[1], dtype=np.bool_) & ~after.within(Stage.FOSSILIZED)[:, None, :]
        earned_NS = np.where(scaffold_NSS, boost_NSS, 0.0).sum(axis=2)
        earned_NS = np.minimum(earned_NS, np.maximum(contributions(after), 0.0))
        new_NS = np.where(new_fossils(signals), earned_NS, 0.0)
        boost_NSS = np.where(new_fossils(signals)[:, :, None] | ~signals.healthy_N1[:, :, None], 0.0, boost_NSS)
        kept = {"paid": paid_NS - lost_NS + new_NS, "boost": boost_NSS}
        self.kept = {name: array.astype(np.float32) for name, array in kept.items()}
        return _total(new_NS - lost_NS)
