"""Interactions and Shapley values, compared with all orders and with tables whose values are known."""

from itertools import combinations, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.measure.attribution import (
    draw_orders,
    effects,
    interaction,
    members,
    prefixes,
    sampled_shapley,
    shapley,
    subsets,
)


def value(contrast, table):
    """Return the value of a contrast, given a table from coalition to accuracy."""
    return sum(weight * table[coalition] for coalition, weight in contrast.items())


def additive(gain):
    """Return a table in which effects add up; multiples of 1/8, so that all sums are exact."""
    everyone = (1 << len(gain)) - 1
    return {some: 40.0 + sum(gain[slot] for slot in members(some)) for some in subsets(everyone)}


gains = st.lists(st.integers(-64, 64).map(lambda eighths: eighths / 8), min_size=1, max_size=4)


@given(gains)
def test_additive_effects_do_not_interact_and_are_their_own_shapley_values(gain):
    table, everyone = additive(gain), (1 << len(gain)) - 1
    for a, b in combinations(range(len(gain)), 2):
        for base in subsets(everyone & ~(1 << a | 1 << b)):
            assert value(interaction(a, b, base), table) == 0
    share = [value(contrast, table) for contrast in shapley(everyone)]
    assert share == pytest.approx(gain, abs=1e-12)
    assert share == pytest.approx([table[everyone] - table[everyone & ~(1 << slot)] for slot in range(len(gain))], abs=1e-12)


def test_interaction_of_two_seeds():
    table = {0b00: 40.0, 0b01: 42.0, 0b10: 43.0, 0b11: 50.0}
    assert value(interaction(0, 1), table) == 5.0
    assert [value(contrast, table) for contrast in shapley(0b11)] == [4.5, 5.5]


@settings(deadline=None)
@given(st.integers(0, 2**16), st.sampled_from([0b1, 0b101, 0b1011, 0b1111, 0b111101]))
def test_exact_shapley_values_are_means_over_all_orders_and_add_up(seed, players):
    rng = np.random.default_rng(seed)
    table = {some: rng.normal(50, 10) for some in subsets(players)}
    added = {slot: [] for slot in members(players)}
    for order in permutations(members(players)):
        along = prefixes(order)
        for rank, slot in enumerate(order):
            added[slot].append(table[along[rank + 1]] - table[along[rank]])
    share = [value(contrast, table) for contrast in shapley(players)]
    assert share == pytest.approx([np.mean(each) for each in added.values()], abs=1e-10)
    assert sum(share) == pytest.approx(table[players] - table[0], abs=1e-10)


def test_subsets_and_orders():
    assert subsets(0b101) == [0, 1, 4, 5]
    assert len(subsets(0b111111)) == 64
    orders = draw_orders(0b110101, 3, np.random.default_rng(0))
    assert len(orders) == 6
    assert all(sorted(order) == [0, 2, 4, 5] for order in orders)
    assert [order[::-1] for order in orders[::2]] == orders[1::2]
    assert prefixes((2, 0)) == [0, 4, 5]


# ---- estimates


def estimate(table, players, pairs, rng, covariance=0.0):
    orders = draw_orders(players, pairs, rng)
    seen = list(dict.fromkeys(prefix for order in orders for prefix in prefixes(order)))
    noise = covariance * np.eye(len(seen))
    place = {coalition: index for index, coalition in enumerate(seen)}
    return sampled_shapley(orders, place, np.array([table[some] for some in seen]), noise)


def test_estimates_are_unbiased_and_their_errors_are_calibrated():
    players, rng = 0b111111, np.random.default_rng(0)
    table = {some: rng.normal(50, 4) + 2.0 * some.bit_count() for some in subsets(players)}
    exact = np.array([value(contrast, table) for contrast in shapley(players)])
    draws = [estimate(table, players, 8, rng) for _ in range(600)]
    values, errors = (np.stack(each) for each in zip(*draws, strict=True))
    assert values.sum(axis=1) == pytest.approx(np.full(600, table[players] - table[0]))  # whatever the orders
    bias = (values.mean(axis=0) - exact) / (values.std(axis=0) / np.sqrt(600))
    assert np.abs(bias).max() < 4
    np.testing.assert_allclose(np.sqrt((errors**2).mean(axis=0)), values.std(axis=0), rtol=0.12)
    inside = np.abs(values - exact) < 2.365 * errors  # Student's t of 7 degrees, 95 %
    assert 0.92 < inside.mean() < 0.97


def test_reversed_orders_reduce_the_variance_where_late_seeds_add_less():
    players, rng = 0b111111, np.random.default_rng(1)
    weight = np.array([1, 2, 3, 4, 5, 6.0])
    table = {some: 10 * np.sqrt(weight[list(members(some))].sum()) for some in subsets(players)}
    exact = np.array([value(contrast, table) for contrast in shapley(players)])

    def spread(reverse):
        errors = []
        for _ in range(200):
            orders = draw_orders(players, 4, rng)
            if not reverse:
                orders = [order for _ in range(2) for order in draw_orders(players, 4, rng)[::2]]
            place = {some: some for some in subsets(players)}
            accuracy = np.array([table[some] for some in sorted(table)])
            errors.append(sampled_shapley(orders, place, accuracy, np.zeros((64, 64)))[0] - exact)
        return np.square(errors).mean()

    assert spread(True) < 0.75 * spread(False)


def test_errors_include_the_noise_of_the_samples():
    players = 0b11111
    table = {some: float(some.bit_count()) for some in subsets(players)}  # every order gives the same values
    values, errors = estimate(table, players, 3, np.random.default_rng(0))
    assert values == pytest.approx(np.ones(5))
    assert errors == pytest.approx(np.zeros(5), abs=1e-12)
    assert (estimate(table, players, 3, np.random.default_rng(0), covariance=1.0)[1] > 0.3).all()


def test_errors_account_for_shared_samples():
    """Compared with the spread of the effect over many validation sets."""
    rng, samples, tries = np.random.default_rng(0), 300, 2000
    skill = rng.normal(size=(tries, 1, samples))
    right = (skill + np.array([0.5, 0.2, 0.1, -0.2])[:, None] + 0.2 * rng.normal(size=(tries, 4, samples)) > 0).astype(float)
    accuracy = 100 * right.mean(-1)
    place = {0b11: 0, 0b01: 1, 0b10: 2, 0: 3}
    for contrast in (interaction(0, 1), *shapley(0b11), {0b11: 1.0, 0b01: -1.0}):
        errors = [effects([contrast], place, accuracy[t], 1e4 * np.cov(right[t], bias=True) / samples)[1][0] for t in range(200)]
        weight = np.array([[contrast.get(coalition, 0.0) for coalition in place]])
        assert np.mean(errors) == pytest.approx((weight @ accuracy.T).std(), rel=0.07)
        apart = np.sqrt((weight**2 @ accuracy.var(axis=0)).item())
        assert apart > 1.5 * np.mean(errors)  # the sum of the variances would be far too large


def test_an_unmeasured_coalition_is_an_error():
    with pytest.raises(KeyError):
        effects([interaction(0, 1)], {0b11: 0, 0b01: 1}, np.zeros(2), np.zeros((2, 2)))
