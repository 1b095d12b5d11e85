"""Terms with memory: what they pay, and what a rollback takes back."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.lifecycle.stages import Stage, empty
from esper.reward.terms import Births, Drip, Escrow, Fossilized, Gain, Hindsight, LossFall, seed_worth
from tests.reward.reward_steps import NAN, B, D, F, G, H, P, T, floats, random_path, signals_of, state_of

EMPTY = state_of([D, D])
HOLD = state_of([H, D], contribution=[[4, 0]])
KEPT = state_of([F, D], contribution=[[4, 0]])


def pay_of(term, *steps, last=9):
    """Return the pay of one host for each step (before, after, accuracy before, accuracy, more...)."""
    paid = []
    for before, after, accuracy_before, accuracy, *more in steps:
        given = {"steps_left": last, **(more[0] if more else {})}
        signals = signals_of(before, after, accuracy_before_N=floats(accuracy_before), accuracy_N=floats(accuracy), **given)
        paid.append(float(term(signals)[0]))
    return pytest.approx(paid, abs=1e-5)


SICK = {"rolled_back_N": np.array([True])}
END = {"steps_left": 0}


# ---- what a host gained since a seed came


def test_gain_since_birth_excludes_contributions_of_neighbours():
    births = Births()
    grown = state_of([H, D], contribution=[[4, 0]])
    both = state_of([H, H], contribution=[[5, 6]])
    gains = [
        births.gain(signals_of(before, after, accuracy_before_N=floats(was), accuracy_N=floats(now)))[0]
        for before, after, was, now in [(EMPTY, grown, 10, 16), (grown, both, 16, 27), (both, state_of([P, H]), 27, 20)]
    ]
    assert gains[0].tolist() == pytest.approx([6, np.nan], nan_ok=True)
    # 17 since the first came, of which its neighbour brings 6; 11 since the second came, when its neighbour brought 4 and not 5
    assert gains[1].tolist() == pytest.approx([17 - 6, 11 - 1])
    # the neighbour is gone and took 4 with it, which is not the second one's fault
    assert gains[2].tolist() == pytest.approx([np.nan, 4 + 4], nan_ok=True)


def test_a_seed_whose_birth_was_not_seen_has_no_gain_and_no_worth():
    signals = signals_of(HOLD, HOLD, accuracy_N=floats(50))
    gain = Births().gain(signals)
    assert np.isnan(gain).all()
    assert not seed_worth(signals, gain).any()


def test_worth_is_the_smaller_one_of_contribution_and_gain():
    """A host that leans on a seed and never gained by it gets nothing for it, though there is no other seed."""
    for accuracy, wanted in ((12, 2), (14, 4), (30, 4), (7, -3)):
        signals = signals_of(EMPTY, HOLD, accuracy_before_N=floats(10), accuracy_N=floats(accuracy))
        assert seed_worth(signals, Births().gain(signals))[0].tolist() == [wanted, 0]


# ---- one by one


def test_gain_pays_at_the_end_of_the_episode():
    assert pay_of(
        Gain(),
        (EMPTY, HOLD, 10, 30),
        (HOLD, KEPT, 30, NAN, SICK),
        (KEPT, KEPT, 25, 41, {**END, "committed_accuracy_N": floats(40.5)}),
    ) == [0, 0, 30.5]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(before=st.floats(0, 5, width=32), after=st.floats(0, 5, width=32))
def test_a_falling_loss_pays_and_a_rising_one_costs(before, after):
    paid = LossFall()(signals_of(EMPTY, EMPTY, loss_before_N=floats(before), loss_N=floats(after)))[0]
    assert np.sign(paid) == np.sign(np.float32(before) - np.float32(after))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**16), steps=st.integers(1, 12))
def test_loss_decreases_telescope_despite_rollbacks(seed, steps):
    path = list(random_path(np.random.default_rng(seed), steps))
    term = LossFall()
    total = np.sum([term(signals) for signals in path], axis=0, dtype=np.float64)
    known = path[0].loss_before_N.copy()
    for signals in path:
        known = np.where(signals.rolled_back_N, known, signals.loss_N)
    np.testing.assert_allclose(total, path[0].loss_before_N - known, atol=1e-5)


def test_a_rollback_in_the_last_step_pays_for_the_loss_of_the_snapshot():
    first, last = random_path(np.random.default_rng(0), 2)
    last = dataclasses.replace(last, rolled_back_N=np.ones_like(last.rolled_back_N), final_loss_N=np.full_like(last.loss_N, 0.25))
    term = LossFall()
    np.testing.assert_allclose(term(first) + term(last), first.loss_before_N - np.float32(0.25), atol=1e-6)


def test_a_fossil_is_paid_once():
    assert pay_of(Fossilized(), (EMPTY, HOLD, 10, 20), (HOLD, HOLD, 20, 20), (HOLD, KEPT, 20, 21), (KEPT, KEPT, 21, 22)) == [
        0,
        0,
        4,
        0,
    ]


def test_a_harmful_fossil_costs():
    bad = state_of([F, D], contribution=[[-3, 0]])
    assert pay_of(Fossilized(), (EMPTY, HOLD, 10, 20), (HOLD, bad, 20, 21)) == [0, -3]


def test_pay_for_a_lost_fossil_is_taken_back_and_can_be_earned_again():
    """The snapshot is older than the fossil. It is gone in the next step's state, and is charged there."""
    assert pay_of(
        Fossilized(),
        (EMPTY, HOLD, 10, 20),
        (HOLD, KEPT, 20, 21),
        (KEPT, KEPT, 21, NAN, SICK),
        (EMPTY, HOLD, 10, 20),
        (HOLD, KEPT, 20, 21),
    ) == [0, 4, 0, -4, 4]


