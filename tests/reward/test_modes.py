"""Every mode: an episode by hand, and what must hold on any path."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.lifecycle.stages import Op, SlotState
from esper.reward import table
from esper.reward.modes import MODES, RewardConfig
from esper.reward.table import SHAPING
from esper.reward.terms import RentUnit, contributions
from tests.reward.reward_steps import NAN, D, F, G, H, P, floats, random_path, replaced, signals_of, state_of

GAMMA = 0.9
EVERY = [(name, key) for name, kind in MODES.items() for key in kind.pays]
SHAPES = [name for name, kind in MODES.items() if any(entry.potential for entry in kind.pays.values())]


def episode():
    """One host: a seed is planted, held and kept; another one is planted meanwhile, and removed at the end."""
    states = [
        state_of([D, D]),
        state_of([G, D]),
        state_of([H, D], contribution=[[4, 0]]),
        state_of([F, G], contribution=[[5, 0]]),
        state_of([F, P], contribution=[[3, 0]]),
    ]
    for state in states:
        state.measured &= ~state.within(G)
    accuracy, loss, params = (
        [10.0, 20.0, 30.0, 36.0, 40.0],
        [2.3, 2.0, 1.5, 1.2, 1.0],
        [[0, 0], [20, 0], [20, 0], [20, 10], [20, 0]],
    )
    ops = [Op.GERMINATE, Op.ADVANCE, Op.GERMINATE, Op.PRUNE]
    for step in range(4):
        yield signals_of(
            states[step],
            states[step + 1],
            op_N=np.array([ops[step]]),
            accuracy_before_N=floats(accuracy[step]),
            accuracy_N=floats(accuracy[step + 1]),
            loss_before_N=floats(loss[step]),
            loss_N=floats(loss[step + 1]),
            committed_accuracy_N=floats(39.0 if step == 3 else NAN),
            params_before_NS=np.array([params[step]]),
            params_NS=np.array([params[step + 1]]),
            num_steps=4,
            steps_left=3 - step,
        )


STAGES = [0.9 * 0.2, 0.9 * 1.1 - 0.2, 0.9 * 1.4 - 1.1, -1.4]
RENT = [-0.1, -0.1, -0.15, -0.1]
TERMINAL = [0, 0, 0, 39]
DENSE = {"shaping": [8.18, 7.79, 2.56, -37.4], "rent": RENT, "germinate": [-0.2, 0, -0.2, 0], "prune": [0, 0, 0, -0.1]}
BY_HAND: dict[str, tuple[dict[str, float], dict[str, list[float]]]] = {
    "shaped": (
        {"shock": 0.5},
        {"attribution": [0, 0.008, 0.01, 0.006], **DENSE, "terminal": TERMINAL, "shock": [-0.1, 0, -0.05, -0.05]},
    ),
    "simplified": (
        {},
        {"shaping": STAGES, "actions": [-0.1] * 4, "contributing": [0, 0, 0, 0.5], "terminal": TERMINAL},
    ),
    "basic": ({}, {"shaping": STAGES, "rent": RENT, "fossilized": [0, 0, 0.5, 0], "gain": [0, 0, 0, 29]}),
    "basic_plus": (
        {},
        {
            "shaping": STAGES,
            "rent": RENT,
            "fossilized": [0, 0, 0.15, 0],
            "gain": [0, 0, 0, 29],
            "drip": [0, 0, 0, 0.07 * 5 / 5 * 3 / 5],
        },
    ),
    "sparse": ({}, {"rent": [0, 0, 0, -2], "terminal": TERMINAL}),
    "minimal": ({}, {"rent": [0, 0, 0, -2], "terminal": TERMINAL, "prune": [0, 0, 0, -0.1]}),
    "escrow": ({"window": 2}, {"escrow": [0, 0, 0.2, 0], **DENSE, "terminal": TERMINAL}),
    "loss": ({}, {"loss_fall": [12, 20, 12, 8], "shaping": STAGES, "rent": RENT}),
    "accuracy_minus_rent": ({}, {"rent": [0, 0, 0, -2], "terminal": TERMINAL}),
    "online": ({}, {"rent": [-0.5, -0.5, -0.75, -0.5], "online": [5, 7.5, 9, 10]}),
}


@pytest.mark.parametrize("name", list(MODES))
def test_an_episode_by_hand(name):
    keys, wanted = BY_HAND[name]
    reward = MODES[name](**keys).build(gamma=GAMMA)
    assert reward.names == tuple(wanted)
    for episode_again in range(2):  # nothing is left of the one before
        reward.reset()
        for step, signals in enumerate(episode()):
            paid, parts = reward(signals)
            assert paid.dtype == np.float32
            seen = {term: float(part[0]) for term, part in parts.items()}
            assert seen == pytest.approx({term: row[step] for term, row in wanted.items()}, abs=1e-5), (episode_again, step)
            assert paid[0] == pytest.approx(sum(seen.values()), abs=1e-4)


def test_accuracy_minus_rent_charges_for_fossils_and_sparse_for_all_seeds():
    *_, last = episode()
    holding = dataclasses.replace(last, after=state_of([F, H]), params_NS=np.array([[20, 10]]))
    assert MODES["accuracy_minus_rent"]().build(gamma=1)(holding)[0][0] == pytest.approx(39 - 2)
    assert MODES["sparse"]().build(gamma=1)(holding)[0][0] == pytest.approx(39 - 3)


@pytest.mark.parametrize("unit", ["flops", "latency"])
@pytest.mark.parametrize("name", [name for name, kind in MODES.items() if "rent_unit" in kind.__dataclass_fields__])
def test_rent_may_be_in_another_unit(name, unit):
    *_, last = episode()
    reward = MODES[name](rent_unit=RentUnit(unit)).build(gamma=1)
    with pytest.raises(ValueError, match=f"reward.rent_unit={unit} is not measured here"):
        reward(last)
    priced = {f"{unit}_NS": floats([3.0, 0.0]), f"{unit}_before_NS": floats([3.0, 1.0]), f"host_{unit}": 6.0}
    reward.reset()
    parts = reward(dataclasses.replace(last, **priced))[1]
    params = MODES[name]().build(gamma=1)(last)[1]
    assert parts["rent"][0] == pytest.approx(params["rent"][0] / 0.2 * 0.5)


def test_a_free_reward_pays_nothing():
    *_, last = episode()
    paid, parts = MODES["sparse"](rent=0.0, terminal=0.0).build(gamma=1)(last)
    assert (paid.tolist(), paid.dtype, parts) == ([0.0], np.float32, {})


# ---- on any path


def play(reward, seed, steps=8):
    """Components of each step, from a new episode on."""
    reward.reset()
    return [reward(signals)[1] for signals in random_path(np.random.default_rng(seed), steps)]


@pytest.mark.parametrize("name", SHAPES)
@settings(max_examples=25, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**16), steps=st.integers(1, 12), gamma=st.sampled_from([0.5, 0.9, 0.99, 1.0]))
def test_shaping_telescopes_in_every_sub_episode(name, seed, steps, gamma):
    """The discounted sum from a start to an end, rollbacks included, is minus the potential of the start, whatever was done."""
    reward = MODES[name]().build(gamma=gamma)
    total, clock, start = np.zeros(4), np.zeros(4), np.full(4, np.nan)
    ends = 0
    for signals in random_path(np.random.default_rng(seed), steps):
        here = reward.potential(signals.accuracy_before_N, signals.before)
        start = np.where(clock == 0, here, start)
        total += gamma**clock * reward(signals)[1][SHAPING]
        clock += 1
        over = signals.ended_N
        np.testing.assert_allclose(total[over], -start[over], atol=2e-3)
        total, clock, ends = np.where(over, 0, total), np.where(over, 0, clock), ends + over.sum()
    assert ends >= 4


@pytest.mark.parametrize("name", list(MODES))
def test_the_order_of_the_slots_does_not_matter(name):
    """Signals hold no slot of an action, so waiting is paid the same whatever slot it names; and slots are all alike."""

    def mirrored(state):
        return SlotState(**{key: array[:, ::-1] for key, array in state.arrays().items()})

    plain, other = (MODES[name]().build(gamma=GAMMA) for _ in range(2))
    for signals in random_path(np.random.default_rng(3), 10):
        turned = replaced(
            signals,
            before=mirrored(signals.before),
            after=mirrored(signals.after),
            params_before_NS=signals.params_before_NS[:, ::-1],
            params_NS=signals.params_NS[:, ::-1],
            interaction_NSS=signals.effects.interaction_NSS[:, ::-1, ::-1],
        )
        np.testing.assert_allclose(plain(signals)[0], other(turned)[0], atol=1e-3)


@pytest.mark.parametrize(
    ("name", "term"), [("shaped", "attribution"), ("basic", "fossilized"), ("basic_plus", "drip"), ("escrow", "escrow")]
)
def test_two_seeds_in_different_slots_both_earn(name, term):
    """Two hosts with one seed each, in either slot, and a third with both, which earns their sum."""
    both, empty, none = [[4, 0], [0, 3], [4, 3]], state_of([D, D], [D, D], [D, D]), np.full(3, 10.0, np.float32)
    rows = [([F, D], [D, F], [F, F]) if step > 3 else ([H, D], [D, H], [H, H]) for step in range(7)]
    reward = MODES[name]().build(gamma=GAMMA)
    paid = np.zeros(3)
    before, known = empty, none
    for step, stages in enumerate(rows):
        after, shown = state_of(*stages, contribution=both), none + floats(4, 3, 7)
        paid += reward(signals_of(before, after, accuracy_before_N=known, accuracy_N=shown, steps_left=7 - step))[1][term]
        before, known = after, shown
    assert paid[0] > 0
    assert paid[1] > 0
    assert paid[2] == pytest.approx(paid[0] + paid[1], rel=1e-5)


@pytest.mark.parametrize(("name", "key"), EVERY)
def test_every_weight_scales_or_drops_its_term(name, key):
    kind = MODES[name]
    ones = dict.fromkeys(kind.pays, 1.0)
    full, none, three = (kind(**ones | {key: weight}).build(gamma=GAMMA) for weight in (1.0, 0.0, 3.0))
    entry = kind.pays[key]
    alone = [each for each, other in kind.pays.items() if other.name == entry.name]
    changed = False
    for one, without, tripled in zip(*(play(reward, 3, 30) for reward in (full, none, three)), strict=True):
        for term, paid in one.items():
            if term != entry.name:
                assert np.array_equal(paid, without[term])
                assert np.array_equal(paid, tripled[term])
        changed |= not np.array_equal(one[entry.name], tripled[entry.name])
        assert (entry.name in without) == (len(alone) > 1)
        if len(alone) == 1:
            np.testing.assert_allclose(tripled[entry.name], 3 * one[entry.name], rtol=1e-4, atol=1e-4)
    assert changed


@dataclasses.dataclass(kw_only=True, slots=True)
class TwoRentsConfig(RewardConfig):
    """Charges rent in every step, and once more for fossils at the end."""

    pays = {"rent": table.RENT, "end": table.FOSSIL_RENT}  # noqa: RUF012
    rent: float = 3.0
    end: float = 7.0
    rent_unit: RentUnit = RentUnit.params


def test_terms_of_one_component_add_up():
    both, rent, end = (TwoRentsConfig(**weights).build(gamma=GAMMA) for weights in ({}, {"end": 0.0}, {"rent": 0.0}))
    path = list(random_path(np.random.default_rng(7), 10))
    paid = [np.array([reward(signals)[1]["rent"] for signals in path]) for reward in (both, rent, end)]
    assert np.any(paid[1])
    assert np.any(paid[2])
    np.testing.assert_allclose(paid[0], paid[1] + paid[2], rtol=1e-6)


def test_a_seed_that_is_off_contributes_nothing():
    """What it contributed before it was switched off is remembered, and not paid again."""
    state = state_of([F, H], contribution=[10.0, 4.0])
    off = dataclasses.replace(state, alpha=np.array([[0.0, 1.0]], dtype=np.float32))
    assert contributions(state).tolist() == [[10.0, 4.0]]
    assert contributions(off).tolist() == [[0.0, 4.0]]


@pytest.mark.parametrize("name", list(MODES))
def test_rewards_are_always_finite(name):
    """Though a rolled back host shows none."""
    reward = MODES[name](**dict.fromkeys(MODES[name].pays, 1.0)).build(gamma=GAMMA)
    assert all(np.isfinite(part).all() for parts in play(reward, 11, 12) for part in parts.values())


@settings(max_examples=30, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**16), other=st.integers(0, 2**16))
def test_the_pay_of_a_host_does_not_depend_on_other_hosts(seed, other):
    """Half of the hosts take another path; the pay of the rest keeps its bits in every mode."""
    for kind in MODES.values():
        alone, among = (kind(**dict.fromkeys(kind.pays, 1.0)).build(gamma=GAMMA) for _ in range(2))
        ours, theirs = (random_path(np.random.default_rng(number), 6) for number in (seed, other))
        for mine, stranger in zip(ours, theirs, strict=True):
            assert np.array_equal(alone(mine)[0][:2], among(_mixed(mine, stranger))[0][:2])


def _mixed(mine, stranger):
    def rows(one, two):
        return np.concatenate([one[:2], two[2:]])

    values = {}
    for entry in dataclasses.fields(mine):
        one, two = getattr(mine, entry.name), getattr(stranger, entry.name)
        if isinstance(one, SlotState):
            values[entry.name] = SlotState(**{key: rows(one.arrays()[key], two.arrays()[key]) for key in one.arrays()})
        else:
            values[entry.name] = rows(one, two) if isinstance(one, np.ndarray) else one
    return type(mine)(**values)
