"""Operations and transitions of the lifecycle, one by one."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from esper.env.actions import ALPHA_SPEEDS, ALPHA_TARGETS, STYLES, TEMPOS, execute, legal_slots
from esper.lifecycle import operations as lifecycle
from esper.lifecycle.gates import GatesConfig, gate_open, may_fossilize, shortest_life
from esper.lifecycle.operations import epochs_until_free, may_germinate, may_prune
from esper.lifecycle.roles import Blend, Fossils, Incubation
from esper.lifecycle.slots import GATES, EveryBlockConfig, Isolation, OneSeedConfig, SlotsConfig
from esper.lifecycle.stages import Mode, Op, Stage, empty
from tests.lifecycle.lifecycle_help import ALL_AUTO, FREE, GATED, action, measured, share_of, step


def life(config, *ops, gates=GATED, **parameters):
    """Return the stages of the first slot after a germination and each op, or pair (op, parameters), of a script."""
    state, stages = empty(1, 2), []
    for entry in ((Op.GERMINATE, parameters), *ops):
        op, given = entry if isinstance(entry, tuple) else (entry, {})
        assert op == Op.WAIT or legal_slots(state, config, np.array([True, True]), gates, FREE)[0, op, 0], op
        state = step(state, config, op, gates=gates, **given)
        stages.append(Stage(state.stage[0, 0]))
    return stages, state


def test_with_automatic_gates_a_seed_reaches_holding():
    stages, state = life(SlotsConfig(auto_advance=ALL_AUTO), *[Op.WAIT] * 5, gates=GatesConfig(min_training=2))
    assert stages == [Stage.TRAINING] * 2 + [Stage.BLENDING] * 2 + [Stage.HOLDING] * 2
    assert (state.alpha[0, 0], state.ramp_done[0, 0], state.seed_age[0, 0], state.stage_age[0, 0]) == (1.0, 3, 6, 2)


def test_without_automatic_gates_every_stage_takes_an_action():
    config = SlotsConfig(auto_advance=[])
    stages, _ = life(config, *[Op.WAIT] * 4)
    assert stages == [Stage.GERMINATED] * 5
    stages, state = life(config, Op.ADVANCE, Op.ADVANCE, *[Op.WAIT] * 5, Op.ADVANCE)
    assert stages == [Stage.GERMINATED, Stage.TRAINING, *[Stage.BLENDING] * 6, Stage.HOLDING]
    assert state.alpha[0, 0] == 1.0


def test_by_default_only_blending_takes_an_action():
    stages, _ = life(EveryBlockConfig(), Op.WAIT, Op.ADVANCE, *[Op.WAIT] * 3)
    assert stages == [Stage.TRAINING, Stage.TRAINING, Stage.BLENDING, Stage.BLENDING, Stage.HOLDING, Stage.HOLDING]


def test_blending_waits_for_min_training():
    config, gates = EveryBlockConfig(), GatesConfig(min_training=3)
    state = step(empty(1, 2), config, Op.GERMINATE)
    for age in range(1, 6):
        assert gate_open(state, gates)[0, 0] == (age >= 3)
        state = step(state, config)


@pytest.mark.parametrize("tempo", TEMPOS)
def test_alpha_rises_evenly_and_ends_exactly_at_one(tempo):
    config, ticks = SlotsConfig(auto_advance=ALL_AUTO), TEMPOS[tempo]
    state, seen = step(empty(1, 1), config, Op.GERMINATE, tempo=tempo), []
    while state.stage[0, 0] != Stage.HOLDING:
        state = step(state, config)
        seen.append(state.alpha[0, 0])
    assert seen == [np.float32(done / ticks) for done in range(1, ticks + 1)]
    assert step(state, config).alpha[0, 0] == 1.0


@pytest.mark.parametrize("embargo", range(4))
def test_an_emptied_slot_is_pruned_for_an_epoch_then_embargoed(embargo):
    config = EveryBlockConfig(embargo=embargo)
    state = step(step(empty(1, 1), config, Op.GERMINATE), config, Op.PRUNE)
    stages, left = [], []
    while state.stage[0, 0] != Stage.DORMANT:
        left.append(epochs_until_free(state, config)[0, 0])
        assert not may_germinate(state, config, np.array([True])).any()
        assert not may_prune(state, config).any()
        stages.append(Stage(state.stage[0, 0]))
        state = step(state, config)
    assert stages == [Stage.PRUNED] + [Stage.EMBARGOED] * embargo
    assert left == list(range(embargo + 1, 0, -1))
    assert epochs_until_free(state, config)[0, 0] == 0
    assert may_germinate(state, config, np.array([True])).all()


def test_the_cap_counts_live_seeds_and_fossils():
    config = OneSeedConfig(auto_advance=ALL_AUTO)
    every = np.ones(3, dtype=bool)
    state = step(empty(1, 3), config, Op.GERMINATE, 1)
    assert not may_germinate(state, config, every).any()
    for _ in range(3):
        state = step(state, config)
    state = step(state, config, Op.FOSSILIZE, 1)
    for _ in range(5):
        assert not may_germinate(state, config, every).any()
        state = step(state, config)
    assert may_germinate(state, SlotsConfig(max_seeds=2), every).tolist() == [[True, False, True]]
    assert may_germinate(state, SlotsConfig(max_seeds=0), np.array([True, True, False])).tolist() == [[True, False, False]]


def test_pruning_frees_the_cap_at_once_for_other_slots():
    config = OneSeedConfig()
    state = step(step(empty(1, 3), config, Op.GERMINATE, 1), config, Op.PRUNE, 1)
    assert may_germinate(state, config, np.ones(3, dtype=bool)).tolist() == [[True, False, True]]


def test_fossils_are_never_pruned_or_advanced_and_keep_their_alpha():
    config = SlotsConfig(auto_advance=ALL_AUTO, min_prune_age=0)
    _, state = life(config, *[Op.WAIT] * 3, Op.FOSSILIZE, *[Op.WAIT] * 10)
    assert state.stage[0, 0] == Stage.FOSSILIZED
    assert not may_prune(state, config).any()
    assert not gate_open(state, GATED).any()
    assert not may_fossilize(state, GATED).any()
    assert (state.alpha[0, 0], state.seed_age[0, 0], state.stage_age[0, 0]) == (1.0, 15, 11)


def test_fossilisation_requires_a_measured_contribution():
    config = SlotsConfig(auto_advance=ALL_AUTO)
    state = step(empty(1, 1), config, Op.GERMINATE, measure=False)
    for _ in range(4):
        state = step(state, config, measure=False)
    assert state.stage[0, 0] == Stage.HOLDING
    assert not may_fossilize(state, GATED).any()
    assert may_fossilize(step(state, config), GATED).all()


@pytest.mark.parametrize("least", range(4))
def test_pruning_requires_min_prune_age(least):
    config = EveryBlockConfig(min_prune_age=least)
    state = step(empty(1, 1), config, Op.GERMINATE)
    for age in range(1, 6):
        assert may_prune(state, config)[0, 0] == (age >= least)
        state = step(state, config)


def test_a_new_seed_starts_from_cleared_state():
    config = EveryBlockConfig(embargo=0, auto_advance=ALL_AUTO)
    state = empty(1, 1)
    for op in [Op.GERMINATE, *[Op.WAIT] * 4, Op.PRUNE, Op.WAIT, Op.GERMINATE]:
        state = step(state, config, op)
    fresh = step(measured(empty(1, 1)), config, Op.GERMINATE)
    for name, array in state.arrays().items():
        np.testing.assert_array_equal(array, fresh.arrays()[name], err_msg=name)


# ---- alpha


def blended(target="full", **others):
    """Return a seed whose first ramp is over."""
    config = SlotsConfig(auto_advance=ALL_AUTO, min_prune_age=0, **others)
    return config, life(config, *[Op.WAIT] * 4, target=target)[1]


@pytest.mark.parametrize(("style", "meaning"), STYLES.items())
def test_a_style_sets_the_blend_and_the_curve_of_the_first_ramp(style, meaning):
    config, (blend, curve) = SlotsConfig(auto_advance=ALL_AUTO), meaning
    state = step(empty(1, 1), config, Op.GERMINATE, style=style, tempo="standard")
    seen = []
    for _ in range(5):
        state = step(state, config)
        seen.append(float(state.alpha[0, 0]))
        assert lifecycle.roles(state, config).blend[0, 0] == blend
    assert seen == pytest.approx([share_of(done, 5, curve) for done in range(1, 6)], abs=1e-6)
    assert {Blend.ADD: 2, Blend.MULTIPLY: 1, Blend.GATE: 1}[blend] == sum(other == blend for other, _ in STYLES.values())


@pytest.mark.parametrize("target", ["half", "seventy"])
def test_a_partial_target_keeps_a_seed_in_blending(target):
    config, state = blended(target)
    for _ in range(10):
        assert (state.stage[0, 0], state.alpha[0, 0], state.mode[0, 0]) == (
            Stage.BLENDING, np.float32(ALPHA_TARGETS[target]), Mode.HOLD,
        )  # fmt: skip
        state = step(state, config)
    state = step(state, config, Op.SET_ALPHA_TARGET, target="full", speed="fast", curve="cosine")
    assert state.mode[0, 0] == Mode.UP
    seen = [float(state.alpha[0, 0])]
    while state.stage[0, 0] == Stage.BLENDING:
        state = step(state, config)
        seen.append(float(state.alpha[0, 0]))
    low = ALPHA_TARGETS[target]
    assert seen == pytest.approx([low + (1 - low) * f for f in (0.25, 0.75, 1)], abs=1e-6)
    assert state.stage[0, 0] == Stage.HOLDING


def test_a_lower_target_returns_a_holding_seed_to_blending():
    config, state = blended()
    assert state.stage[0, 0] == Stage.HOLDING
    same = step(state, config, Op.SET_ALPHA_TARGET, target="full", speed="slow")
    assert (same.stage[0, 0], same.mode[0, 0], same.stage_age[0, 0]) == (Stage.HOLDING, Mode.HOLD, state.stage_age[0, 0] + 1)
    sunk = step(state, config, Op.SET_ALPHA_TARGET, target="half", speed="fast")
    assert (sunk.stage[0, 0], sunk.mode[0, 0], sunk.stage_age[0, 0]) == (Stage.BLENDING, Mode.DOWN, 1)
    assert sunk.alpha[0, 0] == np.float32(1 - 0.5 / 3)
    at_once = step(state, config, Op.SET_ALPHA_TARGET, target="half", speed="instant")
    assert (at_once.stage[0, 0], at_once.alpha[0, 0], at_once.mode[0, 0]) == (Stage.BLENDING, 0.5, Mode.HOLD)
    assert lifecycle.roles(sunk, config).learns.any(), "only a dying seed stops learning"


@pytest.mark.parametrize("speed", ALPHA_SPEEDS)
@pytest.mark.parametrize("target", ["full", "half"])
def test_pruning_takes_as_many_ticks_as_its_speed(speed, target):
    config, state = blended(target)
    high, ticks, seen = float(state.alpha[0, 0]), ALPHA_SPEEDS[speed], []
    state = step(state, config, Op.PRUNE, speed=speed)
    while state.stage[0, 0] != Stage.PRUNED:
        assert state.dying[0, 0]
        assert not lifecycle.roles(state, config).learns.any()
        assert not legal_slots(state, config, np.array([True, True]), GATED, FREE)[0, Op.WAIT + 1 :, 0].any()
        seen.append(float(state.alpha[0, 0]))
        state = step(state, config)
    assert seen == pytest.approx([high * (1 - done / ticks) for done in range(1, ticks)], abs=1e-6)
    assert (state.alpha[0, 0], state.blueprint[0, 0], state.dying[0, 0]) == (0.0, -1, False)


@pytest.mark.parametrize("auto", [[], ["training"]])
def test_a_seed_at_alpha_zero_is_pruned_at_once(auto):
    config = SlotsConfig(auto_advance=auto, min_prune_age=0)
    state = step(empty(1, 1), config, Op.GERMINATE)
    assert step(state, config, Op.PRUNE, speed="slow").stage[0, 0] == Stage.PRUNED


def test_a_ramp_up_may_be_turned_into_a_ramp_down():
    config = SlotsConfig(auto_advance=ALL_AUTO, min_prune_age=0)
    _, state = life(config, Op.WAIT, tempo="slow")
    assert state.alpha[0, 0] == np.float32(1 / 8)
    state = step(state, config, Op.PRUNE, speed="fast")
    assert state.alpha[0, 0] == pytest.approx(1 / 8 * 2 / 3)
    assert state.mode[0, 0] == Mode.DOWN


def test_without_incubation_a_seed_is_active_at_once():
    config = SlotsConfig(auto_advance=["training", "blending"], incubation=Incubation.none)
    state = step(empty(1, 1), config, Op.GERMINATE, tempo="slow")
    roles = lifecycle.roles(state, config)
    assert (state.stage[0, 0], state.alpha[0, 0], state.mode[0, 0]) == (Stage.TRAINING, 1.0, Mode.HOLD)
    assert (roles.behind[0, 0], roles.open[0, 0], roles.learns[0, 0]) == (False, True, True)
    assert state.measured[0, 0]
    assert step(state, config).stage[0, 0] == Stage.HOLDING
    half = step(empty(1, 1), config, Op.GERMINATE, target="half")
    assert half.alpha[0, 0] == 0.5
    half = step(half, config)
    assert (half.stage[0, 0], half.alpha[0, 0], half.mode[0, 0]) == (Stage.BLENDING, 0.5, Mode.HOLD)


@pytest.mark.parametrize("isolation", Isolation)
@pytest.mark.parametrize("incubation", Incubation)
def test_duration_of_isolation(isolation, incubation):
    config = SlotsConfig(auto_advance=[*ALL_AUTO, "fossilized"], isolation=isolation, incubation=incubation)
    state, open_in = step(empty(1, 1), config, Op.GERMINATE), {}
    while len(open_in) == 0 or state.stage[0, 0] != Stage.FOSSILIZED:
        open_in[Stage(state.stage[0, 0])] = bool(lifecycle.roles(state, config).open[0, 0])
        state = step(state, config)
    assert lifecycle.roles(state, config).open[0, 0]
    late = isolation == Isolation.until_kept
    assert open_in.pop(Stage.TRAINING) == (incubation == Incubation.none and not late)
    assert set(open_in.values()) == {not late}


@pytest.mark.parametrize("fossils", Fossils)
def test_fossils_learn_or_stay_frozen(fossils):
    config = SlotsConfig(auto_advance=[*ALL_AUTO, "fossilized"], fossils=fossils)
    _, state = life(config, *[Op.WAIT] * 5)
    roles = lifecycle.roles(state, config)
    assert roles.fossil[0, 0]
    assert roles.learns[0, 0] == (fossils == Fossils.learning)


# ---- removal by rules, and automatic gates


def test_prune_after_removes_old_seeds():
    config = SlotsConfig(auto_advance=["training"], prune_after=7)
    stages, _ = life(config, *[Op.WAIT] * 7)
    assert stages == [Stage.TRAINING] * 7 + [Stage.PRUNED]
    stages, _ = life(replace(config, auto_advance=[*ALL_AUTO, "fossilized"]), *[Op.WAIT] * 20)
    assert stages[-1] == Stage.FOSSILIZED, "fossils stay"


@pytest.mark.parametrize(("threshold", "least", "stays"), [(1.4, 0, True), (1.6, 0, False), (1.6, 9, True), (None, 0, True)])
def test_prune_below_removes_seeds_at_their_alpha_target(threshold, least, stays):
    config = SlotsConfig(auto_advance=ALL_AUTO, prune_below=threshold, min_prune_age=least)
    stages, _ = life(config, *[Op.WAIT] * 4)  # its contribution is 1.5 from the first tick on
    assert stages == [Stage.TRAINING, Stage.BLENDING, Stage.BLENDING, Stage.HOLDING, Stage.HOLDING if stays else Stage.PRUNED]
    stages, _ = life(config, *[Op.WAIT] * 12)
    assert (stages[-1] == Stage.HOLDING) == (stays and threshold != 1.6)


def test_fossilisation_can_be_automatic():
    config = SlotsConfig(auto_advance=[*ALL_AUTO, "fossilized"])
    stages, _ = life(config, *[Op.WAIT] * 4)
    assert stages[-2:] == [Stage.HOLDING, Stage.FOSSILIZED]
    stages, state = life(config, *[Op.WAIT] * 6, gates=GatesConfig(min_contribution=1.6))
    assert stages[-1] == Stage.HOLDING
    assert not legal_slots(state, config, np.array([True, True]))[0, Op.FOSSILIZE].any()


@pytest.mark.parametrize("incubation", Incubation)
@pytest.mark.parametrize("gates", [GATED, GatesConfig(min_training=4, min_blending=6), GatesConfig(min_blending=1)])
@pytest.mark.parametrize("tempo", TEMPOS)
def test_shortest_life_matches_a_simulation(incubation, gates, tempo):
    config = SlotsConfig(auto_advance=[*ALL_AUTO, "fossilized"], incubation=incubation)
    steps = shortest_life(config, gates, TEMPOS[tempo])
    stages, _ = life(config, *[Op.WAIT] * (steps - 1), gates=gates, tempo=tempo)
    assert (stages[-2], stages[-1]) == (Stage.HOLDING, Stage.FOSSILIZED)


@pytest.mark.parametrize("incubation", [Incubation.closed_loop, Incubation.none])
@pytest.mark.parametrize("gates", [GATED, GatesConfig(min_training=3, min_blending=4), GatesConfig(min_blending=1)])
@pytest.mark.parametrize("auto", [some for count in range(5) for some in combinations(GATES, count)], ids=",".join)
def test_shortest_life_depends_on_automatic_gates(incubation, gates, auto):
    """A controller that acts as soon as it is legal takes exactly this many steps."""
    config = SlotsConfig(auto_advance=list(auto), incubation=incubation)
    for tempo, ticks in TEMPOS.items():
        state, steps = step(empty(1, 2), config, Op.GERMINATE, gates=gates, tempo=tempo), 1
        while state.stage[0, 0] != Stage.FOSSILIZED:
            legal_O = legal_slots(state, config, np.array([True, True]), gates, FREE)[0, :, 0]
            op = next((op for op in (Op.FOSSILIZE, Op.ADVANCE) if legal_O[op]), Op.WAIT)
            state, steps = step(state, config, op, gates=gates), steps + 1
        assert steps == shortest_life(config, gates, ticks)


@pytest.mark.parametrize("auto", [[], ALL_AUTO, list(GATES)])
@pytest.mark.parametrize("spare", [1, 2])
def test_a_seed_that_is_removed_by_age_needs_that_many_epochs(auto, spare):
    """The warning about `prune_after` counts on it: a seed is removed before its shortest life is over, or just not."""
    life = shortest_life(SlotsConfig(auto_advance=auto), GATED, TEMPOS["fast"])
    config = SlotsConfig(auto_advance=auto, prune_after=life - spare, min_prune_age=0)
    state = step(empty(1, 2), config, Op.GERMINATE, gates=GATED)
    while state.stage[0, 0] not in (Stage.FOSSILIZED, Stage.PRUNED):
        legal_O = legal_slots(state, config, np.array([True, True]), GATED, FREE)[0, :, 0]
        op = next((op for op in (Op.FOSSILIZE, Op.ADVANCE) if legal_O[op]), Op.WAIT)
        state = step(state, config, op, gates=GATED)
    assert state.stage[0, 0] == (Stage.FOSSILIZED if spare == 1 else Stage.PRUNED)


@pytest.mark.parametrize("embargo", range(3))
def test_an_emptied_slot_opens_after_the_embargo(embargo):
    config = EveryBlockConfig(embargo=embargo, min_prune_age=0)
    state, closed = step(step(empty(1, 2), config, Op.GERMINATE), config, Op.PRUNE), 0
    while not legal_slots(state, config, np.array([True, True]), GATED, FREE)[0, Op.GERMINATE, 0]:
        state, closed = step(state, config), closed + 1
    assert closed + 1 == embargo + 2


def test_one_at_a_time_limits_seeds_in_training():
    chosen = np.array([True, True, True])
    for one_at_a_time in (False, True):
        config = SlotsConfig(one_at_a_time=one_at_a_time, auto_advance=[])
        state = empty(4, 3)
        state.stage[:, 0] = Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING, Stage.FOSSILIZED
        may_NS = lifecycle.may_germinate(state, config, chosen)
        assert may_NS[:, 1:].all(axis=1).tolist() == [not one_at_a_time] * 2 + [True] * 2
        assert not may_NS[:, 0].any()


def test_improvement_counts_from_the_entry_into_the_stage():
    config, state = SlotsConfig(auto_advance=["training"]), empty(1, 1)
    state.accuracy[:] = 30.0
    state = step(state, config, Op.GERMINATE, measure=False)
    assert state.improvement[0, 0] == 0.0
    state.accuracy[:] = 30.5
    assert state.improvement[0, 0] == 0.5
    state = step(state, config, Op.ADVANCE, measure=False)
    assert state.improvement[0, 0] == 0.0


def test_a_fossil_that_is_off_does_not_learn() -> None:
    """Its gradient is 0, but momentum and weight decay would change it."""
    state = empty(1, 2)
    state.stage[:], state.blueprint[:], state.alpha[:] = Stage.FOSSILIZED, 0, [[0.0, 1.0]]
    roles = lifecycle.roles(state, SlotsConfig(switchable=True))
    assert roles.learns.tolist() == [[False, True]]
    assert roles.blueprint.tolist() == [[-1, state.blueprint[0, 1]]], "one that is off is not computed"


@pytest.mark.parametrize("epochs", [0, 3])
def test_seeds_learn_for_so_many_epochs(epochs: int) -> None:
    config = SlotsConfig(auto_advance=ALL_AUTO, incubation=Incubation.none, learning_epochs=epochs)
    state = empty(1, 1)
    learned = []
    for op in (Op.GERMINATE, *[Op.WAIT] * 5, Op.FOSSILIZE, Op.WAIT):
        state = lifecycle.tick(execute(state, action(op), config), config, GatesConfig(min_training=1))
        learned.append(bool(lifecycle.roles(state, config).learns[0, 0]))
        state = measured(state)
    assert state.stage[0, 0] == Stage.FOSSILIZED
    assert learned == [True] * (epochs or 8) + [False] * (8 - (epochs or 8))
