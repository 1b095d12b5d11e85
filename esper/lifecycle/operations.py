"""The life of a seed: operations and transitions, as pure functions on arrays over hosts and slots.

    dormant -> germinated -> training -> blending <-> holding -> fossilized
                    \\____________\\____________\\____________\\-> pruned -> embargoed -> dormant

docs/lifecycle.md lists every transition and what causes it. A test reads that table, drives this code with random actions, and
requires these transitions and no others.

One step of the environment carries out what the controller asked for, then calls `tick` (what time does by itself), and then
trains for a host epoch. Only `tick` ages anything. A stage's age counts the host epochs trained in it, the coming one included.
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
from esper.lifecycle.stages import (
    BLENDED,
    LIVE,
    OCCUPIED,
    TAKES_PART,
    BoolArray,
    FloatArray,
    IntArray,
    SlotState,
    Stage,
    empty,
)

# ---- what may be done


def may_germinate(state: SlotState, slots: SlotsConfig, chosen_S: BoolArray) -> BoolArray:
    """Return where a seed may germinate `[N, S]`: dormant slots in use, of hosts that have room for another seed."""
    room_N = np.ones(len(state.stage), dtype=np.bool_)
    if slots.max_seeds > 0:
        room_N = state.within(*OCCUPIED).sum(axis=1) < slots.max_seeds
    if slots.one_at_a_time:
        room_N &= ~state.within(Stage.GERMINATED, Stage.TRAINING).any(axis=1)
    return state.within(Stage.DORMANT) & chosen_S & room_N[:, None]


def may_prune(state: SlotState, slots: SlotsConfig) -> BoolArray:
    """`[N, S]`: live, old enough, and not on its way out already; fossils never."""
    return state.within(*LIVE) & (state.seed_age >= slots.min_prune_age) & ~state.dying


def may_retarget(state: SlotState) -> BoolArray:
    """`[N, S]`: blending or holding, with alpha at its target."""
    return state.within(*BLENDED) & ~state.moving


# ---- what is done


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
    """Puts new seeds into the marked slots. What they are, and the ramp on which they will be blended in, is settled at birth.

    Args:
        blueprint_N: index of the blueprint of each host's seed.
        blend_N: its `Blend`, which never changes: another one would change the function at once.
        target_N: alpha at the end of its first ramp, in (0, 1].
        ticks_N: length of that ramp [host epochs].
        curve_N: its `Curve`.
    """
    if not where_NS.any():
        return state
    given = {
        "blueprint": blueprint_N,
        "blend": blend_N,
        "ramp_target": target_N.astype(np.float32),
        "ramp_total": ticks_N,
        "ramp_curve": curve_N,
    }
    arrays = _cleared(state, where_NS)
    arrays |= {name: np.where(where_NS, value_N[:, None], arrays[name]) for name, value_N in given.items()}
    return _enter(SlotState(**arrays), where_NS, Stage.GERMINATED)


def advance(state: SlotState, where_NS: BoolArray, slots: SlotsConfig) -> SlotState:
    """Moves the marked seeds to their next stage, live ones only.

    Without incubation alpha is at its target from training on, and a seed with target 1 goes straight on to holding.
    """
    if not where_NS.any():
        return state
    marked = {stage: where_NS & state.within(stage) for stage in LIVE}
    past_blending = np.zeros_like(where_NS)
    if slots.incubation == Incubation.none:
        into = marked[Stage.GERMINATED]
        state = replace(
            state,
            alpha=np.where(into, state.ramp_target, state.alpha),
            ramp_done=np.where(into, state.ramp_total, state.ramp_done),
        )
        past_blending = marked[Stage.TRAINING] & (state.ramp_target == 1.0)
    state = _enter(state, marked[Stage.GERMINATED], Stage.TRAINING)
    state = _enter(state, marked[Stage.TRAINING] & ~past_blending, Stage.BLENDING)
    state = _enter(state, marked[Stage.BLENDING] | past_blending, Stage.HOLDING)
    return fossilize(state, marked[Stage.HOLDING])


def retarget(state: SlotState, where_NS: BoolArray, *, target_N: FloatArray, ticks_N: IntArray, curve_N: IntArray) -> SlotState:
    """Sends the alpha of the marked seeds to another target; a holding seed goes back to blending if that is below 1.

    Nothing happens where alpha is at the target already. A ramp of 0 ticks is over at once.

    Args:
        target_N: new target of each host's seed, in [0, 1].
        ticks_N: length of the ramp [host epochs].
        curve_N: its `Curve`.
    """
    target_NS = np.broadcast_to(target_N.astype(np.float32)[:, None], where_NS.shape)
    changed = where_NS & (target_NS != state.ramp_target)
    if not changed.any():
        return state
    state = replace(
        state,
        alpha=np.where(changed & (ticks_N[:, None] == 0), target_NS, state.alpha),
        ramp_start=np.where(changed, state.alpha, state.ramp_start),
        ramp_target=np.where(changed, target_NS, state.ramp_target),
        ramp_done=np.where(changed, 0, state.ramp_done),
        ramp_total=np.where(changed, ticks_N[:, None], state.ramp_total),
        ramp_curve=np.where(changed, curve_N[:, None], state.ramp_curve),
    )
    return _enter(state, changed & state.within(Stage.HOLDING), Stage.BLENDING)


def ramp_down(state: SlotState, where_NS: BoolArray, *, ticks_N: IntArray, curve_N: IntArray) -> SlotState:
    """Removes the marked seeds: slowly where alpha is above 0 in blending or holding and there are ticks to take, else at once.

    A seed on its way out is in blending, does not learn any more, and goes with the tick that brings its alpha to 0.

    Args:
        ticks_N: length of each host's ramp [host epochs].
        curve_N: its `Curve`.
    """
    slowly = where_NS & state.within(*BLENDED) & (state.alpha > 0) & (ticks_N[:, None] > 0)
    state = prune(state, where_NS & ~slowly)
    if not slowly.any():
        return state
    zero_N = np.zeros(len(ticks_N), dtype=np.float32)
    state = retarget(state, slowly, target_N=zero_N, ticks_N=ticks_N, curve_N=curve_N)
    return replace(state, dying=state.dying | slowly)


def fossilize(state: SlotState, where_NS: BoolArray) -> SlotState:
    """Keeps the marked seeds for good."""
    return _enter(state, where_NS, Stage.FOSSILIZED)


def prune(state: SlotState, where_NS: BoolArray) -> SlotState:
    """Removes the marked seeds at once, and all that is known of them."""
    if not where_NS.any():
        return state
    return _enter(SlotState(**_cleared(state, where_NS)), where_NS, Stage.PRUNED)


def tick(state: SlotState, slots: SlotsConfig, gates: GatesConfig) -> SlotState:
    """What time does: cool-downs end, rules remove seeds, gates that open by themselves are passed, ramps move, all ages."""
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


def shortest_life(slots: SlotsConfig, gates: GatesConfig, ticks: int) -> int:
    """Return the steps from germination to fossilisation, both included, if every gate is passed as soon as it opens.

    A gate that opens by itself (`slots.auto_advance`) is passed within the step; one by hand takes the action of a later step.

    Args:
        ticks: length of the seed's first ramp [host epochs].
    """
    auto, incubates = slots.auto_advance, slots.incubation != Incubation.none
    blending = max(ticks - ("holding" in auto), gates.min_blending) if incubates else 0
    held_by_hand = ("holding" if incubates else "blending") not in auto
    at_once = held_by_hand and "fossilized" in auto  # time follows the action: held and fossilized in one step
    return gates.min_training + blending + 2 + ("training" not in auto) - at_once


def _recycle(state: SlotState, slots: SlotsConfig) -> SlotState:
    """Emptied slots come back into use."""
    state = _enter(state, state.within(Stage.EMBARGOED) & (state.stage_age >= slots.embargo), Stage.DORMANT)
    over = state.within(Stage.PRUNED) & (state.stage_age >= 1)
    return _enter(state, over, Stage.EMBARGOED if slots.embargo else Stage.DORMANT)


def _outlived(state: SlotState, slots: SlotsConfig) -> BoolArray:
    """`[N, S]`: seeds that a rule of the config removes."""
    doomed = np.zeros_like(state.measured)
    if slots.prune_after > 0:
        doomed = state.within(*LIVE) & (state.seed_age >= slots.prune_after)
    if slots.prune_below is not None:
        settled = may_retarget(state) & state.measured & may_prune(state, slots)
        doomed = doomed | (settled & (state.contribution < slots.prune_below))
    return doomed


def roles(state: SlotState, slots: SlotsConfig) -> Roles:
    """What each seed does in the coming host epoch."""
    part_NS, fossil_NS = state.within(*TAKES_PART), state.within(Stage.FOSSILIZED)
    behind_NS = state.within(Stage.TRAINING) & (slots.incubation != Incubation.none)
    stays_NS = fossil_NS & (slots.fossils == Fossils.frozen)
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
    """The marked slots are now in this stage, for no epoch so far."""
    if not where_NS.any():
        return state
    return replace(
        state,
        stage=np.where(where_NS, int(stage), state.stage),
        stage_age=np.where(where_NS, 0, state.stage_age),
        accuracy_start=np.where(where_NS, state.accuracy, state.accuracy_start),
    )


def _cleared(state: SlotState, where_NS: BoolArray) -> dict[str, npt.NDArray[Any]]:
    """The arrays with the marked slots as in an empty host; the accuracy is the host's and stays."""
    blank = replace(empty(*state.stage.shape), accuracy=state.accuracy)
    return {name: np.where(where_NS, getattr(blank, name), array) for name, array in state.arrays().items()}
