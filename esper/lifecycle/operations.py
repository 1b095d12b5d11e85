"""The lifecycle of a seed: operations and transitions, as pure functions on arrays over hosts and slots.

    dormant -> germinated -> training -> blending <-> holding -> fossilized
                    \\____________\\____________\\____________\\-> pruned -> embargoed -> dormant

docs/lifecycle.md lists every transition with its cause. A test reads that table, drives this code with random actions, and
requires exactly these transitions.

An environment step applies the controller's action, calls `tick` (automatic transitions), and trains for a host epoch. Only
`tick` increases ages. A stage's age counts the host epochs trained in it, including the next one.
"""

# N hosts, S slots

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from esper.lifecycle.gates import GatesConfig, gate_open, may_fossilize, may_hold
from esper.lifecycle.ramps import ramp
from esper.lifecycle.roles import Fossils, Incubation, Roles
from esper.lifecycle.slots import GATES, Isolation, SlotsConfig
from esper.lifecycle.stages import BLENDED, LIVE, OCCUPIED, TAKES_PART, BoolArray, FloatArray, IntArray, SlotState, Stage, empty

# ---- legality


def may_germinate(state: SlotState, slots: SlotsConfig, chosen_S: BoolArray) -> BoolArray:
    """Return where a seed may germinate `[N, S]`: dormant slots in use, of hosts that have room for another seed."""
    room_N = np.ones(len(state.stage), dtype=np.bool_)
    if slots.max_seeds > 0:
        room_N = state.within(*OCCUPIED).sum(axis=1) < slots.max_seeds
    if slots.one_at_a_time:
        room_N &= ~state.within(Stage.GERMINATED, Stage.TRAINING).any(axis=1)
    return state.within(Stage.DORMANT) & chosen_S & room_N[:, None]


def may_prune(state: SlotState, slots: SlotsConfig) -> BoolArray:
    """Return where a seed may be pruned `[N, S]`: live, old enough, and not already ramping down; never a fossil."""
    return state.within(*LIVE) & (state.seed_age >= slots.min_prune_age) & ~state.dying


def may_retarget(state: SlotState) -> BoolArray:
    """Return where alpha may get a new target `[N, S]`: blending or holding, with alpha at its target."""
    return state.within(*BLENDED) & ~state.moving


def may_switch(state: SlotState, slots: SlotsConfig) -> BoolArray:
    """Return where a seed may be switched off or on `[N, S]`: fossils, if the config permits it."""
    return state.within(Stage.FOSSILIZED) & slots.switchable


# ---- operations


def germinate(
    state: SlotState,
    where_NS: BoolArray,
    *,
    blueprint_N: IntArray,
    blend_N: IntArray,
    target_N: FloatArray,
    ticks_N: IntArray,
    curve_N: IntArray,
) -> SlotState:
    """Put new seeds into the marked slots. Their blueprint, blend and first ramp are fixed at birth.

    Args:
        blueprint_N: blueprint index of each host's seed.
        blend_N: `Blend` of each seed; constant, since another one would change the computed function at once.
        target_N: alpha at the end of the first ramp, in (0, 1].
        ticks_N: length of that ramp [host epochs].
        curve_N: `Curve` of that ramp.
    """
    if not where_NS.any():
        return state
    given = {"blueprint": blueprint_N, "blend": blend_N, "ramp_total": ticks_N, "ramp_curve": curve_N}
    given |= {"ramp_target": target_N.astype(np.float32)}
    state = _put(_cleared(state, where_NS), where_NS, **{name: value_N[:, None] for name, value_N in given.items()})
    return _enter(state, where_NS, Stage.GERMINATED)


