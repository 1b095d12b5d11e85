"""Terms that remember: each pays for a step by what it knows of the episode so far.

What one of them has paid for a seed that a rollback takes away again is taken back: for live seeds with the rollback itself, for
fossils that were younger than the snapshot with the step after it.
"""

# N hosts, S slots, W steps of a window

import numpy as np
import numpy.typing as npt

from esper.lifecycle.stages import LIVE, OCCUPIED, Stage
from esper.reward.memory import Births, Memory, worth
from esper.reward.signals import StepSignals
from esper.reward.terms import contributions, new_fossils, terminal

FloatArray = npt.NDArray[np.float32]


def _total(paid_NS: FloatArray) -> FloatArray:
    return paid_NS.sum(axis=1).astype(np.float32)


class Gain(Memory):
    """On the last step the accuracy of what was committed, less that of the newborn host [pp]; else 0."""

    def __call__(self, signals: StepSignals) -> FloatArray:
        first_N = self.kept.setdefault("first", signals.accuracy_before_N.copy())
        paid_N = terminal(signals) - (first_N if signals.last else 0.0)
        return np.where(signals.rolled_back_N, 0.0, paid_N).astype(np.float32)


class LossFall(Memory):
    """By how much the validation loss fell [nats]; over an episode, by how much from its first to its last healthy measurement.

    After a rollback what the host lost by it is charged with the next step, so that nothing is paid for twice.
    """

    def __call__(self, signals: StepSignals) -> FloatArray:
        known_N = self.kept.get("loss", signals.loss_before_N)
        now_N = np.where(signals.rolled_back_N, known_N, signals.loss_N).astype(np.float32)
        self.kept = {"loss": now_N}
        return known_N - now_N


class Fossilized(Memory):
    """For each seed that is now kept for good, what it is worth [pp], see `memory.worth`; less than 0 where it harms."""

    def __init__(self) -> None:
        self.births = Births()
        Memory.__init__(self, self.births)

    def __call__(self, signals: StepSignals) -> FloatArray:
        paid_NS = self.recall("paid", signals.before.stage.shape)
        lost_NS = np.where(signals.before.within(Stage.FOSSILIZED), 0.0, paid_NS)
        new_NS = np.where(new_fossils(signals), worth(signals, self.births.gain(signals)), 0.0)
        self.kept = {"paid": (paid_NS - lost_NS + new_NS).astype(np.float32)}
        return _total(new_NS - lost_NS)


class Drip(Memory):
    """What a fossil was worth when it was kept, spread over the steps that were left then, as long as it holds what it promised
    [pp].

    A step pays worth / max(steps left, `min_steps`) * clip(contribution now / contribution then, -1, 1); nothing for what was not
    worth anything. A seed kept at the very end has no time to show anything and gets little.
    """

    def __init__(self, min_steps: int) -> None:
        self.min_steps, self.births = min_steps, Births()
        Memory.__init__(self, self.births)

    def __call__(self, signals: StepSignals) -> FloatArray:
        shape, now_NS = signals.before.stage.shape, contributions(signals.after)
        fossil_NS = signals.before.within(Stage.FOSSILIZED)
        kept = {name: self.recall(name, shape) for name in ("rate", "promised", "paid")}
        lost_NS = np.where(fossil_NS, 0.0, kept["paid"])
        kept = {name: np.where(fossil_NS, array_NS, 0.0) for name, array_NS in kept.items()}
        owed_NS = (kept["rate"] > 0) & signals.healthy_N1
        holds_NS = np.clip(now_NS / np.where(owed_NS, kept["promised"], 1.0), -1, 1)
        paid_NS = np.where(owed_NS, kept["rate"] * holds_NS, 0.0)
        worth_NS = np.maximum(worth(signals, self.births.gain(signals)), 0.0)
        new_NS = new_fossils(signals) & (worth_NS > 0)
        kept["rate"] = np.where(new_NS, worth_NS / max(signals.steps_left, self.min_steps), kept["rate"])
        kept["promised"] = np.where(new_NS, now_NS, kept["promised"])
        kept["paid"] = kept["paid"] + paid_NS
        self.kept = {name: array_NS.astype(np.float32) for name, array_NS in kept.items()}
        return _total(paid_NS - lost_NS)


