"""The life of a seed, driven by random actions against a second, slower telling of the rules."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.env.actions import (
    ALPHA_SPEEDS,
    ALPHA_TARGETS,
    PARAMETER_HEADS,
    STYLES,
    TEMPOS,
    VALUES,
    Head,
    HeadsConfig,
    execute,
    legal_slots,
    legal_values,
    parameters_legal,
)
from esper.population import lifecycle
from esper.population.gates import GatesConfig, gate_open, may_fossilize
from esper.population.lifecycle import may_germinate, may_prune
from esper.population.ramps import STEEPNESS, Curve
from esper.population.roles import Blend, Fossils, Incubation
from esper.population.slots import GATES, EveryBlockConfig, Isolation, OneSeedConfig, SlotsConfig
from esper.population.stages import BLENDED, LIVE, OCCUPIED, TAKES_PART, Mode, Op, Stage
from esper.population.transitions import TRANSITIONS, page

ALL_AUTO = ["training", "blending", "holding"]
FREE = HeadsConfig(style="free", tempo="free", alpha_target="free", alpha_speed="free", alpha_curve="free")
GATED = GatesConfig()
KNOWN = {(row.start, row.end, row.op) for row in TRANSITIONS}


def action(op, slot=0, *, blueprint=1, style="linear_add", tempo="fast", target="full", speed="instant", curve="linear"):
    """One action of one host, its parameters by name."""
    names = {Head.STYLE: style, Head.TEMPO: tempo, Head.ALPHA_TARGET: target, Head.ALPHA_SPEED: speed, Head.ALPHA_CURVE: curve}
    row = np.zeros((1, len(Head)), dtype=np.int64)
    row[0, [Head.OP, Head.SLOT, Head.BLUEPRINT]] = op, slot, blueprint
    for head, name in names.items():
        row[0, head] = list(VALUES[head]).index(name)
    return row


def step(state, config, op=Op.WAIT, slot=0, *, gates=GATED, measure=True, **parameters):
    """One step of one host: the operation, whether legal or not, then time, then a measurement."""
    state = execute(state, action(op, slot, **parameters), config)
    return measured(lifecycle.tick(state, config, gates)) if measure else lifecycle.tick(state, config, gates)


def measured(state, rng=None):
    """As an epoch does: every seed with an alpha above 0 gets a contribution, and every host an accuracy."""
    inside, shape = state.within(*TAKES_PART) & (state.alpha > 0), state.stage.shape

    def some(low, high, value, size=shape):
        return np.full(size, value, np.float32) if rng is None else rng.uniform(low, high, size).astype(np.float32)

    part = state.within(*TAKES_PART)
    return replace(
        state,
        contribution=np.where(inside, some(-3, 5, 1.5), state.contribution),
        contribution_error=np.where(inside, some(0, 2, 0.5), state.contribution_error),
        measured=state.measured | inside,
        accuracy=np.repeat(some(20, 90, 50.0, (shape[0], 1)), shape[1], axis=1),
        gradient_ratio=np.where(part, some(0, 2, 1.0), np.float32(np.nan)),
        gradient_norm=np.where(part, some(0, 20, 1.0), np.float32(np.nan)),
    )


# ---- what must always hold


def share_of(done, total, curve):
    """f(t) in plain Python."""
    t = done / total
    if curve == Curve.LINEAR:
        return t
    if curve == Curve.COSINE:
        return (1 - math.cos(math.pi * t)) / 2
    low, here, high = (1 / (1 + math.exp(-STEEPNESS[curve] * x)) for x in (-0.5, t - 0.5, 0.5))
    return (here - low) / (high - low)


def assert_sound(state, config):
    empty = ~state.within(*OCCUPIED)
    blank = lifecycle.empty(*state.stage.shape).arrays()
    for name, array in state.arrays().items():
        assert array.shape == state.stage.shape, name
        assert array.dtype == blank[name].dtype, name
        if name not in ("stage", "stage_age", "accuracy", "accuracy_start"):
            assert np.array_equal(array[empty], blank[name][empty], equal_nan=array.dtype.kind == "f"), name
    assert ((state.blueprint == -1) == empty).all()
    assert ((state.alpha >= 0) & (state.alpha <= 1)).all()
    immersed = config.incubation == Incubation.none
    early = state.within(Stage.GERMINATED) if immersed else state.within(Stage.GERMINATED, Stage.TRAINING)
    assert (state.alpha[early] == 0).all()
    assert (state.alpha[state.within(Stage.HOLDING, Stage.FOSSILIZED)] == 1).all()
    settled = (state.within(Stage.BLENDING) & ~state.moving) | (state.within(Stage.TRAINING) & immersed)
    assert (state.alpha[settled] == state.ramp_target[settled]).all()
    assert (state.ramp_target[state.within(*OCCUPIED) & ~state.dying] >= 0.5).all()
    for place in np.argwhere(state.moving):
        at = tuple(place)
        f = share_of(state.ramp_done[at], state.ramp_total[at], state.ramp_curve[at])
        wanted = state.ramp_start[at] + (state.ramp_target[at] - state.ramp_start[at]) * f
        assert state.alpha[at] == pytest.approx(wanted, abs=1e-6)
    dying = state.dying
    assert (state.moving[dying] & (state.ramp_target[dying] == 0) & (state.mode[dying] == Mode.DOWN)).all()
    if config.max_seeds:
        assert (state.within(*OCCUPIED).sum(axis=1) <= config.max_seeds).all()
    assert_roles_sound(state, config)


def assert_roles_sound(state, config):
    roles = lifecycle.roles(state, config)
    part = state.within(*TAKES_PART)
    assert ((roles.blueprint >= 0) == part).all()
    assert not (roles.behind & (roles.alpha > 0)).any()
    assert not (roles.open & roles.behind).any()
    assert not ((roles.open | roles.learns | roles.behind | roles.fossil) & ~part).any()
    assert not (roles.learns & state.dying).any()
    assert (roles.open[roles.fossil]).all()
    assert (roles.learns[roles.fossil] == (config.fossils == Fossils.learning)).all()
    assert (roles.learns[part & ~state.dying & ~roles.fossil]).all()


def passes(state, gates, at, incubation):
    """Every gate once more, for one seed: the stage that it may go on to, or None."""
    stage, age = Stage(state.stage[at]), state.stage_age[at]
    if stage == Stage.GERMINATED:
        return Stage.TRAINING
    if stage == Stage.TRAINING:
        won = state.accuracy[at] - state.accuracy_start[at]
        fine = age >= gates.min_training
        fine &= gates.min_improvement is None or won >= gates.min_improvement
        fine &= gates.min_gradient_ratio is None or state.gradient_ratio[at] >= gates.min_gradient_ratio
        fine &= gates.max_gradient_norm is None or state.gradient_norm[at] <= gates.max_gradient_norm
        after = Stage.HOLDING if incubation == Incubation.none and state.ramp_target[at] == 1 else Stage.BLENDING
        return after if fine else None
    if stage == Stage.BLENDING:
        full = state.ramp_done[at] >= state.ramp_total[at] and state.ramp_target[at] == 1
        return Stage.HOLDING if full and age >= gates.min_blending else None
    if stage == Stage.HOLDING and state.measured[at]:
        worth = state.contribution[at] - gates.contribution_z * state.contribution_error[at]
        return Stage.FOSSILIZED if gates.min_contribution is None or worth >= gates.min_contribution else None
    return None


def assert_done(before, after, row, gates, config):
    """One legal operation had its effect, and no other, on its slot."""
    op, at = Op(row[Head.OP]), row[Head.SLOT]
    meant = {head: list(values.values())[row[head]] for head, values in VALUES.items()}
    was, now = Stage(before.stage[at]), Stage(after.stage[at])
    if op == Op.GERMINATE:
        blend, curve = meant[Head.STYLE]
        assert now == Stage.GERMINATED
        assert (after.blueprint[at], after.blend[at], after.ramp_curve[at]) == (row[Head.BLUEPRINT], blend, curve)
        assert (after.ramp_total[at], after.ramp_done[at]) == (meant[Head.TEMPO], 0)
        assert after.ramp_target[at] == np.float32(meant[Head.ALPHA_TARGET])
    elif op in (Op.ADVANCE, Op.FOSSILIZE):
        assert now == passes(before, gates, at, config.incubation)
        assert (now == Stage.FOSSILIZED) == (op == Op.FOSSILIZE)
    elif op == Op.SET_ALPHA_TARGET:
        target = np.float32(meant[Head.ALPHA_TARGET])
        if target == before.ramp_target[at]:
            assert after.alpha[at] == before.alpha[at]
            assert now == was
        else:
            assert now == Stage.BLENDING
            assert (after.ramp_start[at], after.ramp_target[at]) == (before.alpha[at], target)
            assert (after.ramp_total[at], after.ramp_curve[at]) == (meant[Head.ALPHA_SPEED], meant[Head.ALPHA_CURVE])
            assert after.alpha[at] == (before.alpha[at] if meant[Head.ALPHA_SPEED] else target)
    elif op == Op.PRUNE and was in BLENDED and before.alpha[at] > 0 and meant[Head.ALPHA_SPEED] > 0:
        assert (now, bool(after.dying[at]), after.alpha[at]) == (Stage.BLENDING, True, before.alpha[at])
    elif op == Op.PRUNE:
        assert now == Stage.PRUNED
    if op != Op.GERMINATE and now in OCCUPIED:
        assert (after.blend[at], after.blueprint[at]) == (before.blend[at], before.blueprint[at]), "a seed stays what it is"


class One:
    """One host of a state."""

    def __init__(self, state, host):
        for name, array in state.arrays().items():
            setattr(self, name, array[host])


slots_configs = st.builds(
    SlotsConfig,
    max_seeds=st.integers(0, 2),
    auto_advance=st.lists(st.sampled_from(list(GATES)), unique=True),
    min_prune_age=st.integers(0, 3),
    embargo=st.integers(0, 3),
    prune_after=st.sampled_from([0, 0, 12, 25]),
    prune_below=st.sampled_from([None, None, -1.0, 1.0]),
    incubation=st.sampled_from(Incubation),
    isolation=st.sampled_from(Isolation),
    fossils=st.sampled_from(Fossils),
)
gates_configs = st.builds(
    GatesConfig,
    min_training=st.integers(1, 3),
    min_improvement=st.sampled_from([None, 0.0]),
    min_gradient_ratio=st.sampled_from([None, 0.5]),
    max_gradient_norm=st.sampled_from([None, 15.0]),
    min_blending=st.integers(0, 5),
    min_contribution=st.sampled_from([0.0, 1.0]),
    contribution_z=st.sampled_from([0.0, 1.0]),
)
heads_configs = st.builds(
    HeadsConfig,
    style=st.sampled_from(["linear_add", "free"]),
    tempo=st.sampled_from(["slow", "free"]),
    alpha_target=st.sampled_from(["full", "free"]),
    alpha_speed=st.sampled_from(["medium", "free"]),
    alpha_curve=st.sampled_from(["cosine", "free"]),
)
SIZES = (len(Op), 3, 2, *map(len, VALUES.values()))


def drawn_actions(rng, legal, values):
    """Actions of all hosts: a third wholly random, the others legal."""
    hosts = len(legal)
    actions = np.stack([rng.integers(size, size=hosts) for size in SIZES], axis=1)
    for host in np.flatnonzero(rng.random(hosts) < 0.7):
        op = rng.choice(np.flatnonzero(legal[host].any(axis=1)))
        actions[host, [Head.OP, Head.SLOT]] = op, rng.choice(np.flatnonzero(legal[host, op]))
        start = 0
        for head in PARAMETER_HEADS:
            actions[host, head] = rng.choice(np.flatnonzero(values[host, start : start + SIZES[head]]))
            start += SIZES[head]
    return actions


def drive(config, gates, heads, seed, *, hosts=16, steps=60):
    """Random actions on random hosts, every rule checked in every step; returns the changes of stage that were seen."""
    rng, seen = np.random.default_rng(seed), set()
    state, chosen = measured(lifecycle.empty(hosts, 3), rng), np.array([True, True, seed % 2 == 0])
    values, at = legal_values(hosts, 2, heads, config), np.arange(hosts)
    for _ in range(steps):
        legal = legal_slots(state, config, chosen, gates, heads)
        actions = drawn_actions(rng, legal, values)
        allowed = legal[at, actions[:, Head.OP], actions[:, Head.SLOT]] & parameters_legal(actions, values, SIZES)
        actions[~allowed, Head.OP] = Op.WAIT
        before = state.copy()
        after = execute(state, actions, config)
        acted = np.flatnonzero(actions[:, Head.OP] != Op.WAIT)
        here = np.zeros_like(after.measured)
        here[acted, actions[acted, Head.SLOT]] = True
        for name, array in before.arrays().items():
            floating = array.dtype.kind == "f"
            assert np.array_equal(array, state.arrays()[name], equal_nan=floating), "the old state is left alone"
            assert np.array_equal(array[~here], after.arrays()[name][~here], equal_nan=floating), f"{name}: not asked for"
        for host in acted:
            assert_done(One(before, host), One(after, host), actions[host], gates, config)
        seen |= changes(before, after, actions[:, Head.OP])
        ticked = lifecycle.tick(after, config, gates)
        assert_ticked(after, ticked, config, gates)
        seen |= changes(after, ticked, None)
        assert seen <= KNOWN
        assert not ticked.within(*OCCUPIED)[:, ~chosen].any()
        state = measured(ticked, rng)
        assert_sound(state, config)
    return seen


def changes(before, after, ops):
    """Changes of stage between two states, each with the operation that caused it."""
    return {
        (Stage(before.stage[host, slot]), Stage(after.stage[host, slot]), None if ops is None else Op(ops[host]))
        for host, slot in np.argwhere(before.stage != after.stage)
    }


def assert_ticked(before, after, config, gates):
    """Time opens no gate that is shut, ages everything by one epoch, and removes only whom a rule names."""
    stayed = before.stage == after.stage
    assert (after.stage_age == np.where(stayed, before.stage_age, 0) + 1).all()
    assert (after.seed_age == np.where(after.within(*OCCUPIED), before.seed_age + 1, 0)).all()
    for at in map(tuple, np.argwhere(~stayed)):
        was, now = Stage(before.stage[at]), Stage(after.stage[at])
        if now == Stage.PRUNED:
            old = 0 < config.prune_after <= before.seed_age[at]
            settled = was in BLENDED and before.ramp_done[at] >= before.ramp_total[at] and before.measured[at]
            poor = settled and config.prune_below is not None and before.contribution[at] < config.prune_below
            faded = before.dying[at] and before.ramp_done[at] + 1 >= before.ramp_total[at]
            assert old or faded or (poor and before.seed_age[at] >= config.min_prune_age)
        elif was in LIVE:
            assert now in [stage for stage in Stage if stage.name.lower() in config.auto_advance] or (
                (was, now) == (Stage.TRAINING, Stage.HOLDING) and "blending" in config.auto_advance
            )
            ripe = replace(before, ramp_done=before.ramp_done + before.within(Stage.BLENDING))
            assert now == passes(ripe, gates, at, config.incubation)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(config=slots_configs, gates=gates_configs, heads=heads_configs, seed=st.integers(0, 2**16))
def test_legal_actions_are_done_illegal_ones_are_not_and_every_stage_has_its_door(config, gates, heads, seed):
    drive(config, gates, heads, seed)


def test_the_table_of_transitions_is_what_the_code_does():
    seen = set()
    for number, auto in enumerate(([], [*ALL_AUTO, "fossilized"], ["training"], ["blending"])):
        for incubation in Incubation:
            config = SlotsConfig(
                auto_advance=auto,
                incubation=incubation,
                min_prune_age=0,
                embargo=number % 2,
                prune_after=number % 2 * 9,
                prune_below=-1.0 if number == 1 else None,
            )
            seen |= drive(config, GATED, FREE, number, hosts=24, steps=60)
    assert seen == KNOWN
    assert len(TRANSITIONS) == len(KNOWN)


def test_the_page_of_the_lifecycle_is_up_to_date():
    """Write it anew with: python -m esper.population.transitions > docs/lifecycle.md"""
    assert (Path(__file__).parents[2] / "docs" / "lifecycle.md").read_text() == page()


@settings(max_examples=15, deadline=None, derandomize=True)
@given(config=slots_configs, gates=gates_configs, heads=heads_configs, seed=st.integers(0, 2**16))
def test_legality_is_what_the_rules_say_slot_by_slot(config, gates, heads, seed):
    """The same rules once more, for one slot at a time, in states that need not be reachable."""
    rng = np.random.default_rng(seed)
    state = measured(lifecycle.empty(200, 3), rng)
    state.stage = rng.integers(len(Stage), size=(200, 3))
    state.stage_age, state.seed_age = rng.integers(0, 5, (200, 3)), rng.integers(0, 5, (200, 3))
    state.ramp_total, state.ramp_done = rng.integers(0, 4, (200, 3)), rng.integers(0, 4, (200, 3))
    state.ramp_target = rng.choice(np.float32([0.5, 1.0]), (200, 3))
    state.measured, state.dying = rng.random((200, 3)) < 0.5, rng.random((200, 3)) < 0.2
    state.accuracy_start = rng.uniform(20, 90, (200, 3)).astype(np.float32)
    chosen = np.array([True, False, True])
    legal = legal_slots(state, config, chosen, gates, heads)
    for host, slot in np.ndindex(200, 3):
        at, stage = (host, slot), Stage(state.stage[host, slot])
        held = sum(Stage(other) in OCCUPIED for other in state.stage[host])
        room = config.max_seeds == 0 or held < config.max_seeds
        moving = stage == Stage.BLENDING and state.ramp_done[at] < state.ramp_total[at]
        onward = passes(state, gates, at, config.incubation)
        by_itself = stage in [GATES[name] for name in config.auto_advance]
        assert legal[host, :, slot].tolist() == [
            True,
            stage == Stage.DORMANT and bool(chosen[slot]) and room,
            heads.alpha_target == "free" and stage in BLENDED and not moving,
            stage in LIVE and bool(state.seed_age[at] >= config.min_prune_age) and not state.dying[at],
            onward == Stage.FOSSILIZED and not by_itself,
            onward not in (None, Stage.FOSSILIZED) and not by_itself,
        ]


# ---- lives told one by one


def life(config, *ops, gates=GATED, **parameters):
    """Stages of the first slot after each step: a germination, and then a script of ops, or pairs (op, parameters)."""
    state, stages = lifecycle.empty(1, 2), []
    for entry in ((Op.GERMINATE, parameters), *ops):
        op, given = entry if isinstance(entry, tuple) else (entry, {})
        assert op == Op.WAIT or legal_slots(state, config, np.array([True, True]), gates, FREE)[0, op, 0], op
        state = step(state, config, op, gates=gates, **given)
        stages.append(Stage(state.stage[0, 0]))
    return stages, state


def test_by_itself_a_seed_goes_from_germination_to_holding():
    stages, state = life(SlotsConfig(auto_advance=ALL_AUTO), *[Op.WAIT] * 5, gates=GatesConfig(min_training=2))
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
    config, gates = EveryBlockConfig(), GatesConfig(min_training=3)
    state = step(lifecycle.empty(1, 2), config, Op.GERMINATE)
    for age in range(1, 6):
        assert gate_open(state, gates)[0, 0] == (age >= 3)
        state = step(state, config)


@pytest.mark.parametrize("tempo", TEMPOS)
def test_alpha_rises_evenly_and_ends_exactly_at_one(tempo):
    config, ticks = SlotsConfig(auto_advance=ALL_AUTO), TEMPOS[tempo]
    state, seen = step(lifecycle.empty(1, 1), config, Op.GERMINATE, tempo=tempo), []
    while state.stage[0, 0] != Stage.HOLDING:
        state = step(state, config)
        seen.append(state.alpha[0, 0])
    assert seen == [np.float32(done / ticks) for done in range(1, ticks + 1)]
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
    assert not gate_open(state, GATED).any()
    assert not may_fossilize(state, GATED).any()
    assert (state.alpha[0, 0], state.seed_age[0, 0], state.stage_age[0, 0]) == (1.0, 15, 11)


def test_a_seed_can_be_kept_only_after_its_contribution_was_measured():
    config = SlotsConfig(auto_advance=ALL_AUTO)
    state = step(lifecycle.empty(1, 1), config, Op.GERMINATE, measure=False)
    for _ in range(4):
        state = step(state, config, measure=False)
    assert state.stage[0, 0] == Stage.HOLDING
    assert not may_fossilize(state, GATED).any()
    assert may_fossilize(step(state, config), GATED).all()


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
    fresh = step(measured(lifecycle.empty(1, 1)), config, Op.GERMINATE)
    for name, array in state.arrays().items():
        assert array == fresh.arrays()[name], name


# ---- alpha


def blended(target="full", **others):
    """A seed whose first ramp is over."""
    config = SlotsConfig(auto_advance=ALL_AUTO, min_prune_age=0, **others)
    return config, life(config, *[Op.WAIT] * 4, target=target)[1]


@pytest.mark.parametrize(("style", "meaning"), STYLES.items())
def test_a_style_is_a_blend_for_life_and_the_curve_of_the_first_ramp(style, meaning):
    config, (blend, curve) = SlotsConfig(auto_advance=ALL_AUTO), meaning
    state = step(lifecycle.empty(1, 1), config, Op.GERMINATE, style=style, tempo="standard")
    seen = []
    for _ in range(5):
        state = step(state, config)
        seen.append(float(state.alpha[0, 0]))
        assert lifecycle.roles(state, config).blend[0, 0] == blend
    assert seen == pytest.approx([share_of(done, 5, curve) for done in range(1, 6)], abs=1e-6)
    assert {Blend.ADD: 2, Blend.MULTIPLY: 1, Blend.GATE: 1}[blend] == sum(other == blend for other, _ in STYLES.values())


@pytest.mark.parametrize("target", ["half", "seventy"])
def test_a_partial_target_keeps_a_seed_in_blending_until_it_is_given_another(target):
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


def test_a_holding_seed_goes_back_to_blending_when_its_target_sinks():
    config, state = blended()
    assert state.stage[0, 0] == Stage.HOLDING
    same = step(state, config, Op.SET_ALPHA_TARGET, target="full", speed="slow")
    assert (same.stage[0, 0], same.mode[0, 0], same.stage_age[0, 0]) == (Stage.HOLDING, Mode.HOLD, state.stage_age[0, 0] + 1)
    sunk = step(state, config, Op.SET_ALPHA_TARGET, target="half", speed="fast")
    assert (sunk.stage[0, 0], sunk.mode[0, 0], sunk.stage_age[0, 0]) == (Stage.BLENDING, Mode.DOWN, 1)
    assert sunk.alpha[0, 0] == np.float32(1 - 0.5 / 3)
    at_once = step(state, config, Op.SET_ALPHA_TARGET, target="half", speed="instant")
    assert (at_once.stage[0, 0], at_once.alpha[0, 0], at_once.mode[0, 0]) == (Stage.BLENDING, 0.5, Mode.HOLD)
    assert lifecycle.roles(sunk, config).learns.any(), "only a seed on its way out stops learning"


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
def test_a_seed_that_is_not_in_is_pruned_at_once_whatever_the_speed(auto):
    config = SlotsConfig(auto_advance=auto, min_prune_age=0)
    state = step(lifecycle.empty(1, 1), config, Op.GERMINATE)
    assert step(state, config, Op.PRUNE, speed="slow").stage[0, 0] == Stage.PRUNED


def test_a_ramp_up_may_be_turned_into_a_ramp_down():
    config = SlotsConfig(auto_advance=ALL_AUTO, min_prune_age=0)
    _, state = life(config, Op.WAIT, tempo="slow")
    assert state.alpha[0, 0] == np.float32(1 / 8)
    state = step(state, config, Op.PRUNE, speed="fast")
    assert state.alpha[0, 0] == pytest.approx(1 / 8 * 2 / 3)
    assert state.mode[0, 0] == Mode.DOWN


def test_without_incubation_a_seed_is_in_at_once_and_skips_blending():
    config = SlotsConfig(auto_advance=["training", "blending"], incubation=Incubation.none)
    state = step(lifecycle.empty(1, 1), config, Op.GERMINATE, tempo="slow")
    roles = lifecycle.roles(state, config)
    assert (state.stage[0, 0], state.alpha[0, 0], state.mode[0, 0]) == (Stage.TRAINING, 1.0, Mode.HOLD)
    assert (roles.behind[0, 0], roles.open[0, 0], roles.learns[0, 0]) == (False, True, True)
    assert state.measured[0, 0]
    assert step(state, config).stage[0, 0] == Stage.HOLDING
    half = step(lifecycle.empty(1, 1), config, Op.GERMINATE, target="half")
    assert half.alpha[0, 0] == 0.5
    half = step(half, config)
    assert (half.stage[0, 0], half.alpha[0, 0], half.mode[0, 0]) == (Stage.BLENDING, 0.5, Mode.HOLD)


@pytest.mark.parametrize("isolation", Isolation)
@pytest.mark.parametrize("incubation", Incubation)
def test_how_long_a_seed_is_kept_from_its_host(isolation, incubation):
    config = SlotsConfig(auto_advance=[*ALL_AUTO, "fossilized"], isolation=isolation, incubation=incubation)
    state, open_in = step(lifecycle.empty(1, 1), config, Op.GERMINATE), {}
    while len(open_in) == 0 or state.stage[0, 0] != Stage.FOSSILIZED:
        open_in[Stage(state.stage[0, 0])] = bool(lifecycle.roles(state, config).open[0, 0])
        state = step(state, config)
    assert lifecycle.roles(state, config).open[0, 0]
    late = isolation == Isolation.until_kept
    assert open_in.pop(Stage.TRAINING) == (incubation == Incubation.none and not late)
    assert set(open_in.values()) == {not late}


@pytest.mark.parametrize("fossils", Fossils)
def test_what_a_fossil_does_is_a_choice(fossils):
    config = SlotsConfig(auto_advance=[*ALL_AUTO, "fossilized"], fossils=fossils)
    _, state = life(config, *[Op.WAIT] * 5)
    roles = lifecycle.roles(state, config)
    assert roles.fossil[0, 0]
    assert roles.learns[0, 0] == (fossils == Fossils.learning)


# ---- rules that remove seeds, and gates that open by themselves


def test_a_seed_that_is_not_kept_in_time_is_removed():
    config = SlotsConfig(auto_advance=["training"], prune_after=7)
    stages, _ = life(config, *[Op.WAIT] * 7)
    assert stages == [Stage.TRAINING] * 7 + [Stage.PRUNED]
    stages, _ = life(replace(config, auto_advance=[*ALL_AUTO, "fossilized"]), *[Op.WAIT] * 20)
    assert stages[-1] == Stage.FOSSILIZED, "what was kept stays"


@pytest.mark.parametrize(("threshold", "least", "stays"), [(1.4, 0, True), (1.6, 0, False), (1.6, 9, True), (None, 0, True)])
def test_a_seed_below_the_threshold_is_removed_when_alpha_has_come_to_its_target(threshold, least, stays):
    config = SlotsConfig(auto_advance=ALL_AUTO, prune_below=threshold, min_prune_age=least)
    stages, _ = life(config, *[Op.WAIT] * 4)  # its contribution is 1.5 from the first tick on
    assert stages == [Stage.TRAINING, Stage.BLENDING, Stage.BLENDING, Stage.HOLDING, Stage.HOLDING if stays else Stage.PRUNED]
    stages, _ = life(config, *[Op.WAIT] * 12)
    assert (stages[-1] == Stage.HOLDING) == (stays and threshold != 1.6)


def test_a_gate_to_fossilized_may_open_by_itself():
    config = SlotsConfig(auto_advance=[*ALL_AUTO, "fossilized"])
    stages, _ = life(config, *[Op.WAIT] * 4)
    assert stages[-2:] == [Stage.HOLDING, Stage.FOSSILIZED]
    stages, state = life(config, *[Op.WAIT] * 6, gates=GatesConfig(min_contribution=1.6))
    assert stages[-1] == Stage.HOLDING
    assert not legal_slots(state, config, np.array([True, True]))[0, Op.FOSSILIZE].any()


@pytest.mark.parametrize("incubation", Incubation)
@pytest.mark.parametrize("gates", [GATED, GatesConfig(min_training=4, min_blending=6), GatesConfig(min_blending=1)])
@pytest.mark.parametrize("tempo", TEMPOS)
def test_the_shortest_life_is_as_short_as_it_says(incubation, gates, tempo):
    config = SlotsConfig(auto_advance=[*ALL_AUTO, "fossilized"], incubation=incubation)
    steps = lifecycle.shortest_life(config, gates, TEMPOS[tempo])
    stages, _ = life(config, *[Op.WAIT] * (steps - 1), gates=gates, tempo=tempo)
    assert (stages[-2], stages[-1]) == (Stage.HOLDING, Stage.FOSSILIZED)


def test_improvement_counts_from_the_entry_into_the_stage():
    config, state = SlotsConfig(auto_advance=["training"]), lifecycle.empty(1, 1)
    state.accuracy[:] = 30.0
    state = step(state, config, Op.GERMINATE, measure=False)
    assert state.improvement[0, 0] == 0.0
    state.accuracy[:] = 30.5
    assert state.improvement[0, 0] == 0.5
    state = step(state, config, Op.ADVANCE, measure=False)
    assert state.improvement[0, 0] == 0.0