def test_a_fossil_that_a_rollback_keeps_is_not_paid_again():
    steps = (EMPTY, HOLD, 10, 20), (HOLD, KEPT, 20, 21), (KEPT, KEPT, 21, NAN, SICK), (KEPT, KEPT, 20, 22)
    assert pay_of(Fossilized(), *steps) == [0, 4, 0, 0]


def test_a_fossil_of_a_rolled_back_step_is_not_paid():
    assert pay_of(Fossilized(), (EMPTY, HOLD, 10, 20), (HOLD, KEPT, 20, NAN, SICK), (EMPTY, EMPTY, 20, 20)) == [0, 0, 0]


def test_a_drip_follows_the_contribution():
    low, harm = state_of([F, D], contribution=[[1, 0]]), state_of([F, D], contribution=[[-40, 0]])
    better = state_of([F, D], contribution=[[40, 0]])
    assert pay_of(
        Drip(min_steps=2),
        (EMPTY, HOLD, 10, 20, {"steps_left": 5}),
        (HOLD, KEPT, 20, 21, {"steps_left": 4}),
        (KEPT, KEPT, 21, 22, {"steps_left": 3}),
        (KEPT, low, 22, 22, {"steps_left": 2}),
        (low, better, 22, 22, {"steps_left": 1}),
        (better, harm, 22, 22, END),
    ) == [0, 0, 1, 0.25, 1, -1]


def test_a_late_fossil_drips_little():
    steps = (EMPTY, HOLD, 10, 20), (HOLD, KEPT, 20, 21, {"steps_left": 1}), (KEPT, KEPT, 21, 21, END)
    assert pay_of(Drip(min_steps=8), *steps) == [0, 0, 0.5]


def test_the_drip_of_a_lost_fossil_is_taken_back():
    assert pay_of(
        Drip(min_steps=4),
        (EMPTY, HOLD, 10, 20),
        (HOLD, KEPT, 20, 21, {"steps_left": 4}),
        (KEPT, KEPT, 21, 22),
        (KEPT, KEPT, 22, NAN, SICK),
        (EMPTY, EMPTY, 10, 20),
        (EMPTY, EMPTY, 20, 20),
    ) == [0, 0, 1, 0, -1, 0]


def test_an_escrow_follows_the_minimum_worth_at_a_limited_rate():
    good, poor = state_of([B, D], contribution=[[9, 0]]), state_of([B, D], contribution=[[1, 0]])
    steps = (EMPTY, good, 10, 30), (good, good, 30, 30), (good, good, 30, 30), (good, poor, 30, 30), (poor, good, 30, 30)
    assert pay_of(Escrow(window=2, most=5.0), *steps) == [0, 5, 4, -5, -3]


@pytest.mark.parametrize(
    ("what", "after", "more"),
    [
        ("removed", state_of([P, D]), {}),
        ("rolled back", HOLD, SICK),
        ("still on trial at the end", HOLD, END),
    ],
)
def test_an_escrow_is_taken_back_with_its_seed(what, after, more):
    steps = (EMPTY, HOLD, 10, 30), (HOLD, HOLD, 30, 30), (HOLD, after, 30, 30, more)
    assert pay_of(Escrow(window=1, most=3.0), *steps) == [3, 1, -4], what


def test_a_fossil_keeps_its_escrow_until_a_rollback_removes_it():
    harm = state_of([F, D], contribution=[[-9, 0]])
    steps = (EMPTY, HOLD, 10, 30), (HOLD, KEPT, 30, 31), (KEPT, harm, 31, 31), (harm, harm, 31, NAN, SICK)
    assert pay_of(Escrow(window=1, most=3.0), *steps, (harm, harm, 31, 31)) == [3, 1, 0, 0, 0]
    assert pay_of(Escrow(window=1, most=3.0), *steps, (EMPTY, HOLD, 10, 30)) == [3, 1, 0, 0, -4]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**16), steps=st.integers(2, 12))