def advance(state: SlotState, where_NS: BoolArray, slots: SlotsConfig) -> SlotState:
    """Move the marked live seeds to their next stage.

    Without incubation alpha is at its target from training on, and a seed with target 1 goes straight to holding.
    """
    if not where_NS.any():
        return state
    marked = {stage: where_NS & state.within(stage) for stage in LIVE}
    past_blending = np.zeros_like(where_NS)
    if slots.incubation == Incubation.none:
        state = _put(state, marked[Stage.GERMINATED], alpha=state.ramp_target, ramp_done=state.ramp_total)
        past_blending = marked[Stage.TRAINING] & (state.ramp_target == 1.0)
    state = _enter(state, marked[Stage.GERMINATED], Stage.TRAINING)
    state = _enter(state, marked[Stage.TRAINING] & ~past_blending, Stage.BLENDING)
    state = _enter(state, marked[Stage.BLENDING] | past_blending, Stage.HOLDING)
    return fossilize(state, marked[Stage.HOLDING])


def retarget(state: SlotState, where_NS: BoolArray, *, target_N: FloatArray, ticks_N: IntArray, curve_N: IntArray) -> SlotState:
    """Ramp the alpha of the marked seeds to a new target; a holding seed returns to blending.

    Seeds whose target is the same already are unchanged. A ramp of 0 ticks is over at once.

    Args:
        target_N: new target of each host's seed, in [0, 1].
        ticks_N: length of the ramp [host epochs].
        curve_N: `Curve` of the ramp.
    """
    target_NS = np.broadcast_to(target_N.astype(np.float32)[:, None], where_NS.shape)
    changed = where_NS & (target_NS != state.ramp_target)
    if not changed.any():
        return state
    new = {"ramp_target": target_NS, "ramp_total": ticks_N[:, None], "ramp_curve": curve_N[:, None]}
    state = _put(state, changed, ramp_start=state.alpha, ramp_done=0, **new)
    state = _put(state, changed & (ticks_N[:, None] == 0), alpha=target_NS)
    return _enter(state, changed & state.within(Stage.HOLDING), Stage.BLENDING)


def switch(state: SlotState, where_NS: BoolArray) -> SlotState:
    """Switch the marked fossils off, or on again, at once."""
    return _put(state, where_NS, alpha=np.where(state.alpha > 0, np.float32(0.0), state.ramp_target)) if where_NS.any() else state


def ramp_down(state: SlotState, where_NS: BoolArray, *, ticks_N: IntArray, curve_N: IntArray) -> SlotState:
    """Remove the marked seeds: by a ramp where alpha is above 0 in blending or holding and ticks are above 0, else at once.

    A seed that ramps down is in blending, stops learning, and is pruned by the tick that brings its alpha to 0.

    Args:
        ticks_N: length of each host's ramp [host epochs].
        curve_N: `Curve` of the ramp.
    """
    slowly = where_NS & state.within(*BLENDED) & (state.alpha > 0) & (ticks_N[:, None] > 0)
    state = prune(state, where_NS & ~slowly)
    if not slowly.any():
        return state
    zero_N = np.zeros(len(ticks_N), dtype=np.float32)
    state = retarget(state, slowly, target_N=zero_N, ticks_N=ticks_N, curve_N=curve_N)
    return replace(state, dying=state.dying | slowly)


def fossilize(state: SlotState, where_NS: BoolArray) -> SlotState:
    """Fossilize the marked seeds."""
    return _enter(state, where_NS, Stage.FOSSILIZED)


def prune(state: SlotState, where_NS: BoolArray) -> SlotState:
    """Remove the marked seeds at once, and clear their state."""
    if not where_NS.any():
        return state
    return _enter(_cleared(state, where_NS), where_NS, Stage.PRUNED)


