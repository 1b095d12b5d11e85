"""Each term by hand, and what shaping may not do."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.population import lifecycle
from esper.population.lifecycle import OCCUPIED, Op, Stage
from esper.reward import Reward, RewardConfig, ShapedConfig, SparseConfig, StepSignals, terms

GAMMA = 0.9
NAN = np.float32(np.nan)


def state_of(*rows):
    """Slots of hosts from stages; all live seeds have been measured, with contribution 10 * (host + 1) + slot."""
    state = lifecycle.empty(len(rows), len(rows[0]))
    state.stage = np.array(rows, dtype=np.int64)
    host, slot = np.indices(state.stage.shape)
    state.measured = state.within(*OCCUPIED)
    state.contribution = np.where(state.measured, 10 * (host + 1) + slot, 0).astype(np.float32)
    return state


def floats(*values):
    return np.array(values, dtype=np.float32)


@pytest.fixture
def signals():
    """Two hosts of three slots in mid-episode: the first prunes, the second germinates."""
    d, t, h, f, p, g = Stage.DORMANT, Stage.TRAINING, Stage.HOLDING, Stage.FOSSILIZED, Stage.PRUNED, Stage.GERMINATED
    return StepSignals(
        before=state_of([t, h, f], [d, h, d]),
        after=state_of([p, h, f], [g, h, d]),
        op_N=np.array([Op.PRUNE, Op.GERMINATE]),
        accuracy_before_N=floats(40.0, 50.0),
        accuracy_N=floats(44.0, 48.0),
        loss_N=floats(1.0, 1.0),
        train_loss_N=floats(1.0, 1.0),
        committed_accuracy_N=floats(NAN, NAN),
        all_off_accuracy_N=floats(NAN, NAN),
        interaction_NSS=np.full((2, 3, 3), np.nan, dtype=np.float32),
        params_before_NS=np.array([[5, 20, 30], [0, 20, 0]]),
        params_NS=np.array([[0, 20, 30], [10, 20, 0]]),
        host_params=100,
        last=False,
        rolled_back_N=np.array([False, False]),
    )


ONES = ShapedConfig(
    attribution=1.0, rent=1.0, accuracy_potential=1.0, stage_potential=1.0, germinate_cost=1.0, prune_cost=1.0, terminal=1.0
)


def close(seen, *wanted):
    assert seen.dtype == np.float32
    np.testing.assert_allclose(seen, wanted, rtol=1e-5, atol=1e-5)


def test_each_term_of_shaped_by_hand(signals):
    paid, parts = ONES.build(gamma=GAMMA)(signals)
    worth = terms.STAGE_POTENTIAL
    assert worth.tolist() == [0.0, 1.0, 2.0, 3.5, 5.5, 6.0, 0.0, 0.0]
    close(parts["attribution"], 11 + 12, 20 + 21)  # every seed that is held, fossils too, and not the pruned one
    close(parts["rent"], -0.5, -0.3)
    close(parts["shaping"], 0.9 * (44 + 5.5 + 6) - (40 + 2 + 5.5 + 6), 0.9 * (48 + 1 + 5.5) - (50 + 5.5))
    close(parts["germinate"], 0, -1)
    close(parts["prune"], -1, 0)
    close(parts["terminal"], 0, 0)
    close(paid, *np.sum(list(parts.values()), axis=0))
    assert tuple(parts) == ONES.build(gamma=GAMMA).names


def test_the_last_step_pays_what_was_committed_and_forgets_the_potential(signals):
    last = dataclasses.replace(signals, last=True, committed_accuracy_N=floats(43.0, 41.0))
    _, parts = ONES.build(gamma=GAMMA)(last)
    close(parts["terminal"], 43, 41)
    close(parts["shaping"], -(40 + 2 + 5.5 + 6), -(50 + 5.5))
    assert last.ended_N.tolist() == [True, True]


def test_a_rolled_back_host_is_paid_for_nothing_that_was_measured(signals):
    void = dataclasses.replace(
        signals,
        rolled_back_N=np.array([True, False]),
        accuracy_N=floats(NAN, 48.0),
        last=True,
        committed_accuracy_N=floats(NAN, 41),
    )
    void.after.contribution[0] = np.nan
    paid, parts = ONES.build(gamma=GAMMA)(void)
    close(parts["attribution"], 0, 41)
    close(parts["rent"], -0.55, -0.3)  # as it stood before the lost step
    close(parts["shaping"], -(40 + 2 + 5.5 + 6), -(50 + 5.5))
    close(parts["terminal"], 0, 41)
    assert np.isfinite(paid).all()
    assert void.ended_N.tolist() == [True, True]
    assert dataclasses.replace(void, last=False).ended_N.tolist() == [True, False]


def test_seeds_never_measured_earn_nothing(signals):
    signals.after.measured[1, 1] = False
    close(terms.attribution(signals), 23, 20)


TERM_OF = {
    "attribution": "attribution",
    "rent": "rent",
    "germinate_cost": "germinate",
    "prune_cost": "prune",
    "terminal": "terminal",
}


@pytest.mark.parametrize("weight", TERM_OF)
def test_a_weight_scales_its_term_and_zero_drops_it(signals, weight):
    last = dataclasses.replace(signals, last=True, committed_accuracy_N=floats(43.0, 41.0))
    one, three, none = (dataclasses.replace(ONES, **{weight: value}).build(gamma=GAMMA)(last)[1] for value in (1.0, 3.0, 0.0))
    for name in one:
        factor = 3 if name == TERM_OF[weight] else 1
        close(three[name], *(factor * one[name]))
        if factor == 3:
            assert one[name].any()
            assert not none[name].any()
        else:
            close(none[name], *one[name])


@pytest.mark.parametrize("weight", ["accuracy_potential", "stage_potential"])
def test_a_potential_of_weight_zero_shapes_nothing(signals, weight):
    left = {"accuracy_potential": 0.0, "stage_potential": 0.0} | {weight: 1.0}
    alone = dataclasses.replace(ONES, **left).build(gamma=GAMMA)(signals)[1]["shaping"]
    both = ONES.build(gamma=GAMMA)(signals)[1]["shaping"]
    neither = dataclasses.replace(ONES, accuracy_potential=0.0, stage_potential=0.0).build(gamma=GAMMA)(signals)[1]["shaping"]
    assert not neither.any()
    assert alone.any()
    assert not np.allclose(alone, both)


def random_signals(rng, before, accuracy_before, *, last, rolled_back):
    """A step to any state at all, by any operations."""
    hosts, slots = before.stage.shape
    after = state_of(*rng.integers(len(Stage), size=(hosts, slots)).tolist())
    return StepSignals(
        before=before,
        after=after,
        op_N=rng.integers(len(Op), size=hosts),
        accuracy_before_N=accuracy_before,
        accuracy_N=(100 * rng.random(hosts)).astype(np.float32),
        loss_N=rng.random(hosts).astype(np.float32),
        train_loss_N=rng.random(hosts).astype(np.float32),
        committed_accuracy_N=(100 * rng.random(hosts)).astype(np.float32),
        all_off_accuracy_N=np.full(hosts, np.nan, dtype=np.float32),
        interaction_NSS=np.full((hosts, slots, slots), np.nan, dtype=np.float32),
        params_before_NS=rng.integers(50, size=(hosts, slots)),
        params_NS=rng.integers(50, size=(hosts, slots)),
        host_params=100,
        last=last,
        rolled_back_N=np.full(hosts, rolled_back),
    )


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**16),
    steps=st.integers(1, 12),
    gamma=st.sampled_from([0.5, 0.9, 0.99, 1.0]),
    accuracy=st.floats(0, 2),
    stage=st.floats(0, 2),
    sick_end=st.booleans(),
)
def test_shaping_pays_minus_the_first_potential_over_any_path(seed, steps, gamma, accuracy, stage, sick_end):
    rng = np.random.default_rng(seed)
    config = dataclasses.replace(ONES, accuracy_potential=accuracy, stage_potential=stage)
    reward = config.build(gamma=gamma)
    first = state_of(*rng.integers(len(Stage), size=(4, 3)).tolist())
    state, known = first, (100 * rng.random(4)).astype(np.float32)
    potential = accuracy * known + stage * terms.stage_potential(first)
    total = np.zeros(4)
    for step in range(steps):
        end = step == steps - 1
        signals = random_signals(rng, state, known, last=end and not sick_end, rolled_back=end and sick_end)
        total += gamma**step * reward(signals)[1]["shaping"]
        state, known = signals.after, signals.accuracy_N
    np.testing.assert_allclose(total, -potential, atol=1e-3)


def test_waiting_is_paid_the_same_whatever_slot_the_action_names(signals):
    """The reward has no way to see the slot head: signals carry the operation alone."""
    assert not {field.name for field in dataclasses.fields(StepSignals)} & {"slot_N", "action_NH"}
    waiting = dataclasses.replace(signals, op_N=np.array([Op.WAIT, Op.WAIT]))
    mirrored = dataclasses.replace(
        waiting,
        before=lifecycle.SlotState(**{name: array[:, ::-1] for name, array in waiting.before.arrays().items()}),
        after=lifecycle.SlotState(**{name: array[:, ::-1] for name, array in waiting.after.arrays().items()}),
        params_before_NS=waiting.params_before_NS[:, ::-1],
        params_NS=waiting.params_NS[:, ::-1],
    )
    for config in (ONES, SparseConfig()):
        close(config.build(gamma=GAMMA)(mirrored)[0], *config.build(gamma=GAMMA)(waiting)[0])
    _, parts = ONES.build(gamma=GAMMA)(waiting)
    assert not parts["germinate"].any()
    assert not parts["prune"].any()


def test_a_refused_action_costs_as_waiting_does(signals):
    """The signals say WAIT where an action was refused, so nothing is charged for it."""
    close(terms.operations(dataclasses.replace(signals, op_N=np.array([0, 0])), Op.PRUNE), 0, 0)


def test_sparse_pays_at_the_end_only(signals):
    reward = SparseConfig(rent=5.0, terminal=2.0).build(gamma=GAMMA)
    paid, parts = reward(signals)
    assert not paid.any()
    assert tuple(parts) == reward.names == ("rent", "terminal")
    paid, parts = reward(dataclasses.replace(signals, last=True, committed_accuracy_N=floats(43.0, 41.0)))
    close(parts["rent"], -2.5, -1.5)
    close(parts["terminal"], 86, 82)
    close(paid, 83.5, 80.5)


def test_sparse_pays_nothing_for_a_rollback_before_the_end(signals):
    paid, _ = SparseConfig().build(gamma=GAMMA)(dataclasses.replace(signals, rolled_back_N=np.array([True, True])))
    assert not paid.any()


RULES = [(kind, field.name) for kind in (ShapedConfig, SparseConfig) for field in dataclasses.fields(kind)]


@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf")])
@pytest.mark.parametrize(("kind", "field"), RULES)
def test_each_rule_of_the_configs_fires(kind, field, value):
    with pytest.raises(ValueError, match=rf"reward\.{field} must be a finite number of at least 0, got {value}"):
        kind(**{field: value})


def test_a_mode_that_is_not_finished_says_what_it_lacks(signals):
    with pytest.raises(TypeError, match="define build"):
        RewardConfig().build(gamma=GAMMA)
    with pytest.raises(TypeError, match="define components"):
        Reward()(signals)
