"""The life of a seed, driven by random actions against a second, slower telling of the rules."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.env.actions import legal_slots
from esper.population import lifecycle
from esper.population.lifecycle import (
    GATES,
    LIVE,
    OCCUPIED,
    EveryBlockConfig,
    OneSeedConfig,
    Op,
    SlotsConfig,
    Stage,
    gate_open,
    may_fossilize,
    may_germinate,
    may_prune,
)

ALL_AUTO = ["training", "blending", "holding"]
MAY_FOLLOW = {
    Stage.DORMANT: {Stage.DORMANT, Stage.GERMINATED},
    Stage.GERMINATED: {Stage.GERMINATED, Stage.TRAINING, Stage.PRUNED},
    Stage.TRAINING: {Stage.TRAINING, Stage.BLENDING, Stage.PRUNED},
    Stage.BLENDING: {Stage.BLENDING, Stage.HOLDING, Stage.PRUNED},
    Stage.HOLDING: {Stage.HOLDING, Stage.FOSSILIZED, Stage.PRUNED},
    Stage.FOSSILIZED: {Stage.FOSSILIZED},
    Stage.PRUNED: {Stage.PRUNED, Stage.EMBARGOED, Stage.DORMANT},
    Stage.EMBARGOED: {Stage.EMBARGOED, Stage.DORMANT},
}


def act(state, op_N, slot_N, ramp=3, blueprint=1):
    """Executes operations as they are, without asking whether they are legal."""
    hosts, slots = state.stage.shape
    here = np.eye(slots, dtype=bool)[slot_N]
    where = {op: here & (op_N == op)[:, None] for op in Op}
    state = lifecycle.germinate(state, where[Op.GERMINATE], np.full(hosts, blueprint), np.full(hosts, ramp))
    state = lifecycle.prune(state, where[Op.PRUNE])
    state = lifecycle.advance(state, where[Op.ADVANCE])
    return lifecycle.fossilize(state, where[Op.FOSSILIZE])


def step(state, config, op=Op.WAIT, slot=0, *, ramp=3, measure=True):
    """One step of one host: the operation, then time."""
    state = act(state, np.array([op]), np.array([slot]), ramp)
    return measured(lifecycle.tick(state, config)) if measure else lifecycle.tick(state, config)


def measured(state):
    """As validation does: every seed with an alpha above 0 gets a contribution."""
    inside = state.within(Stage.BLENDING, Stage.HOLDING, Stage.FOSSILIZED) & (state.alpha > 0)
    state.contribution = np.where(inside, np.float32(1.5), state.contribution)
    state.measured = state.measured | inside
    return state


def assert_sound(state, config):
    empty = ~state.within(*OCCUPIED)
    assert ((state.blueprint == -1) == empty).all()
    assert (state.alpha[empty] == 0).all()
    assert not state.measured[empty].any()
    assert (state.seed_age[empty] == 0).all()
    assert (state.alpha[state.within(Stage.GERMINATED, Stage.TRAINING)] == 0).all()
    assert (state.alpha[state.within(Stage.HOLDING, Stage.FOSSILIZED)] == 1).all()
    blending = state.within(Stage.BLENDING)
    assert (
        state.alpha[blending] == np.minimum(state.ramp_done / np.maximum(state.ramp_total, 1), 1).astype(np.float32)[blending]
    ).all()
    if config.max_seeds:
        assert (state.within(*OCCUPIED).sum(axis=1) <= config.max_seeds).all()
    for name, array in state.arrays().items():
        assert array.shape == state.stage.shape, name
        assert array.dtype == lifecycle.empty(1, 1).arrays()[name].dtype, name


configs = st.builds(
    SlotsConfig,
    max_seeds=st.integers(0, 2),
    auto_advance=st.lists(st.sampled_from(ALL_AUTO), unique=True),
    min_training=st.integers(1, 3),
    min_prune_age=st.integers(0, 3),
    embargo=st.integers(0, 3),
)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(config=configs, seed=st.integers(0, 2**16))
def test_legal_actions_are_done_illegal_ones_are_not_and_every_stage_has_its_door(config, seed):
    hosts, slots, rng = 16, 3, np.random.default_rng(seed)
    state, chosen = lifecycle.empty(hosts, slots), np.array([True, True, seed % 2 == 0])
    at = np.arange(hosts)
    for _ in range(60):
        legal = legal_slots(state, config, chosen)
        op, slot = rng.integers(len(Op), size=hosts), rng.integers(slots, size=hosts)
        wise = rng.random(hosts) < 0.6  # else most actions are illegal and little happens
        for host in np.flatnonzero(wise):
            op[host], slot[host] = rng.choice(np.argwhere(legal[host]))
        allowed = legal[at, op, slot]
        before, ramps = state.copy(), rng.integers(2, 5)  # a ramp of one tick ends in the tick it begins in
        state = act(before, np.where(allowed, op, Op.WAIT), slot, ramps)
        assert all(
            np.array_equal(one, two) for one, two in zip(before.copy().arrays().values(), before.arrays().values(), strict=True)
        )
        here = np.eye(slots, dtype=bool)[slot] & (allowed & (op != Op.WAIT))[:, None]
        for name, array in state.arrays().items():  # what was not asked for, or refused, has not changed
            assert np.array_equal(array[~here], before.arrays()[name][~here]), name
        done = {
            Op.GERMINATE: Stage.GERMINATED,
            Op.PRUNE: Stage.PRUNED,
            Op.FOSSILIZE: Stage.FOSSILIZED,
        }
        for host in np.flatnonzero(allowed & (op != Op.WAIT)):
            was, now = Stage(before.stage[host, slot[host]]), Stage(state.stage[host, slot[host]])
            wanted = lifecycle.ADVANCES_TO[was] if op[host] == Op.ADVANCE else done[Op(op[host])]
            assert now == wanted
            assert now in MAY_FOLLOW[was]
            assert now != was
        assert not (before.within(Stage.FOSSILIZED) & ~state.within(Stage.FOSSILIZED)).any()
        ticked = measured(lifecycle.tick(state, config))
        for was, now in zip(state.stage.flat, ticked.stage.flat, strict=True):
            assert now == was or (
                Stage(now) in MAY_FOLLOW[Stage(was)] and Stage(now) not in (Stage.PRUNED, Stage.FOSSILIZED, Stage.GERMINATED)
            )
        assert not ticked.within(*OCCUPIED)[:, ~chosen].any()
        state = ticked
        assert_sound(state, config)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(config=configs, seed=st.integers(0, 2**16))
def test_legality_is_what_the_rules_say_slot_by_slot(config, seed):
    """The same rules once more, for one slot at a time."""
    rng = np.random.default_rng(seed)
    state = lifecycle.empty(200, 3)
    state.stage = rng.integers(len(Stage), size=(200, 3))
    state.stage_age, state.seed_age = rng.integers(0, 5, (200, 3)), rng.integers(0, 5, (200, 3))
    state.ramp_total, state.ramp_done = rng.integers(0, 4, (200, 3)), rng.integers(0, 4, (200, 3))
    state.measured = rng.random((200, 3)) < 0.5
    chosen = np.array([True, False, True])
    legal = legal_slots(state, config, chosen)
    for host, slot in np.ndindex(200, 3):
        stage = Stage(state.stage[host, slot])
        held = sum(Stage(other) in OCCUPIED for other in state.stage[host])
        room = config.max_seeds == 0 or held < config.max_seeds
        ready = {
            Stage.GERMINATED: True,
            Stage.TRAINING: state.stage_age[host, slot] >= config.min_training,
            Stage.BLENDING: state.ramp_done[host, slot] >= state.ramp_total[host, slot],
        }.get(stage, False)
        by_itself = stage in [GATES[name] for name in config.auto_advance]
        assert legal[host, :, slot].tolist() == [
            True,
            stage == Stage.DORMANT and bool(chosen[slot]) and room,
            False,
            stage in LIVE and bool(state.seed_age[host, slot] >= config.min_prune_age),
            stage == Stage.HOLDING and bool(state.measured[host, slot]),
            bool(ready) and not by_itself,
        ]


def life(config, *ops, ramp=3):
    """Stages of the first slot after each step of a script that starts with a germination."""
    state, stages = lifecycle.empty(1, 2), []
    for op in (Op.GERMINATE, *ops):
        assert op == Op.WAIT or legal_slots(state, config, np.array([True, True]))[0, op, 0], op
        state = step(state, config, op, ramp=ramp)
        stages.append(Stage(state.stage[0, 0]))
    return stages, state


def test_by_itself_a_seed_goes_from_germination_to_holding():
    stages, state = life(SlotsConfig(auto_advance=ALL_AUTO, min_training=2), *[Op.WAIT] * 5)
    assert stages == [Stage.TRAINING] * 2 + [Stage.BLENDING] * 2 + [Stage.HOLDING] * 2
    assert (state.alpha[0, 0], state.ramp_done[0, 0], state.seed_age[0, 0], state.stage_age[0, 0]) == (1.0, 3, 6, 2)


def test_by_hand_every_gate_wants_an_action():
    config = SlotsConfig(auto_advance=[])
    stages, _ = life(config, *[Op.WAIT] * 4)
    assert stages == [Stage.GERMINATED] * 5
    stages, state = life(config, Op.ADVANCE, Op.ADVANCE, *[Op.WAIT] * 5, Op.ADVANCE)
    assert stages == [Stage.GERMINATED, Stage.TRAINING, *[Stage.BLENDING] * 6, Stage.HOLDING]
    assert state.alpha[0, 0] == 1.0


def test_the_default_asks_only_when_to_blend():
    stages, _ = life(EveryBlockConfig(), Op.WAIT, Op.ADVANCE, *[Op.WAIT] * 3)
    assert stages == [Stage.TRAINING, Stage.TRAINING, Stage.BLENDING, Stage.BLENDING, Stage.HOLDING, Stage.HOLDING]


def test_blending_waits_for_min_training():
    state = lifecycle.empty(1, 2)
    config = EveryBlockConfig(min_training=3)
    state = step(state, config, Op.GERMINATE)
    for age in range(1, 6):
        assert gate_open(state, config)[0, 0] == (age >= 3)
        state = step(state, config)


@pytest.mark.parametrize("ramp", range(7))
def test_alpha_rises_evenly_and_ends_exactly_at_one(ramp):
    config = SlotsConfig(auto_advance=ALL_AUTO)
    state, seen = step(lifecycle.empty(1, 1), config, Op.GERMINATE, ramp=ramp), []
    while state.stage[0, 0] != Stage.HOLDING:
        state = step(state, config)
        seen.append(state.alpha[0, 0])
    assert seen == [np.float32(done / max(ramp, 1)) for done in range(1, max(ramp, 1) + 1)]
    assert step(state, config).alpha[0, 0] == 1.0


@pytest.mark.parametrize("embargo", range(4))
def test_an_emptied_slot_is_pruned_for_one_epoch_then_embargoed_for_so_many(embargo):
    config = EveryBlockConfig(embargo=embargo)
    state = step(step(lifecycle.empty(1, 1), config, Op.GERMINATE), config, Op.PRUNE)
    stages = []
    while state.stage[0, 0] != Stage.DORMANT:
        assert not may_germinate(state, config, np.array([True])).any()
        assert not may_prune(state, config).any()
        stages.append(Stage(state.stage[0, 0]))
        state = step(state, config)
    assert stages == [Stage.PRUNED] + [Stage.EMBARGOED] * embargo
    assert may_germinate(state, config, np.array([True])).all()


def test_the_cap_counts_live_seeds_and_fossils():
    config = OneSeedConfig(auto_advance=ALL_AUTO)
    every = np.ones(3, dtype=bool)
    state = step(lifecycle.empty(1, 3), config, Op.GERMINATE, 1)
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
    state = step(step(lifecycle.empty(1, 3), config, Op.GERMINATE, 1), config, Op.PRUNE, 1)
    assert may_germinate(state, config, np.ones(3, dtype=bool)).tolist() == [[True, False, True]]


def test_fossils_are_never_pruned_or_advanced_and_keep_their_alpha():
    config = SlotsConfig(auto_advance=ALL_AUTO, min_prune_age=0)
    _, state = life(config, *[Op.WAIT] * 3, Op.FOSSILIZE, *[Op.WAIT] * 10)
    assert state.stage[0, 0] == Stage.FOSSILIZED
    assert not may_prune(state, config).any()
    assert not gate_open(state, config).any()
    assert not may_fossilize(state).any()
    assert (state.alpha[0, 0], state.seed_age[0, 0], state.stage_age[0, 0]) == (1.0, 15, 11)


def test_a_seed_can_be_kept_only_after_its_contribution_was_measured():
    config = SlotsConfig(auto_advance=ALL_AUTO)
    state = step(lifecycle.empty(1, 1), config, Op.GERMINATE, measure=False)
    for _ in range(4):
        state = step(state, config, measure=False)
    assert state.stage[0, 0] == Stage.HOLDING
    assert not may_fossilize(state).any()
    assert may_fossilize(step(state, config)).all()


@pytest.mark.parametrize("least", range(4))
def test_pruning_waits_for_the_seed_s_age(least):
    config = EveryBlockConfig(min_prune_age=least)
    state = step(lifecycle.empty(1, 1), config, Op.GERMINATE)
    for age in range(1, 6):
        assert may_prune(state, config)[0, 0] == (age >= least)
        state = step(state, config)


def test_a_new_seed_knows_nothing_of_the_one_before():
    config = EveryBlockConfig(embargo=0, auto_advance=ALL_AUTO)
    state = lifecycle.empty(1, 1)
    for op in [Op.GERMINATE, *[Op.WAIT] * 4, Op.PRUNE, Op.WAIT, Op.GERMINATE]:
        state = step(state, config, op)
    fresh = step(lifecycle.empty(1, 1), config, Op.GERMINATE)
    for name, array in state.arrays().items():
        assert array == fresh.arrays()[name], name


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"where": ["r0c0", "r0c0"]}, r"slots\.where names a slot twice"),
        ({"max_seeds": -1}, r"slots\.max_seeds must be at least 0, got -1"),
        ({"auto_advance": ["training", "fossilized"]}, r"slots\.auto_advance must name stages out of .*, got fossilized"),
        ({"min_training": 0}, r"slots\.min_training must be at least 1, got 0"),
        ({"min_prune_age": -1}, r"slots\.min_prune_age must be at least 0, got -1"),
        ({"embargo": -1}, r"slots\.embargo must be at least 0, got -1"),
    ],
)
@pytest.mark.parametrize("kind", [SlotsConfig, OneSeedConfig, EveryBlockConfig])
def test_each_rule_of_the_config_fires(kind, fields, rule):
    with pytest.raises(ValueError, match=rule):
        kind(**fields)


def test_slots_are_chosen_by_name():
    names = ("r0c0", "r0c1", "r0c2")
    assert SlotsConfig().chosen(names).tolist() == [True, True, True]
    assert SlotsConfig(where=["r0c2"]).chosen(names).tolist() == [False, False, True]
    with pytest.raises(ValueError, match=r"slots\.where=r1c0 is not a slot of this host: it has r0c0, r0c1, r0c2"):
        SlotsConfig(where=["r0c0", "r1c0"]).chosen(names)
    assert OneSeedConfig().max_seeds == 1
