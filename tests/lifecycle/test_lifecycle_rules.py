"""The lifecycle under random actions, against a scalar implementation of the rules."""

import copy
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.env.actions import PARAMETER_HEADS, VALUES, Head, HeadsConfig, execute, legal_slots, legal_values, parameters_legal
from esper.lifecycle import operations as lifecycle
from esper.lifecycle.gates import GatesConfig
from esper.lifecycle.roles import Fossils, Incubation
from esper.lifecycle.slots import GATES, Isolation, SlotsConfig
from esper.lifecycle.stages import BLENDED, LIVE, OCCUPIED, TAKES_PART, Mode, Op, Stage, empty
from tests.lifecycle.lifecycle_help import ALL_AUTO, FREE, GATED, measured, share_of

STAGE = "|".join(stage.name.lower() for stage in Stage)
TRANSITIONS = re.findall(
    rf"^\| ({STAGE}) \| ({STAGE}) \| (\w+) \| .+ \|$",
    (Path(__file__).parents[2] / "docs" / "lifecycle.md").read_text(),
    flags=re.MULTILINE,
)
"""Return the rows of the table of transitions: start, end, and operation or None for time."""
KNOWN = {(Stage[start.upper()], Stage[end.upper()], None if by == "time" else Op[by]) for start, end, by in TRANSITIONS}


def assert_sound(state, config):
    vacant = ~state.within(*OCCUPIED)
    blank = empty(*state.stage.shape).arrays()
    for name, array in state.arrays().items():
        assert array.shape == state.stage.shape, name
        assert array.dtype == blank[name].dtype, name
        if name not in ("stage", "stage_age", "accuracy", "accuracy_start"):
            assert np.array_equal(array[vacant], blank[name][vacant], equal_nan=array.dtype.kind == "f"), name
    assert ((state.blueprint == -1) == vacant).all()
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
    """Return the stage that one seed may enter by its gate, or None."""
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
        full = state.ramp_done[at] >= state.ramp_total[at] and state.ramp_target[at] == 1 == state.alpha[at]
        return Stage.HOLDING if full and age >= gates.min_blending else None
    if stage == Stage.HOLDING and state.measured[at]:
        worth = state.contribution[at] - gates.contribution_z * state.contribution_error[at]
        return Stage.FOSSILIZED if gates.min_contribution is None or worth >= gates.min_contribution else None
    return None


def assert_done(before, after, row, gates, config):
    """Assert the effect of one legal operation on its slot."""
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
        assert (after.blend[at], after.blueprint[at]) == (before.blend[at], before.blueprint[at]), (
            "blend and blueprint are constant"
        )


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
    """Return actions of all hosts: about a third random, the others legal."""
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
    """Play random actions, check every rule in every step, and return the observed changes of stage."""
    rng, seen = np.random.default_rng(seed), set()
    state, chosen = measured(empty(hosts, 3), rng), np.array([True, True, seed % 2 == 0])
    values, at = legal_values(hosts, 2, heads, config), np.arange(hosts)
    for _ in range(steps):
        legal = legal_slots(state, config, chosen, gates, heads)
        actions = drawn_actions(rng, legal, values)
        allowed = legal[at, actions[:, Head.OP], actions[:, Head.SLOT]] & parameters_legal(actions, values, SIZES)
        actions[~allowed, Head.OP] = Op.WAIT
        before = copy.deepcopy(state)
        after = execute(state, actions, config)
        acted = np.flatnonzero(actions[:, Head.OP] != Op.WAIT)
        here = np.zeros_like(after.measured)
        here[acted, actions[acted, Head.SLOT]] = True
        for name, array in before.arrays().items():
            floating = array.dtype.kind == "f"
            assert np.array_equal(array, state.arrays()[name], equal_nan=floating), "the old state is not changed"
            assert np.array_equal(array[~here], after.arrays()[name][~here], equal_nan=floating), f"{name}: changed elsewhere"
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
    """Return the changes of stage between two states, each with its operation."""
    return {
        (Stage(before.stage[host, slot]), Stage(after.stage[host, slot]), None if ops is None else Op(ops[host]))
        for host, slot in np.argwhere(before.stage != after.stage)
    }


def assert_ticked(before, after, config, gates):
    """Assert that a tick passes open gates only, increases ages by one epoch, and removes seeds only by a rule."""
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
            done = before.ramp_done + before.within(Stage.BLENDING)
            ripe = replace(before, ramp_done=done, alpha=np.where(done >= before.ramp_total, before.ramp_target, before.alpha))
            assert now == passes(ripe, gates, at, config.incubation)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(config=slots_configs, gates=gates_configs, heads=heads_configs, seed=st.integers(0, 2**16))
def test_random_actions_obey_every_rule(config, gates, heads, seed):
    drive(config, gates, heads, seed, steps=40)


def test_documented_transitions_are_those_of_the_code():
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
            seen |= drive(config, GATED, FREE, number, hosts=24, steps=40)
    assert seen == KNOWN
    assert len(TRANSITIONS) == len(KNOWN)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(config=slots_configs, gates=gates_configs, heads=heads_configs, seed=st.integers(0, 2**16))
def test_legality_matches_a_scalar_implementation(config, gates, heads, seed):
    """The same rules slot by slot, in states that need not be reachable."""
    rng = np.random.default_rng(seed)
    state = measured(empty(200, 3), rng)
    state.stage = rng.integers(len(Stage), size=(200, 3))
    state.stage_age, state.seed_age = rng.integers(0, 5, (200, 3)), rng.integers(0, 5, (200, 3))
    state.ramp_total, state.ramp_done = rng.integers(0, 4, (200, 3)), rng.integers(0, 4, (200, 3))
    state.ramp_target, state.alpha = rng.choice(np.float32([0.5, 1.0]), (2, 200, 3))
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