class Escrow(Memory):
    """Changes of a balance for each seed [pp]: an advance on what it is worth, which only a seed that is kept may keep.

    The balance follows the least worth (see `memory.worth`) of the last `window` steps, not below 0, by at most `most` a step. It
    is frozen with the fossilisation, and taken back when the seed is removed, lost or still on trial at the end. So an episode
    pays the balances of the fossils that are there at its end, and nothing else.
    """

    def __init__(self, window: int, most: float) -> None:
        self.window, self.most, self.births = window, most, Births()
        Memory.__init__(self, self.births)

    def __call__(self, signals: StepSignals) -> FloatArray:
        before, after, shape = signals.before, signals.after, signals.before.stage.shape
        balance_NS = self.recall("balance", shape)
        gain_NS = self.births.gain(signals)
        known_NS = after.measured & np.isfinite(gain_NS)
        newest_NS = np.where(known_NS, worth(signals, gain_NS), np.nan)
        recent_NSW = np.roll(self.recall("recent", (*shape, self.window), np.nan), 1, axis=2)
        recent_NSW[:, :, 0] = newest_NS
        least_NS = recent_NSW.min(axis=2)  # NaN until there are as many
        target_NS = np.where(np.isfinite(least_NS), np.maximum(least_NS, 0.0), 0.0)
        step_NS = np.clip(target_NS - balance_NS, -self.most, self.most)
        frozen_NS = before.within(Stage.FOSSILIZED)
        held_NS = after.within(Stage.FOSSILIZED) if signals.last else after.within(*OCCUPIED)
        stays_NS = np.where(signals.healthy_N1, held_NS, frozen_NS) & (before.within(*OCCUPIED) | (balance_NS == 0))
        change_NS = np.where(stays_NS, np.where(frozen_NS, 0.0, step_NS), -balance_NS)
        recent_NSW[~stays_NS] = np.nan
        self.kept = {"balance": (balance_NS + change_NS).astype(np.float32), "recent": recent_NSW}
        return _total(change_NS)


class Hindsight(Memory):
    """When a seed is kept for good, what others did for it that are not fossils themselves [pp]: scaffolds.

    The largest positive interaction that was measured for a pair of live seeds, discounted by the steps since, summed over the
    seed's scaffolds, removed ones included, and no more than the seed contributes.
    """

    def __init__(self, gamma: float) -> None:
        self.gamma = gamma
        Memory.__init__(self)

    def __call__(self, signals: StepSignals) -> FloatArray:
        before, after, shape = signals.before, signals.after, signals.before.stage.shape
        paid_NS = self.recall("paid", shape)
        lost_NS = np.where(before.within(Stage.FOSSILIZED), 0.0, paid_NS)
        fresh_NS = ~before.within(*OCCUPIED) & after.within(*OCCUPIED)
        live_NS = after.within(*LIVE) | new_fossils(signals)
        boost_NSS = self.gamma * np.where(fresh_NS[:, None, :], 0.0, self.recall("boost", (*shape, shape[1])))
        pairs_NSS = live_NS[:, :, None] & live_NS[:, None, :] & signals.healthy_N1[:, :, None]
        found_NSS = np.where(pairs_NSS & np.isfinite(signals.interaction_NSS), signals.interaction_NSS, 0.0)
        boost_NSS = np.where(live_NS[:, :, None], np.maximum(boost_NSS, found_NSS), 0.0)
        scaffold_NSS = ~np.eye(shape[1], dtype=np.bool_) & ~after.within(Stage.FOSSILIZED)[:, None, :]
        earned_NS = np.where(scaffold_NSS, boost_NSS, 0.0).sum(axis=2)
        earned_NS = np.minimum(earned_NS, np.maximum(contributions(after), 0.0))
        new_NS = np.where(new_fossils(signals), earned_NS, 0.0)
        boost_NSS = np.where(new_fossils(signals)[:, :, None] | ~signals.healthy_N1[:, :, None], 0.0, boost_NSS)
        kept = {"paid": paid_NS - lost_NS + new_NS, "boost": boost_NSS}
        self.kept = {name: array.astype(np.float32) for name, array in kept.items()}
        return _total(new_NS - lost_NS)
