"""Several modes in one run: each host is paid as if its mode were the only one."""

import numpy as np
import pytest

from esper.reward.modes import MODES, ShapedConfig, SparseConfig
from esper.reward.rewards import Reward
from tests.reward.reward_steps import random_path

GAMMA = 0.9


def test_each_host_is_paid_by_its_mode_to_the_bit():
    """All modes at once, two hosts each; the mode of the run by its own keys, the others by their defaults."""
    counts = dict.fromkeys(MODES, 2)
    mixed = ShapedConfig(rent=3.0, per_host=counts).build_training(gamma=GAMMA)
    alone = {name: (kind(rent=3.0) if kind is ShapedConfig else kind()).build(gamma=GAMMA) for name, kind in MODES.items()}
    assert mixed.groups == {name: slice(2 * index, 2 * index + 2) for index, name in enumerate(MODES)}
    for signals in random_path(np.random.default_rng(0), 8, hosts=2 * len(MODES)):
        paid, parts = mixed(signals)
        assert tuple(parts) == mixed.names
        for name, rows in mixed.groups.items():
            own = alone[name](signals)[1]
            for term, part in parts.items():
                assert np.array_equal(part[rows], own[term][rows] if term in own else np.zeros(2)), (name, term)
        np.testing.assert_allclose(paid, np.sum(list(parts.values()), axis=0), atol=1e-4)


def test_a_reset_clears_the_memories_of_all_modes():
    reward = MODES["escrow"](per_host={"escrow": 2, "loss": 2}).build_training(gamma=GAMMA)
    path = list(random_path(np.random.default_rng(1), 8))
    wanted = [reward(signals)[0] for signals in path]
    reward.reset()
    assert all(np.array_equal(reward(signals)[0], paid) for signals, paid in zip(path, wanted, strict=True))


def test_needs_are_the_union_of_all_modes():
    assert not ShapedConfig(per_host={"shaped": 1, "sparse": 1}).build_training(gamma=GAMMA).needs
    alone = ShapedConfig(hindsight=1.0).build(gamma=GAMMA).needs
    assert alone
    assert SparseConfig().build(gamma=GAMMA).needs == Reward.needs == frozenset()
    assert ShapedConfig(hindsight=1.0, per_host={"shaped": 1, "sparse": 1}).build_training(gamma=GAMMA).needs == alone


def test_without_per_host_one_mode_pays_all_hosts():
    assert not ShapedConfig().build_training(gamma=GAMMA).groups
    assert not ShapedConfig(per_host={"shaped": 1, "sparse": 1}).build(gamma=GAMMA).groups


@pytest.mark.parametrize(
    ("counts", "word"),
    [
        ({"shaped": 8, "spars": 8}, "has an unknown mode spars: choose from shaped, simplified,"),
        ({"shaped": 8, "sparse": 0.5}, "must give numbers of hosts by mode, as in .*, got "),
        ([8, 8], "must give numbers of hosts by mode"),
        ({"shaped": 8, "sparse": 0}, "must give each mode at least 1 host, got sparse"),
        (
            {"basic": 8, "sparse": 8},
            "has no hosts for reward=shaped, whose keys would have no effect: add shaped, or choose reward=basic",
        ),
    ],
)
def test_invalid_counts_are_refused(counts, word):
    with pytest.raises(ValueError, match=word):
        ShapedConfig(per_host=counts)


def test_counts_that_do_not_fit_the_run_are_refused():
    config = ShapedConfig(per_host={"shaped": 6, "sparse": 2})
    config.check_run(hosts=8, twins=2)
    with pytest.raises(ValueError, match=r"pays shaped:6 \+ sparse:2 = 8 hosts, and hosts=9: make them equal"):
        config.check_run(hosts=9, twins=1)
    with pytest.raises(ValueError, match=r"must give shaped a multiple of agent.twins=4 hosts, got 6"):
        config.check_run(hosts=8, twins=4)
    ShapedConfig().check_run(hosts=9, twins=4)