def test_an_episode_pays_the_balances_of_its_fossils_and_nothing_else(seed, steps):
    term, path = Escrow(window=1, most=2.0), list(random_path(np.random.default_rng(seed), steps))
    total = np.sum([term(signals) for signals in path], axis=0, dtype=np.float64)
    np.testing.assert_allclose(total, term.kept["balance"].sum(axis=1), atol=1e-3)
    end = path[-1]
    there = np.where(end.rolled_back_N[:, None], end.before.within(Stage.FOSSILIZED), end.after.within(Stage.FOSSILIZED))
    assert not term.kept["balance"][~there].any()


def pair(value):
    return {"interaction_NSS": np.array([[[0, value], [value, 0]]], dtype=np.float32)}


BOTH, ONE_KEPT, ALONE = state_of([H, H], contribution=[[4, 3]]), state_of([F, H], contribution=[[4, 3]]), state_of([H, P])


def test_hindsight_pays_for_scaffolds_when_a_seed_is_kept():
    """Discounted by its age; the one removed since counts too; nothing for what was never measured."""
    steps = (EMPTY, BOTH, 10, 20, pair(2.0)), (BOTH, BOTH, 20, 20, pair(1.0)), (BOTH, ONE_KEPT, 20, 20)
    assert pay_of(Hindsight(0.5), *steps) == [0, 0, 0.5]
    removed = (BOTH, ALONE, 20, 20), (ALONE, state_of([F, D]), 20, 20)
    assert pay_of(Hindsight(0.5), steps[0], *removed) == [0, 0, 0.5]
    assert pay_of(Hindsight(0.5), (EMPTY, BOTH, 10, 20), (BOTH, ONE_KEPT, 20, 20)) == [0, 0]
    assert pay_of(Hindsight(0.5), (EMPTY, BOTH, 10, 20, pair(-2.0)), (BOTH, ONE_KEPT, 20, 20)) == [0, 0]


def test_hindsight_is_capped_by_the_contribution_and_excludes_fossils():
    together = state_of([F, F], contribution=[[4, 3]])
    assert pay_of(Hindsight(1.0), (EMPTY, BOTH, 10, 20, pair(9.0)), (BOTH, ONE_KEPT, 20, 20)) == [0, 4]
    assert pay_of(Hindsight(1.0), (EMPTY, BOTH, 10, 20, pair(9.0)), (BOTH, together, 20, 20)) == [0, 0]


def test_hindsight_does_not_mistake_a_new_seed_for_the_one_that_helped():
    fresh, kept = state_of([H, G]), state_of([F, T])
    steps = (EMPTY, BOTH, 10, 20, pair(2.0)), (BOTH, ALONE, 20, 20), (state_of([H, D]), fresh, 20, 20), (fresh, kept, 20, 20)
    assert pay_of(Hindsight(1.0), *steps) == [0, 0, 0, 0]


def test_a_rollback_clears_scaffolds_and_takes_back_hindsight():
    start = (EMPTY, BOTH, 10, 20, pair(2.0))
    assert pay_of(Hindsight(1.0), start, (BOTH, BOTH, 20, NAN, SICK), (EMPTY, BOTH, 9, 9), (BOTH, ONE_KEPT, 9, 9)) == [0] * 4
    lost = (ONE_KEPT, ONE_KEPT, 20, NAN, SICK), (EMPTY, EMPTY, 20, 20)
    assert pay_of(Hindsight(1.0), start, (BOTH, ONE_KEPT, 20, 20), *lost) == [0, 2, 0, -2]


@pytest.mark.parametrize("term", [Fossilized(), Drip(1), Escrow(1, 9.0), Hindsight(1.0)])
def test_a_rollback_in_the_last_step_takes_back_what_it_removes(term):
    """There is no next step that would show it."""
    steps = (EMPTY, BOTH, 10, 20, pair(2.0)), (BOTH, ONE_KEPT, 20, 21), (ONE_KEPT, ONE_KEPT, 21, 22)

    def total(final):
        term.reset()
        end = (ONE_KEPT, ONE_KEPT, 22, NAN, SICK | {"steps_left": 0, "final": final})
        return sum(pay_of(term, *steps, end).expected)

    assert total(ONE_KEPT) > 0
    assert total(EMPTY) == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize("term", [Fossilized(), Drip(3), Escrow(2, 2.0), Hindsight(0.9), Gain(), LossFall()])
def test_a_rollback_affects_only_its_host(term):
    """The others are paid the same bits as without it, in that step and after it."""
    path = list(random_path(np.random.default_rng(1), 10, sick=0.0))
    calm = [term(signals) for signals in path]
    term.reset()
    sick = np.array([False, True, False, False])
    ill = [term(dataclasses.replace(signals, rolled_back_N=sick & (step == 4))) for step, signals in enumerate(path)]
    assert all(np.array_equal(one[[0, 2, 3]], two[[0, 2, 3]]) for one, two in zip(calm, ill, strict=True))


def test_memories_are_empty_at_first_and_after_reset():
    term = Escrow(2, 2.0)
    term(signals_of(empty(1, 2), HOLD, accuracy_N=floats(30)))
    assert term.kept
    assert term.kept
    term.reset()
    assert not term.kept
    assert not term.kept