def tick(state: SlotState, slots: SlotsConfig, gates: GatesConfig) -> SlotState:
    """Apply automatic transitions: end embargoes, remove seeds by rule, pass automatic gates, move ramps, and increase ages."""
    state = _recycle(state, slots)
    if "fossilized" in slots.auto_advance:
        state = fossilize(state, may_fossilize(state, gates))
    state = prune(state, _outlived(state, slots))
    early = [GATES[name] for name in slots.auto_advance if name in ("training", "blending")]
    state = advance(state, gate_open(state, gates) & state.within(*early), slots)
    blending = state.within(Stage.BLENDING)
    if blending.any():
        done = state.ramp_done + blending
        alpha = ramp(state.ramp_start, state.ramp_target, done, state.ramp_total, state.ramp_curve)
        state = replace(state, ramp_done=done, alpha=np.where(blending, alpha, state.alpha))
        state = prune(state, state.dying & (state.ramp_done >= state.ramp_total))
        if "holding" in slots.auto_advance:
            state = _enter(state, may_hold(state, gates), Stage.HOLDING)
    return replace(state, stage_age=state.stage_age + 1, seed_age=state.seed_age + state.within(*OCCUPIED))


def epochs_until_free(state: SlotState, slots: SlotsConfig) -> IntArray:
    """Return after how many ticks an emptied slot is dormant again `[N, S]`; 0 for slots in other stages."""
    pruned_NS, embargoed_NS = state.within(Stage.PRUNED), state.within(Stage.EMBARGOED)
    left_NS = np.where(pruned_NS, 2 - state.stage_age + slots.embargo, 0)
    return np.where(embargoed_NS, slots.embargo + 1 - state.stage_age, left_NS)


def _recycle(state: SlotState, slots: SlotsConfig) -> SlotState:
    """Make emptied slots available again."""
    state = _enter(state, state.within(Stage.EMBARGOED) & (state.stage_age >= slots.embargo), Stage.DORMANT)
    over = state.within(Stage.PRUNED) & (state.stage_age >= 1)
    return _enter(state, over, Stage.EMBARGOED if slots.embargo else Stage.DORMANT)


def _outlived(state: SlotState, slots: SlotsConfig) -> BoolArray:
    """Return the seeds that a rule of the config removes `[N, S]`."""
    removed = np.zeros_like(state.measured)
    if slots.prune_after > 0:
        removed = state.within(*LIVE) & (state.seed_age >= slots.prune_after)
    if slots.prune_below is not None:
        settled = may_retarget(state) & state.measured & may_prune(state, slots)
        removed = removed | (settled & (state.contribution < slots.prune_below))
    return removed


def roles(state: SlotState, slots: SlotsConfig) -> Roles:
    """Return the role of each seed in the next host epoch."""
    fossil_NS = state.within(Stage.FOSSILIZED)
    part_NS = state.within(*TAKES_PART) & ~(fossil_NS & (state.alpha == 0))  # a fossil that is off is not computed
    behind_NS = state.within(Stage.TRAINING) & (slots.incubation != Incubation.none)
    stays_NS = fossil_NS & (slots.fossils == Fossils.frozen)
    if slots.learning_epochs:
        stays_NS |= state.seed_age > slots.learning_epochs  # 1 in its first epoch
    kept_out_NS = behind_NS if slots.isolation == Isolation.training else ~fossil_NS
    return Roles(
        blueprint=np.where(part_NS, state.blueprint, -1),
        blend=state.blend,
        alpha=state.alpha,
        behind=behind_NS,
        open=part_NS & ~kept_out_NS,
        learns=part_NS & ~state.dying & ~stays_NS,
        fossil=fossil_NS,
    )


def _enter(state: SlotState, where_NS: BoolArray, stage: Stage) -> SlotState:
    """Put the marked slots into this stage, at age 0."""
    if not where_NS.any():
        return state
    return _put(state, where_NS, stage=int(stage), stage_age=0, accuracy_start=state.accuracy)


def _cleared(state: SlotState, where_NS: BoolArray) -> SlotState:
    """Reset the marked slots; the accuracy is the host's and stays."""
    return _put(state, where_NS, **replace(empty(*state.stage.shape), accuracy=state.accuracy).arrays())


def _put(state: SlotState, where_NS: BoolArray, **values: npt.NDArray[Any] | int) -> SlotState:
    """Set fields in the marked slots."""
    return replace(state, **{name: np.where(where_NS, value, getattr(state, name)) for name, value in values.items()})
